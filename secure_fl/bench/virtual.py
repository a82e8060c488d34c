"""Time that is reckoned instead of waited for: how fast simulated sites are, and a clock that jumps to what is next.

A site's part in a turn takes as long as it downloads, trains and uploads. Nothing here looks at the time of day, so
that a busy machine simulates the same seconds as an idle one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar, get_args

import numpy as np

from secure_fl.errors import SettingsError

Event = TypeVar("Event")
Kind: TypeAlias = Literal["even", "tenth", "spread"]

KINDS: tuple[Kind, ...] = get_args(Kind)
_UP, _DOWN = 0.25e6, 1.25e6  # bytes a second: 2 Mbit/s up, 10 Mbit/s down
_SLOW = 5.0  # "tenth": how many times longer one site in ten trains
_WIDEST = 8.0  # "spread": from the fastest to the slowest


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How fast a site is. `slowness` is how many times longer than the quickest it trains."""

    slowness: float = 1.0
    up: float = _UP  # bytes a second
    down: float = _DOWN

    def __post_init__(self) -> None:
        if not min(self.slowness, self.up, self.down) > 0:  # Written so that NaN is refused too.
            raise SettingsError("a site's slowness and bandwidths are above 0")

    def seconds(self, *, training: float, received: int, sent: int) -> float:
        """What one turn takes here: `training` seconds at slowness 1, and bytes in both directions."""
        return received / self.down + training * self.slowness + sent / self.up


def profiles(kind: Kind, sites: int, seed: int) -> tuple[Profile, ...]:
    """One profile for each site.

    even    all alike
    tenth   one site in ten, drawn from the seed, trains five times longer
    spread  training and bandwidths differ by up to eight times, each by itself, evenly by their logarithms
    """
    if kind not in KINDS:
        raise SettingsError(f"there is no profile {kind!r}", advice="use " + ", ".join(KINDS))
    rng = np.random.default_rng([seed, 1])
    if kind == "even":
        return (Profile(),) * sites
    if kind == "tenth":
        slow = set(rng.permutation(sites)[: max(1, sites // 10)].tolist())
        return tuple(Profile(slowness=_SLOW if site in slow else 1.0) for site in range(sites))
    drawn = _WIDEST ** rng.random((sites, 3))
    return tuple(Profile(slowness=float(a), up=_UP / float(b), down=_DOWN / float(c)) for a, b, c in drawn)


class Clock(Generic[Event]):
    """What happens when. Of two events at the same time, the one that was announced first comes first."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = 0
        self._events: list[tuple[float, int, Event]] = []

    def __bool__(self) -> bool:
        """Whether anything is still to come."""
        return bool(self._events)

    def after(self, seconds: float, event: Event) -> None:
        """Something happens so many seconds from now."""
        if not seconds >= 0:  # Written so that NaN is refused too.
            raise ValueError("nothing happens in the past")
        heapq.heappush(self._events, (self.now + seconds, self._order, event))
        self._order += 1

    def next(self) -> Event:
        """Go on to the next event."""
        self.now, _, event = heapq.heappop(self._events)
        return event
