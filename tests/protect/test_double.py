"""The three-phase double through the coordinator's machine: the same sums as `none`, whoever leaves when."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.machine import RoundMachine
from secure_fl.errors import CohortTooSmallError, LateMessageError, ProtectionError
from secure_fl.protect.contract import Ask, Message, NodeHalf, Protection, RoundContext
from secure_fl.protect.none import UnsafeNone
from secure_fl.randomness import UnsafeSeededRandomness
from tests.protect.cohorts import (
    Contributions,
    InMemory,
    cases,
    context,
    contribution,
    exact_sums,
    halves,
    host,
    plain,
    play,
    upload,
)
from tests.protect.double import PHASES, OneTimePad
from tests.protect.laws import law

DOUBLE: Protection = OneTimePad()
NONE = UnsafeNone()
NODES = ("n0", "n1", "n2", "n3")
HELD = {
    "n0": contribution(64, body=[1, -2, 3], head=[7, 7]),
    "n1": contribution(64, body=[4, 5, 6], head=[8, -8]),
    "n2": contribution(64, body=[-32767, 32767, 0]),
    "n3": contribution(64, body=[1, 1, 1]),
}


# --- the same as none -------------------------------------------------------------------------------------------


@law
@given(cases(), st.data())
def test_the_double_opens_what_none_opens_over_the_survivors(
    case: tuple[RoundContext, Contributions], data: st.DataObject
) -> None:
    about, contributions = case
    gone = data.draw(st.dictionaries(st.sampled_from(about.invited), st.sampled_from(PHASES)))
    survivors = {node: mine for node, mine in contributions.items() if node not in gone}
    absent = dict.fromkeys(gone, "upload")
    if len(survivors) < about.min_cohort:
        for protection, who in ((DOUBLE, gone), (NONE, absent)):
            with pytest.raises(CohortTooSmallError):
                play(protection, about, contributions, who)
        return
    opened, cohort = plain(play(DOUBLE, about, contributions, gone))
    assert (opened, cohort) == (exact_sums(about, survivors), tuple(sorted(survivors)))
    # `none` has a guard besides, which may keep blocks closed whose cohorts differ by too little.
    guarded, same = plain(play(NONE, about, contributions, absent))
    assert guarded.items() <= opened.items()
    assert same == cohort


@pytest.mark.parametrize("phase", PHASES)
def test_a_node_may_vanish_in_any_phase(phase: str) -> None:
    expected = ({"body": ([1 + 4 + 1, -2 + 5 + 1, 3 + 6 + 1], 192, 3)}, ("n0", "n1", "n3"))
    assert plain(play(DOUBLE, context(*NODES), HELD, {"n2": phase})) == expected


@pytest.mark.parametrize("phase", PHASES)
def test_one_node_too_few_ends_the_attempt_in_the_phase_it_happens(phase: str) -> None:
    with pytest.raises(CohortTooSmallError) as caught:
        play(DOUBLE, context(*NODES), HELD, {"n1": phase, "n2": phase})
    assert (caught.value.have, caught.value.need) == (2, 3)


# --- in the machine ---------------------------------------------------------------------------------------------


def answer(machine: RoundMachine, nodes: dict[str, NodeHalf], *who: str) -> None:
    for node in who:
        said = nodes[node].answer(machine.phase, machine.asked[node])
        machine.accept(node, machine.phase, replace(said, bulk=b""), InMemory(said.bulk))


def test_the_machine_takes_each_answer_once_and_only_in_its_phase() -> None:
    machine = RoundMachine(DOUBLE, context(*NODES))
    nodes = halves(DOUBLE, machine.context, HELD)
    machine.begin()
    first = nodes["n0"].answer("advertise", machine.asked["n0"])
    machine.accept("n0", "advertise", first, InMemory(b""))
    for node, phase in (("n0", "advertise"), ("n1", "upload"), ("stranger", "advertise"), ("n1", "")):
        with pytest.raises(LateMessageError):
            machine.accept(node, phase, first, InMemory(b""))
    assert machine.waiting == {"n1", "n2", "n3"}


def test_who_leaves_is_not_asked_again() -> None:
    machine = RoundMachine(DOUBLE, context(*NODES))
    nodes = halves(DOUBLE, machine.context, HELD)
    machine.begin()
    machine.leave("n3", "Training")
    answer(machine, nodes, "n0", "n1", "n2")
    machine.leave("n0", "NotConnected")  # too late: it has answered
    machine.close()
    assert (machine.phase, set(machine.asked)) == ("upload", {"n0", "n1", "n2"})
    assert machine.left == {"n3": "Training"}
    answer(machine, nodes, "n0", "n1")
    with pytest.raises(CohortTooSmallError):
        machine.close()
    assert machine.left == {"n3": "Training", "n2": "LateMessage"}


def test_the_accepted_messages_alone_rebuild_the_round() -> None:
    # What a coordinator does after it was killed: it draws no randomness, so the replay is exact.
    about = context(*NODES)
    nodes = halves(DOUBLE, about, HELD)
    transcript: list[tuple[str, Message, InMemory]] = []
    first, second = DOUBLE.coordinator(about), DOUBLE.coordinator(about)
    ask = first.begin()
    asked = [ask]
    while isinstance(ask, Ask):
        for node, told in ask.messages.items():
            said = nodes[node].answer(ask.phase, told)
            transcript.append((node, replace(said, bulk=b""), InMemory(said.bulk)))
            first.accept(*transcript[-1])
        result = first.close()
        if not isinstance(result, Ask):
            break
        asked.append(ask := result)
    assert second.begin() == asked[0]
    for position, entry in enumerate(transcript, start=1):
        second.accept(*entry)
        if position % len(NODES) == 0 and position < len(transcript):
            assert second.close() == asked[position // len(NODES)]
    assert plain(second.close()) == plain(result)


# --- what leaves a node -----------------------------------------------------------------------------------------


def test_answers_are_determined_by_the_randomness() -> None:
    def answers(seed: int) -> list[Message]:
        half = DOUBLE.node(context("n0", "n1", "n2"), HELD["n0"], host("n0", UnsafeSeededRandomness(seed)))
        declared = json.dumps({node: ["body", "head"] for node in ("n0", "n1", "n2")}).encode()
        return [half.answer("advertise", Message()), half.answer("upload", Message(bulk=declared))]

    assert answers(1) == answers(1)
    for one, other in zip(answers(1), answers(2), strict=True):
        assert one != other


def test_an_upload_is_padded_modulo_two_to_the_32() -> None:
    half = DOUBLE.node(context("n0", "n1", "n2"), HELD["n2"], host("n0", UnsafeSeededRandomness(1)))
    half.answer("advertise", Message())
    declared = json.dumps({node: ["body"] for node in ("n0", "n1", "n2")}).encode()
    words = np.frombuffer(half.answer("upload", Message(bulk=declared)).bulk, "<u4")
    assert words.size == 3
    assert not set(words.tolist()) & {-32767 % 2**32, 32767, 0}


def test_keys_of_a_block_below_its_minimum_stay_at_the_node() -> None:
    machine = RoundMachine(DOUBLE, context(*NODES))
    nodes = halves(DOUBLE, machine.context, HELD)
    machine.begin()
    for _ in ("advertise", "upload"):
        answer(machine, nodes, *NODES)
        machine.close()
    said = nodes["n0"].answer("reveal", machine.asked["n0"])
    assert set(json.loads(said.body)["keys"]) == {"body"}  # only two nodes hold the head


# --- what is refused --------------------------------------------------------------------------------------------


def test_a_node_half_goes_through_its_phases_once_and_in_order() -> None:
    half = halves(DOUBLE, context(*NODES), HELD)["n0"]
    with pytest.raises(ProtectionError):
        half.answer("upload", Message())
    half.answer("advertise", Message())
    for phase in ("advertise", "reveal", "other"):
        with pytest.raises(ProtectionError):
            half.answer(phase, Message())


@pytest.mark.parametrize(
    "cohort",
    [["n0", "n1"], ["n1", "n2", "n3"], ["n0", "n1", "n2", "stranger"], ["n0", "n0", "n1"]],
    ids=["too small", "without this node", "with a stranger", "with a repetition"],
)
def test_a_node_checks_the_cohort_it_is_told(cohort: list[str]) -> None:
    half = halves(DOUBLE, context(*NODES), HELD)["n0"]
    half.answer("advertise", Message())
    with pytest.raises((ProtectionError, CohortTooSmallError)):
        half.answer("upload", Message(bulk=json.dumps({node: ["body"] for node in cohort}).encode()))
    half.answer("upload", Message(bulk=json.dumps({node: ["body"] for node in NODES}).encode()))
    with pytest.raises((ProtectionError, CohortTooSmallError)):
        half.answer("reveal", Message(body=json.dumps({"survivors": cohort}).encode()))
    half.answer("reveal", Message(body=json.dumps({"survivors": NODES}).encode()))


def _said(**fields: object) -> tuple[Message, InMemory]:
    return upload(json.dumps(fields).encode())


MALFORMED = {
    "advertise": [
        upload(b"{"),
        upload(b"[]"),
        _said(weight=1),
        _said(blocks={"tail": "0" * 64}, weight=1),
        _said(blocks={"body": "0"}, weight=1),
        _said(blocks={}, weight=0),
        _said(blocks={}, weight=65),
        _said(blocks={}, weight="1"),
    ],
    "upload": [upload(b""), upload(b"", bytes(11)), upload(b"", bytes(24))],
    "reveal": [
        upload(b""),
        _said(keys={}),
        _said(keys={"body": "00" * 32}),
        _said(keys={"body": "zz"}),
        _said(keys={"body": 1}),
    ],
}


@pytest.mark.parametrize(
    ("phase", "malformed"), [(phase, answer) for phase, answers in MALFORMED.items() for answer in answers]
)
def test_a_malformed_answer_is_refused_and_leaves_no_trace(phase: str, malformed: tuple[Message, InMemory]) -> None:
    machine = RoundMachine(DOUBLE, context(*NODES))
    nodes = halves(DOUBLE, machine.context, HELD)
    machine.begin()
    opened = None
    for current in PHASES:
        for node in NODES:
            if phase == current:
                with pytest.raises(ProtectionError):
                    machine.accept(node, current, *malformed)
            answer(machine, nodes, node)
        opened = machine.close()
    assert plain(opened) == plain(play(NONE, machine.context, HELD))


def test_a_padded_value_out_of_range_is_refused_at_the_reveal() -> None:
    about = context(*NODES, bits=8)
    held = {**HELD, "n0": contribution(body=[0, 0, 128])}
    machine = RoundMachine(DOUBLE, about)
    nodes = halves(DOUBLE, about, {n: (held[n] if n == "n0" else contribution(body=[1, 1, 1])) for n in NODES})
    machine.begin()
    for _ in ("advertise", "upload"):
        answer(machine, nodes, *NODES)
        machine.close()
    with pytest.raises(ProtectionError, match="fixed-point range"):
        answer(machine, nodes, "n0")
    answer(machine, nodes, "n1", "n2", "n3")
    assert plain(machine.close()) == ({"body": ([3, 3, 3], 192, 3)}, ("n1", "n2", "n3"))
