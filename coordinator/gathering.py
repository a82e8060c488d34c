"""Who is there when a round begins."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from coordinator.left_out import LeftOutSites
from coordinator.pulse import Pulse
from coordinator.study_services import Sessions
from secure_fl.aggregation import RequestKind
from secure_fl.errors import BudgetsUsedUpError
from secure_fl.events import Listener, Waiting
from secure_fl.study.circles import Circle
from secure_fl.study.resolved import ResolvedStudy


class Gathering:
    """Waits for a study's sites before a round, and remembers who was not worth waiting for."""

    def __init__(self, resolved: ResolvedStudy, sessions: Sessions, listener: Listener, left_out: LeftOutSites) -> None:
        self._resolved = resolved
        self._left_out = left_out
        self._sessions = sessions
        self._listener = listener
        self._pulse = Pulse()
        self._missing: frozenset[str] = frozenset()
        self._met: frozenset[str] = frozenset()  # since this process began
        self._begun: float | None = None  # when the first round of this process did, by the loop's clock
        self._exhausted: frozenset[str] = frozenset()

    def changed(self) -> None:
        """A session came or went."""
        self._met |= self._ready()
        self._pulse.beat()

    def vanished(self, nodes: set[str]) -> None:
        """These left in the middle of a round: the next one does not wait for them."""
        self._missing |= nodes

    @property
    def given_up(self) -> frozenset[str]:
        """Who was missing before, and is not waited for again until it is back."""
        return self._missing

    def used_up(self, node: str) -> None:
        """A site has no privacy budget left for this study: it takes no further part, however long one waits."""
        self._exhausted |= {node}

    @property
    def exhausted(self) -> frozenset[str]:
        """Who has none left."""
        return self._exhausted

    def require_budgets(self, circles: Sequence[Circle]) -> None:
        """Raise `BudgetsUsedUpError` if no circle can ever be complete again."""
        if circles and all(self._exhausted.intersection(circle) for circle in circles):
            raise BudgetsUsedUpError(
                f"{', '.join(sorted(self._exhausted))}: the privacy budget is used up, and no circle is whole without",
                advice="the model of the rounds so far is there; a new study needs budgets that the sites still have",
            )

    def missing(self, circle: Circle) -> frozenset[str]:
        """Members of a circle that are not ready now."""
        return frozenset(circle) - self._ready()

    def look(self) -> None:
        """Note who is missing at the end of a round, and who is back.

        Where the coordinator was restarted in mid-round, the round may end before sites have dialled again: whoever has
        not been seen yet is missing only once it had the time.
        """
        now = asyncio.get_running_loop().time()
        absent = frozenset(self._resolved.study.study.roster) - self._ready()
        in_time = self._begun is not None and now < self._begun + self._resolved.study.rounds.gather
        self._missing = absent & self._met if in_time else absent

    def announce(self) -> None:
        """A round of circles begins: say so, if it does without somebody."""
        if self._begun is None:
            self._begun = asyncio.get_running_loop().time()
        roster, ready = self._resolved.study.study.roster, self._ready()
        if len(ready) < len(roster):
            self._tell(len(ready), minimum=self._resolved.study.min_cohort(RequestKind.SUM))

    async def members(self, circle: Circle) -> None:
        """Wait until a whole circle is ready, however long that takes."""
        while self.missing(circle):
            await self._pulse.next(1.0)

    def _ready(self) -> frozenset[str]:
        return self._sessions.ready(self._resolved.id) & self._resolved.study.study.roster.keys()

    def _tell(self, ready: int, *, minimum: int) -> None:
        roster = len(self._resolved.study.study.roster)
        self._listener(Waiting(study_id=self._resolved.id, ready=ready, roster=roster, minimum=minimum))

    async def invited(self, *, also_absent: bool = False) -> tuple[str, ...]:
        """Wait for the roster, but not again for a site that was missing before, and never below the minimum.

        Whoever is left out is not in it. Raises `StudyAbortedError` if too few are not. `also_absent`: whoever comes
        later takes part all the same, so that nobody is waited for once there are enough to begin.
        """
        study = self._resolved.study
        everybody = frozenset(study.study.roster)
        minimum = study.min_cohort(self._resolved.request)
        self._left_out.require_others(everybody, minimum=minimum)
        roster = everybody - self._left_out.names - self._exhausted
        if len(roster) < minimum:
            self.require_budgets([tuple(sorted(everybody))])
        loop = asyncio.get_running_loop()
        patience = loop.time() + study.rounds.gather
        told = False
        while True:
            ready = self._ready() & roster
            if len(ready) >= minimum and also_absent:
                self._missing = roster - ready
                return tuple(sorted(roster))
            if len(ready) >= minimum and (ready >= roster - self._missing or loop.time() >= patience):
                break
            if not told:
                told = True
                self._tell(len(ready), minimum=minimum)
            await self._pulse.next(max(0.05, min(1.0, patience - loop.time())))
        self._missing = roster - ready
        return tuple(sorted(ready))
