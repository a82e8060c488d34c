"""The cut into training and test: one unit that comes or goes moves no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.errors import DataError
from secure_fl.tasks.base import PartitionSettings, Share, Source
from secure_fl.tasks.cutting import cut, divide
from secure_fl.tasks.units import unit_names

Array = np.ndarray[Any, Any]
Cut = Callable[[Array, Array | None], tuple[Array, Array]]


def simulated(seed: int = 0, index: int = 0, **values: Any) -> Source:
    return Source(share=Share(index=index, of=index + 1, seed=seed, partition=PartitionSettings.parse(values)))


def by_unit(rows: Array, groups: Array | None) -> tuple[Array, Array]:
    return divide(Source(split_key=b"key"), rows, rows, classification=False, groups=groups)


def by_a_drawn_order(rows: Array, _groups: Array | None) -> tuple[Array, Array]:
    """What was here before: every fifth row of a permutation."""
    order = np.random.default_rng(0).permutation(len(rows))
    return np.sort(order[len(rows) // 5 :]), np.sort(order[: len(rows) // 5])


def moved(cut_rows: Cut, rows: Array, removed: Array, groups: Array | None = None) -> int:
    """How many of the rows that stay are on another side once the rows `removed` are gone."""
    stay = ~removed
    before, after = cut_rows(rows, groups), cut_rows(rows[stay], None if groups is None else groups[stay])
    gone = Counter(rows[removed].tolist())
    count = 0
    for mine, left in zip(before, after, strict=True):
        # Equal rows have nothing to tell them apart: what counts is how many of them are on this side.
        had, has = Counter(rows[mine].tolist()), Counter(rows[stay][left].tolist())
        count += sum((has - had).values()) + sum((had - has - gone).values())
    return count


# Few different values, so that many rows are equal.
values = st.lists(st.integers(0, 30), min_size=40, max_size=120).map(np.array)


@settings(max_examples=100, deadline=None)
@given(rows=values, which=st.integers(0, 10**6))
def test_a_row_that_goes_moves_no_other(rows: Array, which: int) -> None:
    removed = np.arange(len(rows)) == which % len(rows)
    assert moved(by_unit, rows, removed) == 0


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(1, 8), min_size=40, max_size=60), which=st.integers(0, 10**6))
def test_a_group_that_goes_moves_no_other_and_is_never_on_both_sides(sizes: list[int], which: int) -> None:
    groups = np.random.default_rng(which).permutation(np.repeat(np.arange(len(sizes)), sizes))
    rows = np.arange(len(groups)) % 7
    train, test = by_unit(rows, groups)
    assert not set(groups[train]) & set(groups[test])
    assert sorted([*train, *test]) == list(range(len(rows)))
    assert moved(by_unit, rows, groups == which % len(sizes), groups) == 0


def test_the_cut_of_a_drawn_order_is_found_out() -> None:
    """The same check, on what the check is there to prevent."""
    rows = np.arange(300)
    assert moved(by_a_drawn_order, rows, rows == 100) > 20


def test_of_equal_rows_one_fewer_is_one_fewer_on_one_side() -> None:
    rows = np.array([1] * 60 + [2] * 60)
    whole, less = (by_unit(r, None) for r in (rows, rows[1:]))
    assert all(0 < (rows[test] == value).sum() < 30 for _, test in (whole,) for value in (1, 2))
    change = [len(a) - len(b) for a, b in zip(whole, less, strict=True)]
    assert sorted(change) == [0, 1]


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5, 0.9])
def test_the_test_side_has_about_its_fraction(fraction: float) -> None:
    rows = np.arange(4000)
    _, test = divide(simulated(test_fraction=fraction), rows, rows, classification=False)
    assert len(test) == pytest.approx(4000 * fraction, abs=4 * (4000 * fraction * (1 - fraction)) ** 0.5)


def test_the_cut_follows_from_the_key_and_not_from_the_order_of_rows() -> None:
    rows = np.arange(400)
    cuts = [
        divide(source, rows, rows, classification=False)[1]
        for source in (Source(), Source(split_key=b"a"), simulated(0), simulated(1), simulated(0, index=0))
    ]
    assert np.array_equal(cuts[2], cuts[4])
    assert len({tuple(test) for test in cuts}) == 4
    turned = rows[::-1].copy()
    assert set(turned[divide(Source(), turned, turned, classification=False)[1]]) == set(cuts[0])


def test_simulated_nodes_cut_by_keys_of_their_own() -> None:
    names = unit_names(np.arange(400))
    one, other = (cut(simulated(0, index), names)[1] for index in (0, 1))
    assert not np.array_equal(one, other)


def test_in_a_simulation_the_site_has_no_say() -> None:
    """Whoever repeats a simulation gets the same cut, whatever secrets the nodes have by then."""
    names = unit_names(np.arange(100))
    share = simulated(3).share
    first, second = (cut(Source(share=share, split_key=key), names)[1] for key in (b"a", b"b"))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_too_few_rows_are_refused(rows: int) -> None:
    with pytest.raises(DataError, match="too few") as caught:
        divide(Source(), np.arange(rows), np.arange(rows), classification=False)
    assert "dozens" in caught.value.hint


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(2, 12), seed=st.integers(0, 2**40), fraction=st.floats(0.001, 0.999))
def test_a_tiny_simulated_site_has_both_sides(rows: int, seed: int, fraction: float) -> None:
    train, test = cut(simulated(seed, test_fraction=fraction), unit_names(np.arange(rows)))
    assert sorted([*train, *test]) == list(range(rows))
    assert len(train) > 0
    assert len(test) > 0


def test_one_group_cannot_be_cut_even_there() -> None:
    with pytest.raises(DataError, match="20 rows of 1 units"):
        cut(simulated(), unit_names(groups=np.zeros(20, int)))


def test_a_split_key_is_not_printed() -> None:
    assert "secret" not in repr(Source(split_key=b"secret"))
