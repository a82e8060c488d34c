"""Who is there when a round begins."""

from __future__ import annotations

import asyncio

from coordinator.attempt import Sessions
from coordinator.left_out import LeftOutSites
from coordinator.pulse import Pulse
from secure_fl.events import Listener, Waiting
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

    def changed(self) -> None:
        """A session came or went."""
        self._pulse.beat()

    def vanished(self, nodes: set[str]) -> None:
        """These left in the middle of a round: the next one does not wait for them."""
        self._missing |= nodes

    async def invited(self) -> tuple[str, ...]:
        """Wait for the roster, but not again for a site that was missing before, and never below the minimum.

        Whoever is left out is not in it. Raises `StudyAbortedError` if too few are not.
        """
        study = self._resolved.study
        everybody = frozenset(study.study.roster)
        minimum = study.min_cohort(self._resolved.request)
        self._left_out.require_others(everybody, minimum=minimum)
        roster = everybody - self._left_out.names
        loop = asyncio.get_running_loop()
        patience = loop.time() + study.rounds.gather
        told = False
        while True:
            ready = self._sessions.ready(self._resolved.id) & roster
            if len(ready) >= minimum and (ready >= roster - self._missing or loop.time() >= patience):
                break
            if not told:
                told = True
                self._listener(
                    Waiting(study_id=self._resolved.id, ready=len(ready), roster=len(roster), minimum=minimum)
                )
            await self._pulse.next(max(0.05, min(1.0, patience - loop.time())))
        self._missing = roster - ready
        return tuple(sorted(ready))
