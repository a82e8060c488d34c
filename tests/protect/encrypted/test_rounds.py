"""Whole rounds of `encrypted` against the plain oracle, exactly: sums and combinations, whoever drops out where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.machine import RoundMachine
from coordinator.merging import CircleSums
from secure_fl.aggregation import RequestKind
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.errors import CohortTooSmallError
from secure_fl.protect.combining import CombinationsSent, CombineContribution
from secure_fl.protect.contract import Message, Opened, OpenedSums, RoundContext
from secure_fl.protect.encrypted.protection import Encrypted, EncryptedSettings
from secure_fl.protect.release.combinations import servable
from secure_fl.protect.release.sketch import sketch
from tests.protect.cohorts import (
    ROW_TOTAL,
    Contributions,
    InMemory,
    cases,
    context,
    contribution,
    guarded_sums,
    halves,
    layout,
    whole_sums,
)
from tests.protect.laws import few

ENCRYPTED = Encrypted()
TRUSTING = Encrypted(EncryptedSettings(recompute=False))
SUM, COMBINE = RequestKind.SUM, RequestKind.COMBINE


def play(
    about: RoundContext, contributions: Contributions, gone: Mapping[str, str], protection: Encrypted = ENCRYPTED
) -> tuple[Opened | None, dict[str, Any], set[str]]:
    """A round in which `gone` says who stops answering at which phase; also who was asked to open it."""
    machine = RoundMachine(protection, about)
    nodes: dict[str, Any] = dict(halves(protection, about, contributions))
    asked: set[str] = set()
    machine.begin()
    opened: Opened | None = None
    for phase in protection.phases(about.kind):
        if opened is not None:
            break
        assert machine.phase == phase
        for node in sorted(machine.waiting):
            asked |= {node} if phase == "open" else set()
            if gone.get(node) == phase:
                machine.leave(node, "NotConnected")
                continue
            answer: Message = nodes[node].answer(phase, machine.asked[node])
            machine.accept(node, phase, replace(answer, bulk=b""), InMemory(answer.bulk))
        opened = machine.close()
    return opened, nodes, asked


@pytest.mark.parametrize("protection", [ENCRYPTED, TRUSTING])
@few
@given(case=cases(SUM), data=st.data())
def test_sums_equal_the_oracle(
    protection: Encrypted, case: tuple[RoundContext, Contributions], data: st.DataObject
) -> None:
    about, contributions = case
    gone = {
        node: data.draw(st.sampled_from(["advertise", "upload"]))
        for node in data.draw(st.sets(st.sampled_from(about.invited), max_size=2))
    }
    there = [node for node in about.invited if gone.get(node) != "advertise"]
    uploaded = {node: contributions[node] for node in there if node not in gone}
    try:
        opened, _, _ = play(about, contributions, gone, protection)
    except CohortTooSmallError:
        # Too few, or nobody left on one of the two sides, of which each has at least a third.
        assert len(uploaded) < max(about.min_cohort, len(there) // 2 + 2)
        return
    assert isinstance(opened, OpenedSums)
    declared = {
        block
        for block in about.layout.names
        if sum(block in contributions[node].blocks for node in there) >= about.min_cohort
    }
    expected = {block: sums for block, sums in guarded_sums(about, uploaded).items() if block in declared}
    found = {name: (b.total.tolist(), b.weight, b.contributors) for name, b in opened.blocks.items()}
    assert found == expected
    assert opened.cohort == tuple(sorted(uploaded))


@few
@given(case=cases(SUM))
def test_a_circle_opens_what_everybody_holds(case: tuple[RoundContext, Contributions]) -> None:
    about, contributions = case
    opened, _, asked = play(replace(about, whole=True), contributions, {})
    assert isinstance(opened, OpenedSums)
    found = {name: (b.total.tolist(), b.weight, b.contributors) for name, b in opened.blocks.items()}
    assert found == whole_sums(contributions)
    assert len(asked) == 2


def test_sums_of_two_circles_are_added_up() -> None:
    circles = (("n0", "n1", "n2", "n3", "n4"), ("n5", "n6", "n7", "n8", "n9"))
    sums = CircleSums(FixedPoint(bits=16, clip=1.0), robust=False)
    for circle in circles:
        about = context(*circle, whole=True, protection=ENCRYPTED)
        opened, _, _ = play(about, {name: contribution(64, body=[1, 2, 3], head=[4, 5]) for name in circle}, {})
        assert isinstance(opened, OpenedSums)
        sums.add(opened)
    assert sums.total().blocks["body"].total.tolist() == [10, 20, 30]


@pytest.mark.parametrize("phase", ["advertise", "upload"])
def test_a_circle_without_a_member_opens_nothing(phase: str) -> None:
    names = ("n0", "n1", "n2", "n3", "n4")
    about = context(*names, whole=True, protection=ENCRYPTED)
    contributions = {name: contribution(64, body=[1, 2, 3], head=[4, 5]) for name in names}
    with pytest.raises(CohortTooSmallError):
        play(about, contributions, {"n3": phase})


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_sums_survive_openers_that_drop_out(lost: int) -> None:
    """Two of each side are asked; one of each has to stay."""
    names = tuple(f"n{i}" for i in range(8))
    about = context(*names, protection=ENCRYPTED)
    contributions = {name: contribution(64, body=[place, 2, 3], head=[4, 5]) for place, name in enumerate(names)}
    machine = RoundMachine(ENCRYPTED, about)
    nodes = halves(ENCRYPTED, about, contributions)
    machine.begin()
    for phase in ("advertise", "key", "upload", "check"):
        for node in sorted(machine.waiting):
            answer = nodes[node].answer(phase, machine.asked[node])
            machine.accept(node, phase, replace(answer, bulk=b""), InMemory(answer.bulk))
        machine.close()
    openers = list(machine.asked)
    assert len(openers) == 4
    # In an order in which the first two are of different sides.
    for node in (openers[0], openers[2], openers[1])[:lost]:
        machine.leave(node, "NotConnected")
    for node in sorted(machine.waiting):
        answer = nodes[node].answer("open", machine.asked[node])
        machine.accept(node, "open", replace(answer, bulk=b""), InMemory(answer.bulk))
    if lost == 3:
        assert machine.missing == 1  # one side is gone
        with pytest.raises(CohortTooSmallError):
            machine.close()
        return
    opened = machine.close()
    assert isinstance(opened, OpenedSums)
    assert opened.blocks["body"].total.tolist() == [28, 16, 24]


@pytest.mark.parametrize("protection", [ENCRYPTED, TRUSTING])
@few
@given(case=cases(COMBINE), data=st.data())
def test_combinations_equal_the_oracle(
    protection: Encrypted, case: tuple[RoundContext, Contributions], data: st.DataObject
) -> None:
    about, contributions = case
    phases = [phase for phase in protection.phases(COMBINE) if phase not in ("score", "key")]
    gone = {
        node: data.draw(st.sampled_from(phases))
        for node in data.draw(st.sets(st.sampled_from(about.invited), max_size=2))
    }
    uploaded = {node: mine for node, mine in contributions.items() if gone.get(node) not in ("advertise", "upload")}
    if len(uploaded) < about.min_cohort:
        with pytest.raises(CohortTooSmallError):
            play(about, contributions, gone, protection)
        return
    sent, nodes, _ = play(about, contributions, gone, protection)
    assert isinstance(sent, CombinationsSent)
    asking = {node: mine for node, mine in uploaded.items() if gone.get(node) != "row"}
    wanted = {node: mine.attend(dict.fromkeys(uploaded, 0.0)) for node, mine in asking.items()}  # type: ignore[attr-defined]
    large = {node: row for node, row in wanted.items() if len(row) >= about.min_cohort}
    rows = servable(large, nodes=sorted(uploaded), colluders=about.colluders)
    still = {node for node in rows if node not in gone}
    # Whoever stays is served, unless both who add up its other half are gone.
    if not gone:
        assert set(sent.recipients) == still
    assert set(sent.recipients) <= still
    for node in sent.recipients:
        row, opened = rows[node], nodes[node].combination()
        held = [b for b in about.layout.names if all(b in contributions[peer].blocks for peer in row)]
        assert sorted(opened) == sorted(held)
        for block in held:
            exact = sum(w * contributions[peer].blocks[block].astype(np.int64) for peer, w in row.items())
            assert opened[block].total.tolist() == np.asarray(exact).tolist()
            assert (opened[block].weight, opened[block].contributors) == (64 * ROW_TOTAL, len(row))
    for node in nodes.keys() - set(sent.recipients):
        assert nodes[node].combination() == {}


def _combine_case(nodes: int = 6) -> tuple[RoundContext, dict[str, CombineContribution]]:
    names = [f"n{i}" for i in range(nodes)]
    about = context(*names, blocks=layout(body=5000, head=3), kind=COMBINE, min_cohort=4, protection=ENCRYPTED)
    rng = np.random.default_rng(1)
    contributions = {}
    for place, name in enumerate(names):
        body = rng.integers(-32767, 32768, 5000)
        contributions[name] = contribution(64, dict.fromkeys(names, 1), body=body.tolist(), head=[place, -place, 7])
    return about, contributions


def test_a_recipient_is_served_although_one_who_vouches_for_it_is_gone() -> None:
    about, contributions = _combine_case()
    for lost in about.invited:
        sent, _, _ = play(about, contributions, {lost: "check"})
        assert isinstance(sent, CombinationsSent)
        assert sent.recipients == tuple(name for name in about.invited if name != lost)


def test_distances_open_at_their_node_and_are_those_of_the_sketches() -> None:
    about, contributions = _combine_case(nodes=8)
    about = replace(about, compares=True)
    seen: dict[str, dict[str, float]] = {}
    features = {name: np.array([float(place)], np.float32) for place, name in enumerate(contributions)}

    def attend(name: str, squared: Mapping[str, float]) -> Mapping[str, int]:
        seen[name] = dict(squared)
        return contributions[name].attend(squared)

    sketched = {
        name: replace(mine, sketch=sketch(features[name]), attend=partial(attend, name))
        for name, mine in contributions.items()
    }
    sent, _, _ = play(about, sketched, {"n1": "upload", "n2": "score"})
    assert isinstance(sent, CombinationsSent)
    present = [name for name in contributions if name != "n1"]
    assert seen == {
        name: {peer: float((features[name][0] - features[peer][0]) ** 2) for peer in present}
        for name in present
        if name != "n2"
    }
