"""Weights: whatever stays hidden, nobody holds more than half of a cohort."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import DataError
from secure_fl.protect.weights import WEIGHT_UNITS, quantise_weight, weight_floor
from tests.library.laws import law

samples = st.integers(1, 10**9)
references = st.none() | st.integers(1, 10**9)
minima = st.integers(3, 256)


@law
@given(minima, references, st.data())
def test_no_node_holds_more_than_half_of_any_cohort(
    min_cohort: int, reference: int | None, data: st.DataObject
) -> None:
    size = data.draw(st.integers(min_cohort, min(256, min_cohort + 5)))
    # The worst case: everybody but one is tiny. Then whatever else there may be.
    counts = data.draw(st.just([1] * (size - 1) + [10**12]) | st.lists(samples, min_size=size, max_size=size))
    weights = [quantise_weight(count, reference_samples=reference, min_cohort=min_cohort) for count in counts]
    assert 2 * max(weights) <= sum(weights)


@law
@given(samples, samples, references, minima)
def test_more_samples_never_weigh_less(one: int, other: int, reference: int | None, min_cohort: int) -> None:
    fewer, more = sorted((one, other))
    assert quantise_weight(fewer, reference_samples=reference, min_cohort=min_cohort) <= quantise_weight(
        more, reference_samples=reference, min_cohort=min_cohort
    )


@law
@given(samples, references, minima)
def test_weights_lie_between_the_floor_and_one(count: int, reference: int | None, min_cohort: int) -> None:
    weight = quantise_weight(count, reference_samples=reference, min_cohort=min_cohort)
    assert 0 < weight_floor(min_cohort) <= weight <= WEIGHT_UNITS


@given(minima)
def test_the_floor_is_the_smallest_that_suffices(min_cohort: int) -> None:
    floor = weight_floor(min_cohort)
    assert (min_cohort - 1) * floor >= WEIGHT_UNITS  # the others together weigh one at least
    assert (min_cohort - 1) * (floor - 1) < WEIGHT_UNITS


@pytest.mark.parametrize(
    ("count", "weight"), [(1, 32), (49, 32), (50, 32), (51, 33), (75, 48), (100, 64), (101, 64), (10**9, 64)]
)
def test_weights_are_proportional_within_their_bounds(count: int, weight: int) -> None:
    assert quantise_weight(count, reference_samples=100, min_cohort=3) == weight


def test_without_a_reference_everybody_counts_the_same() -> None:
    assert {quantise_weight(n, reference_samples=None, min_cohort=3) for n in (1, 10, 10**9)} == {WEIGHT_UNITS}


@pytest.mark.parametrize("count", [0, -1])
def test_a_site_without_samples_has_no_weight(count: int) -> None:
    with pytest.raises(DataError):
        quantise_weight(count, reference_samples=None, min_cohort=3)
