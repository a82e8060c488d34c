"""When a flush of single sites closes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from secure_fl.study.filling import Filling

arrivals = st.lists(st.floats(0, 100), min_size=1, max_size=12).map(sorted)


@given(arrivals, st.integers(1, 6), st.integers(0, 6), st.none() | st.floats(0.1, 50))
def test_a_flush_closes_with_enough_and_waits_for_nobody_in_particular(
    times: list[float], least: int, more: int, flush_after: float | None
) -> None:
    """Replayed at every arrival, and at every moment that the flush itself asks for."""
    filling, there, closed = Filling(wanted=least + more, flush_after=flush_after), 0, None
    for now in times:
        soon = filling.closes_in(now=times[max(0, there - 1)])
        if soon is not None and closed is None:
            moment = times[max(0, there - 1)] + soon
            if moment <= now and filling.is_full(there=there, lacking=max(0, least - there), now=moment):
                closed = (there, moment)
        there += 1
        if closed is None and filling.is_full(there=there, lacking=max(0, least - there), now=now):
            closed = (there, now)
    if closed is None:
        assert there < least + more
        return
    count, moment = closed
    assert count >= least  # never below what may be opened
    enough = times[least - 1]  # when there were enough
    if count < least + more:
        assert flush_after is not None
        assert moment - enough >= flush_after * (1 - 1e-9)
    elif flush_after is not None:
        assert moment <= enough + flush_after + 1e-9 or moment == times[count - 1]


def test_enough_that_do_not_fit_together_are_not_enough() -> None:
    filling = Filling(wanted=3, flush_after=1.0)
    assert not filling.is_full(there=4, lacking=1, now=0.0)
    assert filling.closes_in(now=9.0) is None
    assert not filling.is_full(there=2, lacking=0, now=10.0)  # wanted: 3; the clock begins now
    assert filling.is_full(there=2, lacking=0, now=11.0)
