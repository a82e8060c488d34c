"""How a roster is divided: once, by everybody alike, into circles that are large enough."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import SettingsError
from secure_fl.rounds import RoundKind
from secure_fl.study.circles import divide
from secure_fl.study.resolved import ResolvedStudy
from tests.protect.laws import law
from tests.protect.rosters import study


@law
@given(
    st.sets(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=40), st.integers(0, 6), st.integers(0, 12)
)
def test_every_site_is_in_one_circle_and_no_circle_is_small(names: set[str], colluders: int, at_least: int) -> None:
    circles = divide(names, colluders=colluders, at_least=at_least)
    assert sorted(name for circle in circles for name in circle) == sorted(names)
    assert circles == divide(sorted(names, reverse=True), colluders=colluders, at_least=at_least)
    sizes = [len(circle) for circle in circles]
    assert max(sizes) - min(sizes) <= 1
    if len(circles) > 1:
        assert min(sizes) >= max(colluders + 3, at_least)


@pytest.mark.parametrize(
    ("sites", "colluders", "sizes"),
    [
        (3, 1, [3]),
        (7, 1, [7]),
        (8, 1, [4, 4]),
        (10, 1, [5, 5]),
        (12, 1, [4, 4, 4]),
        (10, 2, [5, 5]),
        (200, 1, [4] * 50),
    ],
)
def test_sizes(sites: int, colluders: int, sizes: list[int]) -> None:
    assert [len(circle) for circle in study(sites, protection={"colluders": colluders}).circles()] == sizes


@pytest.mark.parametrize(
    ("circles", "message"),
    [
        ([["site-1", "site-2", "site-3"]], "site-4"),
        ([["site-1", "site-2", "site-3", "site-4", "elsewhere"]], "elsewhere"),
        ([["site-1", "site-2", "site-3", "site-4", "site-4"]], "site-4"),
        ([["site-1", "site-2"], ["site-3", "site-4"]], "fewer than 3"),
        ([["site-1", "site-2", "site-3", "site-4"], []], "empty"),
    ],
)
def test_listed_circles_are_the_roster_and_large_enough(circles: list[list[str]], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ResolvedStudy.of(study(4, protection={"circles": circles}))


def test_a_consortium_may_list_its_circles() -> None:
    listed = [["site-4", "site-2", "site-6"], ["site-1", "site-3", "site-5"]]
    resolved = ResolvedStudy.of(study(6, protection={"circles": listed}))
    assert resolved.division.circles == (("site-1", "site-3", "site-5"), ("site-2", "site-4", "site-6"))
    assert resolved.circle_of("site-6", RoundKind.TRAIN) == ("site-2", "site-4", "site-6")


@pytest.mark.parametrize(
    ("sections", "training", "closing"),
    [
        ({}, 1, 1),
        ({"protection": {"recovery": True}}, 0, 0),
        ({"strategy": {"name": "fedamp"}}, 0, 1),  # combinations are opened at their recipients; measurements are a sum
    ],
)
def test_which_rounds_have_circles(sections: dict[str, Any], training: int, closing: int) -> None:
    resolved = ResolvedStudy.of(study(4, **sections))
    assert len(resolved.circles_in(RoundKind.TRAIN)) == training
    assert len(resolved.circles_in(RoundKind.EVALUATE)) == closing


def test_robust_means_need_enough_circles() -> None:
    with pytest.raises(SettingsError, match="at least 3 circles, and there are 2"):
        study(10, protection={"robust": "median"}).check()
    study(12, protection={"robust": "median"}).check()
    with pytest.raises(SettingsError, match="there are 0"):
        study(12, strategy={"name": "fedamp"}, protection={"kind": "sealed", "robust": "trimmed"}).check()
