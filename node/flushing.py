"""One node in one attempt at a flush, where sites join at their own pace (`rounds.unit = "site"`).

The data's path is that of `node.attempt`. What differs is when: training is not the attempt's own. It goes on when the
attempt ends without this site, and what came of it enters the next one.
"""

from __future__ import annotations

from dataclasses import replace

from node.attempt import Participation
from node.carried import CarriedWork, OngoingTraining
from node.charge import Charge
from node.giving import Giving
from node.kept import KeptUpdate
from node.site_services import SiteServices
from node.store import StudyStore
from secure_fl.protect.contract import RoundContext
from secure_fl.protect.versions import Version
from secure_fl.randomness import KeyStream
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.threads import in_thread_whole
from secure_fl.transport.wire import round_kind


def participation(
    services: SiteServices,
    resolved: ResolvedStudy,
    store: StudyStore,
    announcement: pb.PhaseAnnouncement,
    ongoing: OngoingTraining,
) -> Participation:
    """A node in an announced attempt. Raises `SecureFLError` for an announcement that makes no sense."""
    if not resolved.study.rounds.by_sites:
        return Participation(services, resolved, store, announcement)
    kind = SiteParticipation if round_kind(announcement.kind) is RoundKind.TRAIN else ClosingParticipation
    return kind(services, resolved, store, announcement, ongoing)


class ClosingParticipation(Participation):
    """Takes part in one attempt at measuring the finished model, after the last flush."""

    def __init__(
        self,
        services: SiteServices,
        resolved: ResolvedStudy,
        store: StudyStore,
        announcement: pb.PhaseAnnouncement,
        ongoing: OngoingTraining,
    ) -> None:
        super().__init__(services, resolved, store, announcement)
        self._ongoing = ongoing

    async def _contribute(self) -> None:
        """Nobody takes any more what is being trained. Known only now: an announcement may be a lie until checked."""
        self._ongoing.cancel()
        await self._ongoing.ended()
        await super()._contribute()


class SiteParticipation(Participation):
    """Takes part in one attempt at a flush, with whatever work is ready."""

    def __init__(
        self,
        services: SiteServices,
        resolved: ResolvedStudy,
        store: StudyStore,
        announcement: pb.PhaseAnnouncement,
        ongoing: OngoingTraining,
    ) -> None:
        super().__init__(services, resolved, store, announcement)
        self._carried = CarriedWork(resolved, store)
        self._ongoing = ongoing
        self._trained = 0  # the flush that what is sent was trained in
        self._made_from: Version | None = None
        self._told: tuple[Version, ...] = ()
        self._planned: Charge | None = None  # for a training of this attempt's own

    def _check(self, announcement: pb.PhaseAnnouncement) -> None:
        super()._check(announcement)
        self._carried.meet(announcement)
        self._carried.learn(announcement)

    async def _contribute(self) -> None:
        """Work that is ready enters; otherwise the training under way is waited for, or one begins."""
        kept = await in_thread_whole(self._carried.entered, *self.key)
        while kept is None:
            waiting = await in_thread_whole(self._carried.waiting, *self.key)
            if waiting is None:
                await self._ongoing.done(self.key, self._work)
            else:
                kept = await in_thread_whole(self._join, waiting)
        self._trained, self._made_from = kept.trained, kept.made_from
        self._told = await in_thread_whole(self._carried.told, self._number - 1)
        try:
            if self._planned is not None and kept.trained == self._number:
                self._charge = self._planned
            else:  # Planned, and counted, when it was trained.
                await in_thread_whole(self._charge.reserve, {}, repeats=True, trained=kept.trained)
            half, metrics = await in_thread_whole(self._encoded_half, kept), kept.metrics
            del kept  # Its integers go as they are protected.
            await self._protect_and_send(half, metrics)
        except BaseException as error:
            await in_thread_whole(self._charge.give_back, error)
            raise

    async def _work(self) -> None:
        """Train from the newest version, and keep what comes of it; also if this attempt ends meanwhile."""
        charge = self._new_charge()
        try:
            found, received = await self._prepare()
            await in_thread_whole(charge.reserve, found, repeats=False)
            await in_thread_whole(self._keep_update, await self._train(received, found, charge))
            self._planned = charge
        except BaseException as error:
            await in_thread_whole(charge.give_back, error)
            raise
        finally:
            await in_thread_whole(self._store.clear_scratch, *self.key)

    def _save(self, kept: KeptUpdate) -> None:
        self._carried.keep(replace(kept, trained=self._number))

    def _join(self, waiting: KeptUpdate) -> KeptUpdate:
        """7. Weigh the work by its age, as it enters this flush in every attempt."""
        self._store.fix_base(self._number, self._first.model.digest)
        stream = KeyStream(self._services.randomness(self._study.study.name, str(self._number), "joining").bytes(32))
        return self._carried.joining(waiting, self._context(), stream=stream)

    def _giving(self, context: RoundContext) -> Giving:
        return replace(
            super()._giving(context), made_from=self._made_from, told=self._told, agreed=self._carried.agreed
        )

    def _spend(self, header: pb.UploadHeader, pledged: int) -> None:
        self._carried.leaves(self._trained)
        super()._spend(header, pledged)

    def _tidy(self, number: int) -> None:
        # What a site keeps between rounds bears the number of the training that made it, not of the flush it entered.
        super()._tidy(self._trained or number)

    async def _clear(self) -> None:
        if not self._ongoing.holds(self.key):
            await super()._clear()
