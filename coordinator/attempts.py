"""The attempts of a study that are under way: planned, announced, gone on with after a crash, ended.

Each step is committed before anybody hears of it. What is true of one attempt only is in `coordinator.attempt`; which
attempts a round makes is in `coordinator.rounds`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence

from coordinator.attempt import AttemptRunner, upload_folder
from coordinator.left_out import LeftOutSites
from coordinator.shared_model import SharedModel
from coordinator.store import Attempt
from coordinator.study_services import StudyServices
from coordinator.traffic import Traffic
from secure_fl.errors import LateMessageError, NotConnectedError, RoundError, SecureFLError, WrongSharesError
from secure_fl.events import Event, RoundResumed, RoundStarted, RoundVoid
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.context import round_context
from secure_fl.threads import in_thread, in_thread_whole

log = logging.getLogger(__name__)


class OpenAttempts:
    """Those of one study, by round and attempt."""

    def __init__(
        self,
        services: StudyServices,
        left_out: LeftOutSites,
        *,
        now: Callable[[], float],
    ) -> None:
        self._services = services
        self._left_out = left_out
        self._resolved = services.resolved
        self._now = now
        self._open: dict[tuple[int, int], AttemptRunner] = {}
        self._kept: frozenset[int] = frozenset()
        self._uncounted: dict[str, Traffic] = {}  # by node: bytes that are in no record yet
        self._settled = asyncio.Event()  # What the store remembers of attempts under way has been replayed.
        self._planning = asyncio.Lock()  # Attempts of several circles are numbered one after the other.

    def __iter__(self) -> Iterator[AttemptRunner]:
        return iter(list(self._open.values()))

    def keep(self, versions: Collection[int]) -> None:
        """Turns began from these, also such as have no attempt just now: the next one needs the same model."""
        self._kept = frozenset(versions)

    @property
    def bases(self) -> frozenset[int]:
        """The versions that attempts begin from, those under way and those that may follow."""
        return self._kept.union(attempt.plan.model_version for attempt in self)

    def now(self) -> float:
        """The wall clock, by which attempts are dated."""
        return self._now()

    def tell(self, event: Event) -> None:
        """Say what happens to whoever watches."""
        self._services.listener(event)

    def get(self, number: int, attempt: int) -> AttemptRunner | None:
        """The one with this number, if it is under way."""
        return self._open.get((number, attempt))

    async def addressed(self, node: str, number: int, attempt: int) -> AttemptRunner:
        """The one that a node's answer belongs to; `LateMessageError` for one that is over."""
        await self._settled.wait()  # A restarted coordinator first has to know again what it waits for.
        if (found := self._open.get((number, attempt))) is None:
            raise LateMessageError(f"{node}: round {number} attempt {attempt} is over")
        return found

    # --- begin --------------------------------------------------------------------------------------------------

    def unsettle(self) -> None:
        """Whoever sends something waits until what was under way has been replayed."""
        self._settled.clear()

    def settle(self) -> None:
        """Everything that was under way is here."""
        self._settled.set()

    async def plan(
        self,
        number: int,
        kind: RoundKind,
        invited: tuple[str, ...],
        model: SharedModel,
        *,
        version: int | None = None,
        asked: tuple[str, ...] = (),
    ) -> AttemptRunner:
        """1. Plan: who is invited, from which model and for which blocks; committed before it is announced.

        Without a version it is the current model, without blocks all of them.
        """
        self.settle()
        store = self._services.store
        async with self._planning:
            plan = Attempt(
                study_id=self._resolved.id,
                number=number,
                attempt=await in_thread(store.attempts, self._resolved.id, number) + 1,
                kind=kind,
                invited=invited,
                model_version=model.current.version if version is None else version,
                started=self._now(),
                asked=asked,
            )
            await in_thread_whole(store.begin_attempt, plan)
        attempt = self._runner(plan, model)
        attempt.traffic.update({node: self._uncounted.pop(node) for node in invited if node in self._uncounted})
        await attempt.begin()
        self._open[attempt.key] = attempt
        self._services.listener(
            RoundStarted(
                study_id=plan.study_id, round=number, attempt=plan.attempt, kind=kind, invited=len(plan.invited)
            )
        )
        return attempt

    def count_later(self, attempt: AttemptRunner) -> None:
        """An attempt has no record of its own: its bytes count in the next one of each site."""
        for node, traffic in attempt.traffic.items():
            before = self._uncounted.get(node, Traffic())
            self._uncounted[node] = Traffic(up=before.up + traffic.up, down=before.down + traffic.down)

    async def resume(self, plan: Attempt, model: SharedModel) -> AttemptRunner:
        """Go on with an attempt that was under way when the coordinator stopped."""
        # Only the wall clock spans two lives of the coordinator; a clock that was set back counts as no time at all.
        attempt = self._runner(plan, model, seconds=max(0.0, self._now() - plan.started))
        await attempt.replay()
        self._open[attempt.key] = attempt
        self._services.listener(RoundResumed(study_id=plan.study_id, round=plan.number, attempt=plan.attempt))
        return attempt

    def _runner(self, plan: Attempt, model: SharedModel, *, seconds: float = 0.0) -> AttemptRunner:
        version = model.version(plan.model_version)
        context = round_context(
            self._resolved,
            number=plan.number,
            attempt=plan.attempt,
            kind=plan.kind,
            base_model=version.digest,
            invited=plan.invited,
            shared=model.layout,
            asked=plan.asked,
        )
        return AttemptRunner(plan, self._services, model=model.reference(version), context=context, seconds=seconds)

    # --- end ----------------------------------------------------------------------------------------------------

    async def void(self, plan: Attempt, error: RoundError, *, last: bool = False) -> None:
        """An attempt came to nothing. `last`: so has its circle's turn."""
        log.warning("attempt %d is void: %s", plan.attempt, error)
        attempt = self._open.get((plan.number, plan.attempt))
        if attempt is not None:
            await attempt.close(LateMessageError(f"round {plan.number} attempt {plan.attempt} is over"))
        if isinstance(error, WrongSharesError):  # Before the attempt is over: the next one goes on without them.
            await self._left_out.add(plan.number, error.blamed)
        await in_thread(self._services.store.abort_attempt, plan, error.code, last=last)
        self.end(plan, committed=False, reason=error.code)
        await in_thread(self._services.files.clear_uploads, upload_folder(plan))
        self._services.listener(
            RoundVoid(study_id=plan.study_id, round=plan.number, attempt=plan.attempt, reason=error.code)
        )

    async def let_go(self, attempt: AttemptRunner, why: str) -> None:
        """An attempt is not needed any more: what it opened is kept elsewhere, or the study does without."""
        await attempt.close(LateMessageError(why))
        await in_thread(self._services.store.abort_attempt, attempt.plan, "")
        self.end(attempt.plan, committed=False, reason="")
        await in_thread(attempt.erase)

    def end(self, plan: Attempt, *, committed: bool, reason: str) -> None:
        """An attempt is over, here and for everybody who was invited."""
        self._open.pop((plan.number, plan.attempt), None)
        body = pb.RoundClosed(round=plan.number, attempt=plan.attempt, committed=committed, reason=reason)
        for node in plan.invited:
            self._services.sessions.send(node, pb.CoordinatorMessage(study_id=plan.study_id, round_closed=body))

    async def drop(self, error: SecureFLError) -> None:
        """Nothing enters any more, and what was entering has: a replay that overtook it would miss an answer."""
        for attempt in self:
            await attempt.close(error)
        await self._services.unbroken.ended()
        self._open.clear()

    async def replaying(self) -> None:
        """Forget everything, to replay it from the store."""
        self.unsettle()
        await self.drop(NotConnectedError("the round is being replayed"))


def vanished(attempts: Sequence[AttemptRunner]) -> set[str]:
    """Who left in the middle of these."""
    return set[str]().union(*(attempt.vanished for attempt in attempts))
