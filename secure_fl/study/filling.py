"""When a flush of single sites has enough of them. No clock, no I/O.

A flush is open for whoever is done: it closes when `wanted` sites are there, or when so many are there that it may be
opened and these have waited long enough for more. It never closes below that, and never waits for a particular site.
"""

from __future__ import annotations

import math


class Filling:
    """One flush, from when it opens."""

    def __init__(self, *, wanted: int, flush_after: float | None) -> None:
        self._wanted = wanted
        self._flush_after = math.inf if flush_after is None else flush_after
        self._since: float | None = None  # when there were enough to open it

    def closes_in(self, *, there: int, lacking: int, now: float) -> float:
        """Seconds until it closes if nobody else comes; infinity where it waits for more.

        So many sites are there, and so many are lacking before anything may be opened.
        """
        if lacking > 0:
            self._since = None  # Somebody came who knows another history: there are too few again.
            return math.inf
        if self._since is None:
            self._since = now
        if there >= self._wanted:
            return 0.0
        return max(0.0, self._since + self._flush_after - now)
