"""Turns of circles: none is lost, none is merged twice, whatever the order in which circles come and go."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from secure_fl.study.turns import Pace, Turn, Turns


class Circles(RuleBasedStateMachine):
    """Circles begin, open, fail and are flushed in any order; a restart may come at any time."""

    @initialize(
        circles=st.integers(1, 4),
        turns=st.integers(1, 6),
        flushes=st.integers(1, 12),
        buffer=st.integers(1, 3),
        staleness=st.none() | st.integers(0, 3),
        flush_after=st.none() | st.just(2.0),
    )
    def start(
        self, circles: int, turns: int, flushes: int, buffer: int, staleness: int | None, flush_after: float | None
    ) -> None:
        self.pace = Pace(turns=turns, flushes=flushes, buffer=buffer, staleness=staleness, flush_after=flush_after)
        self.count = circles
        self.turns = Turns(circles, self.pace)
        self.now = 0.0
        self.under_way: dict[int, Turn] = {}
        self.resting: list[Turn] = []
        self.merged: list[Turn] = []
        self.dropped: list[Turn] = []
        self.retired: set[int] = set()
        self.version = 0

    @rule(circle=st.integers(0, 3))
    def begins(self, circle: int) -> None:
        turn = self.turns.begin(circle % self.count)
        if turn is None:
            return
        assert turn.circle not in self.under_way
        assert turn.circle not in {resting.circle for resting in self.resting}
        assert turn.base == self.version, "from the newest version"
        assert 1 <= turn.number <= self.pace.turns
        assert turn.circle not in self.retired
        self.under_way[turn.circle] = turn

    @rule(circle=st.integers(0, 3), later=st.floats(0, 3))
    def opens(self, circle: int, later: float) -> None:
        self.now += later
        turn = self.under_way.pop(circle % self.count, None)
        if turn is None:
            return
        assert self.turns.opened(turn, now=self.now) is not self.is_stale(turn)
        (self.dropped if self.is_stale(turn) else self.resting).append(turn)

    def is_stale(self, turn: Turn) -> bool:
        return self.pace.staleness is not None and self.version - turn.base > self.pace.staleness

    @rule(later=st.floats(0, 3), meanwhile=st.none() | st.integers(0, 3))
    def flushes(self, later: float, meanwhile: int | None) -> None:
        """A version takes time to make: `meanwhile` another circle may open."""
        self.now += later
        due = self.turns.due(now=self.now)
        if not due:
            return
        assert list(due) == self.resting, "all that rest, oldest first"
        assert not any(map(self.is_stale, due))
        if meanwhile is not None:
            self.opens(meanwhile, 0.0)
        late = self.turns.flushed(due)
        self.merged += due
        self.version += 1
        self.resting = [turn for turn in self.resting if turn not in due]
        assert list(late) == [turn for turn in self.resting if self.is_stale(turn)]
        self.dropped += late
        self.resting = [turn for turn in self.resting if turn not in late]

    @rule(circle=st.integers(0, 3))
    def is_given_up(self, circle: int) -> None:
        """One of its sites will never be back. What it has under way may still open, or come to nothing."""
        self.retired.add(circle % self.count)
        self.turns.retire(circle % self.count)

    @rule(circle=st.integers(0, 3))
    def comes_to_nothing(self, circle: int) -> None:
        turn = self.under_way.get(circle % self.count)
        if turn is not None and (self.is_stale(turn) or turn.circle in self.retired):
            self.turns.given_up(self.under_way.pop(turn.circle))
            self.dropped.append(turn)

    @rule()
    def restarts(self) -> None:
        """What was opened and not flushed is under way again: it is opened anew from what was stored."""
        taken: dict[int, int] = {}
        for turn in (*self.merged, *self.dropped):
            taken[turn.circle] = max(taken.get(turn.circle, 0), turn.number)
        for turn in self.resting:
            self.under_way[turn.circle] = turn
        self.resting.clear()
        self.turns = Turns(self.count, self.pace)
        self.turns.resume(version=self.version, taken=taken, under_way=self.under_way.values())
        for circle in self.retired:
            self.turns.retire(circle)

    @invariant()
    def nothing_is_lost_or_used_twice(self) -> None:
        if not hasattr(self, "turns"):
            return
        seen = [(turn.circle, turn.number) for turn in (*self.merged, *self.dropped, *self.resting)]
        assert len(seen) == len(set(seen))
        assert self.turns.version == self.version <= self.pace.flushes
        if self.version >= self.pace.flushes:
            assert self.turns.is_over
            assert not self.turns.due(now=self.now + 100)

    def teardown(self) -> None:
        """Left alone, circles take their turns until the study is over: it always ends."""
        if not hasattr(self, "turns"):
            return
        for _ in range(2 * self.count * self.pace.turns + 20):
            if self.turns.is_over:
                break
            for circle in range(self.count):
                turn = self.turns.under_way(circle) or self.turns.begin(circle)
                if turn is not None and circle not in self.retired:
                    self.turns.opened(turn, now=self.now)
            if due := self.turns.due(now=self.now + 10):
                self.turns.flushed(due)
        assert self.turns.is_over


Circles.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
TestCircles = Circles.TestCase


def test_a_slow_circle_holds_up_nobody() -> None:
    turns = Turns(2, Pace(turns=100, flushes=6))
    slow = turns.begin(0)
    assert slow is not None
    for version in range(5):
        fast = turns.begin(1)
        assert fast is not None
        assert fast.base == version
        turns.opened(fast, now=float(version))
        assert turns.due(now=float(version)) == (fast,)
        turns.flushed((fast,))
    assert turns.opened(slow, now=9.0)
    assert turns.due(now=9.0) == (slow,)
    turns.flushed((slow,))
    assert turns.is_over
    assert turns.version == 6


def test_a_buffer_waits_for_another_turn_but_not_for_ever() -> None:
    turns = Turns(2, Pace(turns=5, flushes=5, buffer=2, flush_after=30.0))
    first = turns.begin(0)
    assert first is not None
    turns.opened(first, now=0.0)
    assert turns.due(now=29.0) == ()
    assert turns.begin(0) is None, "what rests in the buffer is not overtaken by its own circle"
    assert turns.due(now=30.0) == (first,)


def test_a_turn_that_is_too_old_is_dropped_and_its_circle_begins_anew() -> None:
    turns = Turns(2, Pace(turns=9, flushes=9, staleness=1))
    slow = turns.begin(0)
    assert slow is not None
    for _ in range(2):
        fast = turns.begin(1)
        assert fast is not None
        turns.opened(fast, now=0.0)
        turns.flushed(turns.due(now=0.0))
    assert not turns.opened(slow, now=1.0)
    again = turns.begin(0)
    assert again == Turn(circle=0, number=2, base=2)


def test_a_turn_that_opens_while_a_version_is_made_is_dropped_if_that_makes_it_too_old() -> None:
    turns = Turns(2, Pace(turns=9, flushes=9, staleness=0))
    slow, fast = turns.begin(0), turns.begin(1)
    assert slow is not None
    assert fast is not None
    turns.opened(fast, now=0.0)
    due = turns.due(now=0.0)
    assert turns.opened(slow, now=0.0), "until the version is there it is fresh"
    assert turns.flushed(due) == (slow,)
    assert turns.begin(0) == Turn(circle=0, number=2, base=1)


def test_nothing_waits_for_a_circle_that_will_never_be_complete_again() -> None:
    turns = Turns(2, Pace(turns=2, flushes=9, buffer=2))
    lost, other = turns.begin(0), turns.begin(1)
    assert lost is not None
    assert other is not None
    turns.opened(other, now=0.0)
    assert turns.due(now=0.0) == ()
    turns.retire(0)
    assert turns.due(now=0.0) == (other,)
    turns.flushed((other,))
    assert not turns.is_over, "the other circle has a turn left"
    last = turns.begin(1)
    assert last is not None
    turns.opened(last, now=1.0)
    turns.flushed(turns.due(now=1.0))
    assert turns.is_over, "although the lost circle's turn is still under way"


def test_a_turn_ends_once() -> None:
    turns = Turns(1, Pace(turns=2, flushes=2))
    turn = turns.begin(0)
    assert turn is not None
    turns.opened(turn, now=0.0)
    with pytest.raises(ValueError, match="another turn"):
        turns.opened(turn, now=0.0)


def test_the_first_turn_is_from_version_0_where_sites_trained_for_it_when_they_declared() -> None:
    turns = Turns(2, Pace(turns=9, flushes=9), declared=True)
    for _ in range(2):
        turn = turns.begin(0)
        assert turn is not None
        assert turn.base == turns.version
        turns.opened(turn, now=0.0)
        turns.flushed([turn])
    # The other circle was not complete until now.
    assert turns.begin(1) == Turn(circle=1, number=1, base=0)
