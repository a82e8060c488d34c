"""Whole rounds of `sealed` against the plain oracle: sums and combinations, whoever drops out where."""

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
from secure_fl.aggregation import RequestKind
from secure_fl.errors import CohortTooSmallError
from secure_fl.protect.cohort.signed import threshold
from secure_fl.protect.combining import Attention, CombinationsSent, CombineContribution
from secure_fl.protect.contract import Opened, OpenedSums, RoundContext
from secure_fl.protect.release.combinations import servable
from secure_fl.protect.release.sketch import sketch
from secure_fl.protect.sealed.protection import Sealed, SealedSettings
from secure_fl.protect.sealed.terms import Terms
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
)
from tests.protect.laws import few
from tests.protect.sealed.table import Table, sum_round

SEALED = Sealed()
SUM, COMBINE = RequestKind.SUM, RequestKind.COMBINE


def play(
    about: RoundContext, contributions: Contributions, gone: Mapping[str, str], protection: Sealed = SEALED
) -> tuple[Opened | None, dict[str, Any]]:
    """A round in which `gone` says who stops answering at which phase."""
    machine = RoundMachine(protection, about)
    nodes: dict[str, Any] = dict(halves(protection, about, contributions))
    machine.begin()
    opened: Opened | None = None
    for phase in SEALED.phases(about.kind):
        if opened is not None:
            break
        assert machine.phase == phase
        for node in sorted(machine.waiting):
            if gone.get(node) == phase:
                machine.leave(node, "NotConnected")
                continue
            answer = nodes[node].answer(phase, machine.asked[node])
            machine.accept(node, phase, replace(answer, bulk=b""), InMemory(answer.bulk))
        opened = machine.close()
    return opened, nodes


def attend(contributions: Contributions, node: str) -> Attention:
    """How a node weighs others."""
    mine = contributions[node]
    assert isinstance(mine, CombineContribution)
    return mine.attend


def dropouts(data: st.DataObject, about: RoundContext) -> dict[str, str]:
    phases = [phase for phase in SEALED.phases(about.kind) if phase != "score"]  # which asks nobody here
    return {
        node: data.draw(st.sampled_from(phases))
        for node in data.draw(st.sets(st.sampled_from(about.invited), max_size=3))
    }


@few
@given(cases(SUM), st.data())
def test_sums_equal_the_oracle_within_the_stated_noise(
    case: tuple[RoundContext, Contributions], data: st.DataObject
) -> None:
    about, contributions = case
    gone = dropouts(data, about)
    there = [node for node in about.invited if gone.get(node) != "advertise"]
    uploaded = {node: contributions[node] for node in there if gone.get(node) != "upload"}
    held = [node for node in uploaded if gone.get(node) != "open"]
    if len(uploaded) < about.min_cohort or len(held) < threshold(len(there), about.colluders):
        with pytest.raises(CohortTooSmallError):
            play(about, contributions, gone)
        return
    opened, _ = play(about, contributions, gone)
    assert isinstance(opened, OpenedSums)
    # A block that too few declared is never uploaded: that is decided before anybody drops out.
    declared = {
        block
        for block in about.layout.names
        if sum(block in contributions[node].blocks for node in there) >= about.min_cohort
    }
    expected = {block: sums for block, sums in guarded_sums(about, uploaded).items() if block in declared}
    assert opened.blocks.keys() == expected.keys()
    assert opened.cohort == tuple(sorted(uploaded))
    noise = Terms.of(about).noise
    for block, (totals, weight, contributors) in expected.items():
        found = opened.blocks[block]
        assert (found.weight, found.contributors) == (weight, contributors)
        assert np.abs(found.total - np.array(totals, np.int64)).max(initial=0) <= noise


@few
@given(cases(COMBINE), st.data())
def test_combinations_equal_the_oracle_within_the_stated_noise(
    case: tuple[RoundContext, Contributions], data: st.DataObject
) -> None:
    about, contributions = case
    gone = dropouts(data, about)
    phases = SEALED.phases(COMBINE)

    def there(phase: str) -> list[str]:
        """Who still answers `phase`."""
        return [n for n in about.invited if n not in gone or phases.index(gone[n]) > phases.index(phase)]

    uploaded = {node: contributions[node] for node in there("upload")}
    if len(there("advertise")) < about.min_cohort or len(uploaded) < about.min_cohort:
        with pytest.raises(CohortTooSmallError):
            play(about, contributions, gone)
        return
    wanted = {
        node: attend(contributions, node)(dict.fromkeys(uploaded, 0.0)) for node in there("row") if node in uploaded
    }
    large = {node: row for node, row in wanted.items() if len(row) >= about.min_cohort}
    rows = servable(large, nodes=sorted(uploaded), colluders=about.colluders)
    cohort = len(there("advertise"))
    if rows and len(there("open")) < min(cohort, threshold(cohort, about.colluders) + about.colluders):
        with pytest.raises(CohortTooSmallError):
            play(about, contributions, gone)
        return
    sent, nodes = play(about, contributions, gone)
    assert isinstance(sent, CombinationsSent)
    assert sent.recipients == tuple(node for node in sorted(rows) if node in there("deliver"))
    noise = Terms.of(about).noise
    for node in sent.recipients:
        row, opened = rows[node], nodes[node].combination()
        held = [b for b in about.layout.names if all(b in contributions[peer].blocks for peer in row)]
        assert sorted(opened) == sorted(held)
        for block in held:
            exact = sum(w * contributions[peer].blocks[block].astype(np.int64) for peer, w in row.items())
            assert np.abs(opened[block].total - exact).max(initial=0) <= noise
            assert (opened[block].weight, opened[block].contributors) == (64 * ROW_TOTAL, len(row))
    for node in nodes.keys() - set(sent.recipients):
        assert nodes[node].combination() == {}


def _combine_case(protection: Sealed = SEALED, nodes: int = 6) -> tuple[RoundContext, dict[str, CombineContribution]]:
    names = [f"n{i}" for i in range(nodes)]
    about = context(*names, blocks=layout(body=5000, head=3), kind=COMBINE, min_cohort=4, protection=protection)
    rng = np.random.default_rng(1)
    contributions = {}
    for place, name in enumerate(names):
        body, head = rng.integers(-32767, 32768, (2, 5000)), [place, -place, 7]
        mine = contribution(64, dict.fromkeys(names, 1), body=body[0].tolist(), head=head)
        contributions[name] = mine
    return about, contributions


@pytest.mark.parametrize("recompute", [False, True])
def test_every_node_opens_its_own_combination(recompute: bool) -> None:
    protection = Sealed(SealedSettings(recompute=recompute))
    about, contributions = _combine_case(protection)
    sent, nodes = play(about, contributions, {"n5": "row"}, protection)
    assert isinstance(sent, CombinationsSent)
    assert sent.recipients == ("n0", "n1", "n2", "n3", "n4")
    rows = {node: contributions[node].attend(dict.fromkeys(about.invited, 0.0)) for node in sent.recipients}
    for node, row in rows.items():
        opened = nodes[node].combination()
        exact = sum(w * contributions[peer].blocks["body"].astype(np.int64) for peer, w in row.items())
        assert np.abs(opened["body"].total - exact).max() <= Terms.of(about).noise


def test_distances_open_at_their_node_and_are_those_of_the_sketches() -> None:
    about, contributions = _combine_case(nodes=8)
    about = replace(about, compares=True)
    seen: dict[str, dict[str, float]] = {}
    # One number each, of which the sketch is itself or its negative.
    features = {name: np.array([float(place)], np.float32) for place, name in enumerate(contributions)}

    def attend(name: str, squared: Mapping[str, float]) -> Mapping[str, int]:
        seen[name] = dict(squared)
        return contributions[name].attend(squared)

    sketched = {
        name: replace(
            mine,
            sketch=sketch(features[name]),
            attend=partial(attend, name),
        )
        for name, mine in contributions.items()
    }
    sent, _ = play(about, sketched, {"n1": "upload", "n2": "score"})
    assert isinstance(sent, CombinationsSent)
    present = [name for name in contributions if name != "n1"]
    assert seen == {
        name: {peer: float((features[name][0] - features[peer][0]) ** 2) for peer in present}
        for name in present
        if name != "n2"
    }


@pytest.mark.parametrize(("reason", "waited"), [("NotConnected", 1), ("Protection", 0)])
def test_only_those_are_waited_for_who_can_come_back(reason: str, waited: int) -> None:
    """Six nodes of which four have to open: three did, and the others are away or have refused."""
    table = Table(sum_round()).until("open")
    for name in table.about.invited[:3]:
        answer = table.tell(name, table.asked[name])
        table.machine.accept(name, "open", replace(answer, bulk=b""), InMemory(answer.bulk))
    for name in table.about.invited[3:]:
        table.machine.leave(name, reason)
    assert table.machine.missing == waited
