"""Weights: whatever stays hidden, nobody stands out in a sum."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.encoding.integers import BlockSum
from secure_fl.encoding.metrics import METRICS_BLOCK
from secure_fl.encoding.weights import WEIGHT_UNITS, quantise_weight, weight_floor, whole_weight
from secure_fl.errors import DataError
from secure_fl.protect.release.guard import check_release
from tests.protect.laws import law

samples = st.integers(1, 10**9)
references = st.none() | st.integers(1, 10**9)


@st.composite
def minima(draw: st.DrawFn) -> dict[str, int]:
    """A minimum cohort that is safe against its colluders."""
    colluders = draw(st.integers(0, 20))
    return {"min_cohort": draw(st.integers(max(3, colluders + 2), 256)), "colluders": colluders}


@law
@given(minima(), references, st.data())
def test_nobody_stands_out_among_the_honest_of_any_cohort(
    minimum: dict[str, int], reference: int | None, data: st.DataObject
) -> None:
    size = data.draw(st.integers(minimum["min_cohort"], min(256, minimum["min_cohort"] + 5)))
    # The worst case: everybody but one is tiny. Then whatever else there may be.
    counts = data.draw(st.just([1] * (size - 1) + [10**12]) | st.lists(samples, min_size=size, max_size=size))
    weights = sorted(quantise_weight(count, reference_samples=reference, **minimum) for count in counts)
    honest = weights[minimum["colluders"] :]  # the lightest ones collude: the largest stands out most
    assert 2 * honest[-1] ** 2 <= sum(weight**2 for weight in honest)
    assert 2 * max(weights) <= sum(weights)


@given(minima())
def test_the_guard_agrees(minimum: dict[str, int]) -> None:
    size, floor = minimum["min_cohort"], weight_floor(**minimum)
    if size > 12 or minimum["colluders"] > 2:
        return
    row = [[WEIGHT_UNITS] + [floor] * (size - 1)]
    assert check_release(row, colluders=minimum["colluders"], opened_at="coordinator").leverage <= Fraction(1, 2)


@law
@given(samples, samples, references, minima())
def test_more_samples_never_weigh_less(one: int, other: int, reference: int | None, minimum: dict[str, int]) -> None:
    fewer, more = sorted((one, other))
    assert quantise_weight(fewer, reference_samples=reference, **minimum) <= quantise_weight(
        more, reference_samples=reference, **minimum
    )


@law
@given(samples, references, minima())
def test_weights_lie_between_the_floor_and_one(count: int, reference: int | None, minimum: dict[str, int]) -> None:
    weight = quantise_weight(count, reference_samples=reference, **minimum)
    assert 0 < weight_floor(**minimum) <= weight <= WEIGHT_UNITS


@given(minima())
def test_the_floor_is_the_smallest_that_suffices(minimum: dict[str, int]) -> None:
    others = minimum["min_cohort"] - minimum["colluders"] - 1
    floor = weight_floor(**minimum)
    assert others * floor**2 >= WEIGHT_UNITS**2
    assert others * (floor - 1) ** 2 < WEIGHT_UNITS**2


@pytest.mark.parametrize(
    ("count", "weight"), [(1, 32), (49, 32), (50, 32), (51, 33), (75, 48), (100, 64), (101, 64), (10**9, 64)]
)
def test_weights_are_proportional_within_their_bounds(count: int, weight: int) -> None:
    assert quantise_weight(count, reference_samples=100, min_cohort=6, colluders=1) == weight


def test_the_smallest_cohort_leaves_no_room_for_weights() -> None:
    assert {quantise_weight(n, reference_samples=10, min_cohort=3, colluders=1) for n in (1, 5, 100)} == {WEIGHT_UNITS}


def test_without_a_reference_everybody_counts_the_same() -> None:
    weights = {quantise_weight(n, reference_samples=None, min_cohort=9, colluders=1) for n in (1, 10, 10**9)}
    assert weights == {WEIGHT_UNITS}


@pytest.mark.parametrize("count", [0, -1])
def test_a_site_without_samples_has_no_weight(count: int) -> None:
    with pytest.raises(DataError):
        quantise_weight(count, reference_samples=None, min_cohort=3, colluders=1)


def test_what_all_sites_of_an_opened_sum_weigh() -> None:
    def block(weight: int, contributors: int) -> BlockSum:
        return BlockSum(total=np.zeros(1, np.int64), weight=weight, contributors=contributors)

    assert whole_weight({"layer": block(144, 3)}, sites=3) == 144
    assert whole_weight({"layer": block(96, 2), METRICS_BLOCK: block(144, 3)}, sites=3) == 144  # of more sites
    assert whole_weight({"layer": block(96, 2)}, sites=3) == 144  # The third counts as they do on average.
    assert whole_weight({}, sites=3) == 3 * 64
