"""A flush of single sites that do not wait for each other: whoever is done when it closes is in it.

Every flush is a round of whoever is there, announced to all. Its first phase ends when enough sites have work to give
(`secure_fl.study.filling`). Whoever is still training goes on, and joins a later flush with what it has.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.publication import Publication
from coordinator.rounds import GatheredRound, RoundResult, RoundServices
from coordinator.shared_model import OpenedTurn
from coordinator.store import Store
from secure_fl.results.record import CircleRound
from secure_fl.rounds import RoundKind
from secure_fl.study.turns import Turn
from secure_fl.threads import in_thread


class SiteFlush:
    """One flush, until it is committed."""

    def __init__(self, services: RoundServices, publication: Publication, store: Store, number: int) -> None:
        self._services = services
        self._publication = publication
        self._store = store
        self._number = number

    async def run(self) -> None:
        """Go on with what was under way, or begin. Raises `StudyAbortedError` when the study's patience is used up."""
        services, study_id = self._services, self._services.resolved.id
        under_way = await in_thread(self._store.open_attempts, study_id)
        tried = await in_thread(self._store.attempts, study_id, self._number)
        result = await GatheredRound(services, self._number, RoundKind.TRAIN, tried=tried).run(under_way)
        # Whatever comes of it is a version: what sites sent leaves them once, so that no flush is made again.
        await self._publication.merge([self._turn(result)], self._recorded(result), everybody=True)

    def _turn(self, result: RoundResult) -> OpenedTurn:
        """All sites as one circle that is never old: what is old weighs less already, at its site."""
        base = self._services.model.current.version
        share = len(result.opened.cohort) / len(self._services.resolved.study.study.roster)
        return OpenedTurn(
            turn=Turn(circle=0, number=self._number, base=base), opened=result.opened, share=min(1.0, share)
        )

    def _recorded(self, result: RoundResult) -> RoundResult:
        """With a line for each site: which version it trained from, and how many were published since."""
        newest = self._services.model.current.version
        sites = tuple(
            CircleRound(
                members=(site,),
                opened=True,
                attempts=result.tried,
                turn=base + 1,
                base=base,
                staleness=newest - base,
            )
            for site, base in sorted(result.opened.bases.items())
        )
        return replace(result, circles=sites)
