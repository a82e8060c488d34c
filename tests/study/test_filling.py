"""When a flush of single sites closes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from secure_fl.study.filling import Filling

arrivals = st.lists(st.integers(0, 100), min_size=1, max_size=12).map(sorted)


def closing(times: list[int], least: int, wanted: int, flush_after: int | None) -> tuple[int, int] | None:
    """Whom a flush closes with, and when, if sites come at these times: asked at every whole second."""
    filling = Filling(wanted=wanted, flush_after=flush_after)
    for now in range(300):
        there = sum(time <= now for time in times)
        if filling.closes_in(there=there, lacking=max(0, least - there), now=now) <= 0:
            return there, now
    return None


@given(arrivals, st.integers(1, 6), st.integers(0, 6), st.none() | st.integers(1, 50))
def test_a_flush_closes_with_enough_and_waits_for_nobody_in_particular(
    times: list[int], least: int, more: int, flush_after: int | None
) -> None:
    closed = closing(times, least, least + more, flush_after)
    when = [times[least - 1] + flush_after] if flush_after is not None and len(times) >= least else []
    when += [times[least + more - 1]] if len(times) >= least + more else []
    if not when:
        assert closed is None
        return
    moment = min(when)  # So many wanted ones are there, or the fewest have waited long enough.
    assert closed == (sum(time <= moment for time in times), moment)
    assert closed[0] >= least  # never below what may be opened


@given(arrivals, st.integers(1, 6), st.integers(0, 6), st.none() | st.integers(1, 50), st.integers(0, 200))
def test_whoever_comes_late_changes_nothing(
    times: list[int], least: int, more: int, flush_after: int | None, late: int
) -> None:
    closed = closing(times, least, least + more, flush_after)
    if closed is not None and late > closed[1]:
        assert closing(sorted([*times, late]), least, least + more, flush_after) == closed


def test_enough_that_do_not_fit_together_are_not_enough() -> None:
    filling = Filling(wanted=3, flush_after=1.0)
    assert filling.closes_in(there=4, lacking=1, now=0.0) == math.inf
    assert filling.closes_in(there=2, lacking=0, now=10.0) == 1.0  # wanted: 3; the clock begins now
    assert filling.closes_in(there=2, lacking=0, now=10.5) == 0.5
    assert filling.closes_in(there=3, lacking=0, now=10.5) == 0.0
