"""Circles that follow from what sites declared."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.errors import RefusedError
from secure_fl.protect.declarations import make_declaration
from secure_fl.rpc import protect_cohort_pb2 as pb
from secure_fl.study.division import Division
from secure_fl.study.settings import Study
from tests.protect.members import member

CELLS = ("c0", "c1", "c2", "c3", "c4")


def study(sites: int, **protection: object) -> Study:
    """One whose strategy shares to a depth."""
    names = [f"s{index:02d}" for index in range(sites)]
    return Study.parse(
        {
            "study": {"roster": {name: member(name).certificate.fingerprint for name in names}},
            "task": {"name": "bearings", "network": "cells"},
            "strategy": {"name": "fedasa"},
            "protection": {"kind": "masked", **protection},
        }
    )


def declared(about: Study, depths: dict[str, int]) -> bytes:
    """Everybody's word, as it travels."""
    said = [make_declaration(about.id, member(name), CELLS[:depth]) for name, depth in sorted(depths.items())]
    return pb.Declarations(declarations=said).SerializeToString(deterministic=True)


@settings(max_examples=25, deadline=None)
@given(st.integers(8, 14), st.data())
def test_circles_are_a_division_of_the_roster_with_the_deepest_first(sites: int, data: st.DataObject) -> None:
    about = study(sites)
    names = list(about.study.roster)
    depths = data.draw(st.dictionaries(st.sampled_from(names), st.integers(0, 5)))
    division = Division(about)
    division.settle(declared(about, depths))
    assert sorted(site for circle in division.circles for site in circle) == names
    assert [len(circle) for circle in division.circles] == [len(circle) for circle in about.circles()]
    sizes = [[depths.get(site, 0) for site in circle] for circle in division.circles]
    assert all(min(deeper) >= max(other) for deeper, other in pairwise(sizes))
    shared = max(min(depth) for depth in sizes)
    assert division.shared_by_some_circle() == frozenset(CELLS[:shared])


def test_the_first_list_counts_for_ever() -> None:
    about = study(8)
    division = Division(about)
    with pytest.raises(RefusedError):
        _ = division.circles
    first = declared(about, {"s00": 3, "s07": 5})
    division.settle(first)
    circles = division.circles
    division.settle(first)
    with pytest.raises(RefusedError):
        division.settle(declared(about, {"s00": 3}))
    assert division.circles == circles


@pytest.mark.parametrize(
    ("sites", "protection"),
    [(7, {}), (8, {"recovery": True}), (8, {"circles": [["s00", "s01", "s02", "s07"], ["s03", "s04", "s05", "s06"]]})],
)
def test_where_there_is_nothing_to_choose_nobody_declares(sites: int, protection: dict[str, object]) -> None:
    division = Division(study(sites, **protection))
    assert not division.declares
    assert division.settled


def test_hidden_membership_is_not_declared() -> None:
    about = study(8)
    hidden = about.model_copy(
        update={"strategy": about.strategy.model_copy(update={"settings": {"membership": "hidden"}})}
    )
    assert about.declares
    assert not hidden.declares


@settings(max_examples=25, deadline=None)
@given(st.integers(8, 14), st.data())
def test_circles_by_speed_have_slow_sites_wait_for_slow_sites(sites: int, data: st.DataObject) -> None:
    about = study(sites, circles="speed")
    names = list(about.study.roster)
    paces = data.draw(st.dictionaries(st.sampled_from(names), st.integers(0, 20)))
    said = [make_declaration(about.id, member(name), CELLS, pace=pace) for name, pace in sorted(paces.items())]
    division = Division(about)
    division.settle(pb.Declarations(declarations=said).SerializeToString(deterministic=True))
    assert sorted(site for circle in division.circles for site in circle) == names
    absent = max(paces.values(), default=0) + 1
    among = [[paces.get(site, absent) for site in circle] for circle in division.circles]
    assert all(max(faster) <= min(slower) for faster, slower in pairwise(among))
