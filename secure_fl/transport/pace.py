"""How long things may take on a line: transfers by their size, and pauses between tries."""

from __future__ import annotations

import random
from collections.abc import Callable

_SLOWEST_BYTES_PER_SECOND = 256 * 1024  # a very slow line
_FIXED_SECONDS = 60.0


def transfer_seconds(size: int) -> float:
    """How long one transfer of `size` bytes may take: a fixed part, and one that grows."""
    return _FIXED_SECONDS + size / _SLOWEST_BYTES_PER_SECOND


def deadline_seconds(agreed: float, size: int) -> float:
    """How long a phase may take in which up to `size` bytes move: what the study agreed on, and time to move them."""
    return agreed + size / (4 * _SLOWEST_BYTES_PER_SECOND)


class Backoff:
    """Pauses between tries: each twice as long as the one before, up to a longest, and never the same for two nodes."""

    def __init__(
        self, *, first: float = 0.25, longest: float = 30.0, jitter: Callable[[], float] = random.random
    ) -> None:
        self._first = first
        self._longest = longest
        self._jitter = jitter
        self.pause = first  # the next one, roughly

    def next(self) -> float:
        """The next pause. Jitter: a coordinator's nodes do not all knock at once."""
        pause = self.pause * (0.5 + self._jitter() / 2)
        self.pause = min(2 * self.pause, self._longest)
        return pause

    def reset(self) -> None:
        """It worked: begin again with the shortest."""
        self.pause = self._first
