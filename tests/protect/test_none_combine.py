"""Combinations under `none`: each recipient gets its own row's combination, and nobody a small one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.machine import RoundMachine
from secure_fl.aggregation import RequestKind
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.errors import CohortTooSmallError, LateMessageError, ProtectionError, SecureFLError
from secure_fl.protect.combining import CombinationsSent, CombineContribution, CombiningNodeHalf
from secure_fl.protect.contract import Ask, CoordinatorHalf, Message, NodeHalf, RoundContext
from secure_fl.protect.none import UnsafeNone
from secure_fl.protect.release.combinations import servable
from secure_fl.protect.release.sketch import sketch
from secure_fl.rpc.protect_none_pb2 import PlainCombination, PlainRow, PlainUpload
from tests.protect.cohorts import (
    Contributions,
    InMemory,
    PlainSums,
    cases,
    context,
    contribution,
    halves,
    upload,
)
from tests.protect.laws import law

NONE = UnsafeNone()
COMBINE = RequestKind.COMBINE
NODES = ("n0", "n1", "n2", "n3")


def exact_combination(about: RoundContext, present: Contributions, recipient: str) -> PlainSums:
    """Σ_j w_ij·x_j in Python's integers, over the blocks that everybody in the row holds."""
    rows = {
        node: mine.attend(dict.fromkeys(present, 0.0))
        for node, mine in present.items()
        if isinstance(mine, CombineContribution)
    }
    assert rows.keys() == present.keys()
    large = {node: row for node, row in rows.items() if len(row) >= about.min_cohort}
    # Which rows pass together is the guard's business, and tested with it.
    row = servable(large, nodes=sorted(present), colluders=about.colluders).get(recipient, {})
    opened: PlainSums = {}
    for name in about.layout.names if row else ():
        if all(name in present[peer].blocks for peer in row):
            columns = zip(
                *([w * x for x in present[peer].blocks[name].tolist()] for peer, w in row.items()), strict=True
            )
            opened[name] = ([sum(column) for column in columns], WEIGHT_UNITS * sum(row.values()), len(row))
    return opened


def combination(half: NodeHalf) -> PlainSums:
    assert isinstance(half, CombiningNodeHalf)
    return {name: (b.total.tolist(), b.weight, b.contributors) for name, b in half.combination().items()}


@law
@given(cases(COMBINE), st.data())
def test_combinations_equal_the_integer_oracle(case: tuple[RoundContext, Contributions], data: st.DataObject) -> None:
    about, contributions = case
    absent = data.draw(st.sets(st.sampled_from(about.invited)))
    present = {node: mine for node, mine in contributions.items() if node not in absent}
    nodes = halves(NONE, about, present)
    machine = RoundMachine(NONE, about)
    machine.begin()

    def everybody_answers(phase: str) -> None:
        assert machine.phase == phase
        for node, half in nodes.items():
            answer = half.answer(phase, machine.asked[node])
            machine.accept(node, phase, answer, InMemory(answer.bulk))

    everybody_answers("upload")
    if len(present) < about.min_cohort:
        with pytest.raises(CohortTooSmallError):
            machine.close()
        return
    machine.close()
    everybody_answers("row")
    machine.close()
    everybody_answers("open")
    sent = machine.close()
    opened = {node: combination(half) for node, half in nodes.items()}
    assert opened == {node: exact_combination(about, present, node) for node in nodes}
    assert isinstance(sent, CombinationsSent)
    assert sent.cohort == tuple(sorted(present))
    assert set(sent.recipients) >= {node for node, blocks in opened.items() if blocks}


def uploaded(about: RoundContext, *nodes: str) -> CoordinatorHalf:
    """The coordinator once `nodes` uploaded the same three values and it asks for rows."""
    coordinator = NONE.combining_coordinator(about, ())
    for node in nodes:
        coordinator.accept(node, *UPLOAD)
    coordinator.close()
    return coordinator


def row(**weights: int) -> tuple[Message, InMemory]:
    return upload(PlainRow(row=weights).SerializeToString())


def messages(coordinator: CoordinatorHalf) -> dict[str, Message]:
    ask = coordinator.close()
    assert isinstance(ask, Ask)
    return dict(ask.messages)


UPLOAD = upload(PlainUpload(blocks=["body"], weight=64).SerializeToString(), np.array([1, 2, 3], "<i2").tobytes())
EQUAL = row(n0=16, n1=16, n2=16, n3=16)


def test_a_recipient_whose_row_the_guard_refuses_gets_nothing() -> None:
    coordinator = uploaded(context(*NODES, kind=COMBINE, min_cohort=4), *NODES)
    coordinator.accept("n0", *EQUAL)
    coordinator.accept("n1", *row(n0=32, n1=16, n2=16))  # three
    coordinator.accept("n2", *row(n2=64))  # itself
    coordinator.accept("n3", *row())  # nobody
    sent = messages(coordinator)
    assert PlainCombination.FromString(sent["n0"].body) == PlainCombination(
        blocks=["body"], weight=64 * WEIGHT_UNITS, contributors=4
    )
    assert np.frombuffer(sent["n0"].bulk, "<i8").tolist() == [64, 128, 192]
    for recipient in ("n1", "n2", "n3"):
        assert sent[recipient] == Message(body=PlainCombination().SerializeToString())
    for recipient in NODES:
        coordinator.accept(recipient, *upload(b""))
    assert coordinator.close() == CombinationsSent(recipients=("n0",), cohort=NODES)


@pytest.mark.parametrize(
    "weights",
    [
        {"n0": 40, "n1": 8, "n2": 8, "n3": 8},  # one node above half
        {"n1": 22, "n2": 21, "n3": 21},  # the recipient is not in it
        {"n0": 1, "n1": 31, "n2": 16, "n3": 16},  # n1 stands out
    ],
)
def test_a_row_that_shows_one_node_is_not_combined(weights: dict[str, int]) -> None:
    coordinator = uploaded(context(*NODES, kind=COMBINE, min_cohort=3), *NODES)
    coordinator.accept("n0", *row(**weights))
    assert messages(coordinator)["n0"].bulk == b""


def test_distances_are_those_of_the_sketches_and_rows_follow_from_them() -> None:
    about = context(*NODES, kind=COMBINE, min_cohort=4, compares=True)
    seen: dict[str, dict[str, float]] = {}
    coordinator = NONE.combining_coordinator(about, ())
    nodes: dict[str, NodeHalf] = {}
    for place, node in enumerate(NODES):

        def attend(squared: Mapping[str, float], node: str = node) -> Mapping[str, int]:
            seen[node] = dict(squared)
            return dict.fromkeys(squared, 16)

        features = np.array([float(place)], np.float32)  # one number, of which the sketch is itself or its negative
        mine = replace(contribution(body=[1, 2, 3]), sketch=sketch(features), attend=attend)
        nodes[node] = halves(NONE, about, {node: mine})[node]
        answer = nodes[node].answer("upload", Message())
        coordinator.accept(node, answer, InMemory(answer.bulk))
    for node, question in messages(coordinator).items():
        answer = nodes[node].answer("row", question)
        coordinator.accept(node, answer, InMemory(b""))
    assert seen == {node: {peer: float((i - j) ** 2) for j, peer in enumerate(NODES)} for i, node in enumerate(NODES)}


@pytest.mark.parametrize("sketched", [b"", bytes(4), b"\xff\xff\xff\x7f" * 1024])
def test_a_sketch_of_the_wrong_size_or_range_is_refused(sketched: bytes) -> None:
    coordinator = NONE.combining_coordinator(context(*NODES, kind=COMBINE, compares=True), ())
    header = PlainUpload(blocks=["body"], weight=64, sketch=sketched)
    with pytest.raises(ProtectionError):
        coordinator.accept("n0", *upload(header.SerializeToString(), bytes(6)))


# --- what is refused changes nothing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        row(n0=32, stranger=32),
        row(n0=32, n4=32),  # invited, but it did not upload
        row(n0=64, n1=0),
        row(n0=65),
        row(n0=63),
        row(n0=2**32 - 1, n1=65),
        upload(b"\xff"),
    ],
)
def test_a_malformed_row_is_refused_and_leaves_no_trace(answer: tuple[Message, InMemory]) -> None:
    coordinator = uploaded(context(*NODES, "n4", kind=COMBINE, min_cohort=4), *NODES)
    with pytest.raises(SecureFLError):
        coordinator.accept("n0", *answer)
    for node in NODES:
        coordinator.accept(node, *EQUAL)
        with pytest.raises(ProtectionError):
            coordinator.accept(node, *EQUAL)
    totals = {node: np.frombuffer(message.bulk, "<i8").tolist() for node, message in messages(coordinator).items()}
    assert totals == {node: [64, 128, 192] for node in NODES}


@pytest.mark.parametrize(
    "answer",
    [
        upload(PlainUpload(blocks=["body"], weight=64).SerializeToString(), b"\x00\x00"),
        upload(PlainUpload(blocks=["tail"], weight=64).SerializeToString(), b""),
        upload(PlainUpload(blocks=["body"], weight=64, sketch=bytes(4096)).SerializeToString(), bytes(6)),
    ],
)
def test_a_malformed_upload_is_refused_and_leaves_no_trace(answer: tuple[Message, InMemory]) -> None:
    coordinator = NONE.combining_coordinator(context(*NODES, kind=COMBINE, min_cohort=4), ())
    with pytest.raises(ProtectionError):
        coordinator.accept("n0", *answer)
    coordinator.accept("n0", *UPLOAD)


def test_only_recipients_acknowledge_and_only_once() -> None:
    coordinator = uploaded(context(*NODES, "n4", kind=COMBINE, min_cohort=4), *NODES)
    for node in NODES:
        coordinator.accept(node, *EQUAL)
    coordinator.close()
    coordinator.accept("n0", *upload(b""))
    for node in ("n0", "n4", "stranger"):
        with pytest.raises(ProtectionError):
            coordinator.accept(node, *upload(b""))
    assert coordinator.close() == CombinationsSent(recipients=("n0",), cohort=NODES)


def test_the_machine_takes_no_upload_once_rows_are_asked_for() -> None:
    machine = RoundMachine(NONE, context(*NODES, kind=COMBINE, min_cohort=4))
    machine.begin()
    for node in NODES:
        machine.accept(node, "upload", *UPLOAD)
    machine.close()
    with pytest.raises(LateMessageError):
        machine.accept("n0", "upload", *UPLOAD)


# --- the node half ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        Message(body=b"\xff\xff"),
        Message(body=PlainCombination(blocks=["tail"], weight=64).SerializeToString(), bulk=bytes(24)),
        Message(body=PlainCombination(blocks=["head", "body"], weight=64).SerializeToString(), bulk=bytes(40)),
        Message(body=PlainCombination(blocks=["body", "body"], weight=64).SerializeToString(), bulk=bytes(24)),
        Message(body=PlainCombination(blocks=["body"], weight=64).SerializeToString(), bulk=bytes(16)),
        Message(body=PlainCombination(blocks=["body"], weight=64).SerializeToString(), bulk=bytes(23)),
        Message(body=PlainCombination(blocks=["body"], weight=64).SerializeToString()),
    ],
)
def test_a_malformed_combination_is_refused_with_a_typed_error(message: Message) -> None:
    about = context(*NODES, kind=COMBINE)
    half = halves(NONE, about, {"n0": contribution(body=[1, 2, 3])})["n0"]
    with pytest.raises(SecureFLError):
        half.answer("open", message)
    assert combination(half) == {}


def test_the_phases_of_both_requests() -> None:
    assert NONE.phases(RequestKind.SUM) == ("upload",)
    assert NONE.phases(COMBINE) == ("upload", "row", "open")
