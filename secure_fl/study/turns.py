"""When circles train and when what they opened is merged, where they do not wait for each other. No clock, no I/O.

Each circle takes one turn after the other: it trains from the newest version, and its sum is opened when its last
member has uploaded. Opened turns rest in a buffer until a flush makes the next version of them:

    free ─begin─► under way ─opened─► in the buffer ─flushed─► free
                     └──given up (too stale, or it keeps failing)──► free

A flush is due when enough turns are in the buffer, when the oldest has waited long enough, or when nobody is left who
could bring another. A circle has one turn at a time, so nobody is asked to train twice at once, and a slow circle never
holds up another one. A circle that can never be complete again is retired: nothing waits for it any more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One circle's turn: its number among the circle's own, from 1, and the version that the circle trains from."""

    circle: int
    number: int
    base: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What a study says about turns and flushes."""

    turns: int  # the most of any circle
    flushes: int  # with which the study ends
    buffer: int = 1  # turns that make a flush
    flush_after: float | None = None  # seconds that the first of them waits at most
    staleness: int | None = None  # versions that may be published between a turn's beginning and its flush


class Turns:
    """Where every circle is. Both a coordinator and a simulation are driven by it."""

    def __init__(self, circles: int, pace: Pace, *, declared: bool = False) -> None:
        """`declared`: sites trained for their first turn when they declared, and that was from version 0."""
        self.pace = pace
        self._declared = declared
        self.version = 0
        self._next = dict.fromkeys(range(circles), 1)  # by circle: the number of its next turn
        self._under_way: dict[int, Turn] = {}
        self._buffer: list[tuple[Turn, float]] = []  # with when each was opened
        self._retired: frozenset[int] = frozenset()

    def resume(self, *, version: int, taken: dict[int, int], under_way: Collection[Turn]) -> None:
        """Take up where a study stands: the current version, turns that circles have taken, and those under way."""
        self.version = version
        self._next.update({circle: number + 1 for circle, number in taken.items()})
        for turn in under_way:
            self._under_way[turn.circle] = turn
            self._next[turn.circle] = turn.number + 1

    @property
    def is_over(self) -> bool:
        """Whether there will be no further flush."""
        if self.version >= self.pace.flushes:
            return True
        return not self._buffer and not self._more_may_come()

    def retire(self, circle: int) -> None:
        """A circle can never be complete again. Nobody waits for its turn, and it begins no other."""
        self._retired |= {circle}

    def is_retired(self, circle: int) -> bool:
        """Whether nobody waits for a circle any more."""
        return circle in self._retired

    def under_way(self, circle: int) -> Turn | None:
        """A circle's turn that is not opened yet."""
        return self._under_way.get(circle)

    @property
    def bases(self) -> frozenset[int]:
        """The versions that turns under way, or in the buffer, began from."""
        return frozenset(turn.base for turn in (*self._under_way.values(), *(turn for turn, _ in self._buffer)))

    def begin(self, circle: int) -> Turn | None:
        """A free circle's next turn, from the newest version; None where it has taken all, or the study is over."""
        busy = circle in self._under_way or any(turn.circle == circle for turn, _ in self._buffer)
        if busy or self.is_over or circle in self._retired or self._next[circle] > self.pace.turns:
            return None
        number = self._next[circle]
        turn = Turn(circle=circle, number=number, base=0 if self._declared and number == 1 else self.version)
        self._next[circle] += 1
        self._under_way[circle] = turn
        return turn

    def opened(self, turn: Turn, *, now: float) -> bool:
        """A turn's sum is open: it waits for a flush, or is dropped because it is too stale. Returns which."""
        self._end(turn)
        if self.is_stale(turn):
            return False
        self._buffer.append((turn, now))
        return True

    def given_up(self, turn: Turn) -> None:
        """A turn came to nothing for good: it is too stale, keeps failing, or its circle is retired."""
        self._end(turn)

    def is_stale(self, turn: Turn) -> bool:
        """Whether too many versions were published since a turn began."""
        return self.pace.staleness is not None and self.version - turn.base > self.pace.staleness

    def due(self, *, now: float) -> tuple[Turn, ...]:
        """The turns that are flushed now, oldest first; none where it is worth waiting for more."""
        if not self._buffer or self.version >= self.pace.flushes:
            return ()
        waited = now - min(when for _, when in self._buffer)
        late = self.pace.flush_after is not None and waited >= self.pace.flush_after
        if len(self._buffer) < self.pace.buffer and not late and self._more_may_come():
            return ()
        return tuple(turn for turn, _ in self._buffer)

    def _more_may_come(self) -> bool:
        """Whether a circle that has nothing in the buffer may bring something."""
        out = self._retired | {turn.circle for turn, _ in self._buffer}
        return any(
            circle in self._under_way or number <= self.pace.turns
            for circle, number in self._next.items()
            if circle not in out
        )

    def flushed(self, turns: Collection[Turn]) -> tuple[Turn, ...]:
        """These have become the next version. Returns those that it made too stale: they came while it was made."""
        self.version += 1
        self.forget(turns)
        stale = tuple(turn for turn, _ in self._buffer if self.is_stale(turn))
        self.forget(stale)
        return stale

    def forget(self, turns: Collection[Turn]) -> None:
        """These came to nothing although they were opened."""
        self._buffer = [(turn, when) for turn, when in self._buffer if turn not in turns]

    def _end(self, turn: Turn) -> None:
        if self._under_way.get(turn.circle) != turn:
            raise ValueError(f"circle {turn.circle} is in another turn, or in none")
        del self._under_way[turn.circle]
