"""When a flush of single sites has enough of them. No clock, no I/O.

A flush is open for whoever is done: it closes when `wanted` sites are there, or when so many are there that it may be
opened and these have waited long enough for more. It never closes below that, and never waits for a particular site.
"""

from __future__ import annotations


class Filling:
    """One flush, from when it opens."""

    def __init__(self, *, wanted: int, flush_after: float | None) -> None:
        self._wanted = wanted
        self._flush_after = flush_after
        self._since: float | None = None  # when there were enough to open it

    def is_full(self, *, there: int, lacking: int, now: float) -> bool:
        """Whether it closes now, with so many there, and so many fewer than may be opened."""
        if lacking > 0:
            return False
        if self._since is None:
            self._since = now
        late = self._flush_after is not None and now - self._since >= self._flush_after
        return there >= self._wanted or late

    def closes_in(self, *, now: float) -> float | None:
        """Seconds until it closes with those who are there; None where it waits for more of them."""
        if self._since is None or self._flush_after is None:
            return None
        return max(0.0, self._since + self._flush_after - now)
