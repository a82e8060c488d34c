"""One round: the attempts it takes until what it asks for is opened.

A round of whoever is there has one attempt after the other, each with the sites that are ready. A round of circles has
an attempt for each circle, side by side: one that misses a member delays its own circle alone, and the round goes on
when the circles that can come have come. Nothing is lost by another attempt: sites keep what they trained for a round.

But where the sites of a sum may change, what they trained leaves them once. If an attempt fails after they were asked
for it, the round comes to nothing, and the next one begins from the same model.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.attempt import AttemptRunner
from coordinator.attempts import OpenAttempts, vanished
from coordinator.gathering import Gathering
from coordinator.merging import CircleSums
from coordinator.shared_model import SharedModel
from coordinator.store import Attempt
from secure_fl.errors import (
    CohortTooSmallError,
    LateMessageError,
    ProtectionError,
    RoundError,
    StudyAbortedError,
    WrongSharesError,
)
from secure_fl.protect.contract import Opened, OpenedSums
from secure_fl.results.record import CircleRound
from secure_fl.rounds import RoundKind
from secure_fl.study.circles import Circle
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.threads import in_thread_whole
from secure_fl.transport.pace import deadline_seconds

log = logging.getLogger(__name__)

_LOOK_AGAIN = 0.25
_LONGEST_PAUSE = 30.0  # between two attempts of a circle that keep failing


def pause(tried: int) -> float:
    """Seconds before a circle's next attempt: none after the first, which a restart may have cost, then longer."""
    return min(_LONGEST_PAUSE, 2.0 ** min(tried - 2, 10)) if tried > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What a round opened, in which attempts, and which circles it did without."""

    opened: Opened
    attempts: Sequence[AttemptRunner]  # those that opened it, or the one that came to nothing
    tried: int  # of the circle that needed most
    circles: tuple[CircleRound, ...] = ()
    given_up: Sequence[AttemptRunner] = ()  # of circles that did not come
    failure: RoundError | None = None  # why nothing was opened, where nothing was

    def require_opened(self) -> None:
        """Raise why nothing was opened, where nothing was."""
        if self.failure is not None:
            raise self.failure


class Round(Protocol):
    """A round to be run once."""

    async def run(self, under_way: Sequence[Attempt]) -> RoundResult:
        """Go on with what was under way, or begin. Raises `StudyAbortedError`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundServices:
    """What a round uses of its study."""

    resolved: ResolvedStudy
    attempts: OpenAttempts
    gathering: Gathering
    model: SharedModel

    def deadline(self, kind: RoundKind) -> float:
        """Seconds that a circle is waited for once another one has opened: training, and its later phases."""
        limits, size = self.resolved.study.rounds, 4 * self.model.layout.size
        later = len(self.resolved.phases(kind)) - 1
        return deadline_seconds(limits.deadline, size) + later * deadline_seconds(limits.phase_deadline, size)


class GatheredRound:
    """Whoever is there takes part."""

    def __init__(self, services: RoundServices, number: int, kind: RoundKind, *, tried: int) -> None:
        self._services = services
        self._number = number
        self._kind = kind
        self._tried = tried

    async def run(self, under_way: Sequence[Attempt]) -> RoundResult:
        """Attempt it until it opens; `StudyAbortedError` when the study's patience is used up."""
        services, waiting = self._services, list(under_way)
        own_pace = self._kind is RoundKind.TRAIN and services.resolved.study.rounds.by_sites
        while True:
            if not waiting and self._tried >= services.resolved.study.rounds.attempts:
                raise StudyAbortedError(
                    f"round {self._number} failed {self._tried} times",
                    advice="see the log for why; raise rounds.deadline or rounds.attempts in a new study",
                )
            if waiting:
                attempt = await services.attempts.resume(waiting.pop(), services.model)
                services.attempts.settle()
            else:
                services.attempts.settle()
                invited = await services.gathering.invited(also_absent=own_pace)
                attempt = await services.attempts.plan(self._number, self._kind, invited, services.model)
                self._tried += 1
            try:
                opened = await attempt.collect()
            except (CohortTooSmallError, ProtectionError) as error:
                services.gathering.vanished(attempt.vanished)
                if services.resolved.leaves_once(self._kind) and attempt.asked_for_updates:
                    return nothing(attempt, error, tried=self._tried)
                await services.attempts.void(attempt.plan, error)
            else:
                return RoundResult(opened=opened, attempts=(attempt,), tried=self._tried)


def nothing(attempt: AttemptRunner, error: RoundError, *, tried: int) -> RoundResult:
    """A round that opened nothing and is over all the same: its sites do not send again what they have sent."""
    blamed = error.blamed if isinstance(error, WrongSharesError) else {}
    opened = OpenedSums(blocks={}, cohort=(), blamed=blamed)
    return RoundResult(opened=opened, attempts=(attempt,), tried=tried, failure=error)


@dataclass(slots=True)
class _Progress:
    """How far one circle is."""

    circle: Circle
    attempt: AttemptRunner | None = None  # under way, or the one that opened
    opened: bool = False
    alone_since: float | None = None  # since when a member has been gone from the attempt under way
    tried: int = 0
    reason: str = ""  # why the last attempt failed


class CirclesRound:
    """Whole circles take part, each at its own pace."""

    def __init__(self, services: RoundServices, number: int, kind: RoundKind) -> None:
        self._services = services
        self._number = number
        self._kind = kind
        resolved = services.resolved
        self._circles = [_Progress(circle) for circle in resolved.circles_in(kind)]
        self._sums = CircleSums(resolved.codec, robust=resolved.study.protection.robust != "none")
        self._adding = asyncio.Lock()
        protection = resolved.study.protection
        robust = protection.robust != "none" and kind is RoundKind.TRAIN
        self._fewest = 2 * protection.colluders + 1 if robust else 1  # circles without which there is no mean
        self._limits = resolved.study.rounds

    async def run(self, under_way: Sequence[Attempt]) -> RoundResult:
        """Until the circles that can come have come. Raises `StudyAbortedError` where for too long none can."""
        started = asyncio.get_running_loop().time()
        for plan in under_way:
            attempt = await self._services.attempts.resume(plan, self._services.model)
            started = min(started, attempt.began)
            mine = next(progress for progress in self._circles if progress.circle == tuple(sorted(plan.invited)))
            mine.attempt = attempt
        self._services.attempts.settle()
        self._services.gathering.announce()
        tasks = [asyncio.create_task(self._open(progress)) for progress in self._circles]
        try:
            await self._wait(tasks, started)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return await self._result()

    async def _wait(self, tasks: Sequence[asyncio.Task[None]], started: float) -> None:
        loop = asyncio.get_running_loop()
        deadline, patience = started + self._services.deadline(self._kind), started + self._patience()
        pending = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, timeout=_LOOK_AGAIN, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # A disk that failed, or whatever else is not the circle's own trouble.
            if self._kind is RoundKind.TRAIN and not any(progress.opened for progress in self._circles):
                self._services.gathering.require_budgets([progress.circle for progress in self._circles])
            some = sum(progress.opened for progress in self._circles) >= self._fewest
            if some and not any(self._worth_waiting(progress, started, deadline) for progress in self._circles):
                return
            if not some and loop.time() > patience:
                raise StudyAbortedError(
                    f"round {self._number}: too few circles could be opened",
                    advice="see the log for why; sites that cannot take part say so in their own logs",
                )

    def _patience(self) -> float:
        """How long any is waited for. A finished model waits for its last measurement no longer than for training."""
        longer = self._limits.gather if self._kind is RoundKind.EVALUATE else self._limits.patience
        return self._services.deadline(self._kind) + longer

    def _worth_waiting(self, progress: _Progress, started: float, deadline: float) -> bool:
        """Whether a circle may still open in this round, as far as one can see."""
        now, gathering = asyncio.get_running_loop().time(), self._services.gathering
        if progress.opened or now > deadline or self._hopeless(progress):
            return False
        if progress.attempt is not None:
            if not progress.attempt.vanished:
                progress.alone_since = None
                return True
            if progress.alone_since is None:
                progress.alone_since = now
            return now < progress.alone_since + self._limits.gather
        if missing := gathering.missing(progress.circle):
            return now < started + self._limits.gather and not missing <= gathering.given_up
        return progress.tried < self._limits.attempts

    def _hopeless(self, progress: _Progress) -> bool:
        """Whether a member has no privacy budget left for training. A measurement costs none."""
        exhausted = self._services.gathering.exhausted
        return self._kind is RoundKind.TRAIN and bool(exhausted.intersection(progress.circle))

    async def _open(self, progress: _Progress) -> None:
        """Attempt one circle until it opens."""
        services = self._services
        while True:
            if progress.attempt is None:
                await services.gathering.members(progress.circle)
                asked = services.model.asked(self._number - 1) if self._kind is RoundKind.TRAIN else ()
                progress.attempt = await services.attempts.plan(
                    self._number, self._kind, progress.circle, services.model, asked=asked
                )
            progress.tried += 1
            try:
                opened = await progress.attempt.collect()
                async with self._adding:
                    # Whole, also if the round ends just now: half a circle must not be in the model.
                    await in_thread_whole(self._add, progress, opened)
                return
            except (CohortTooSmallError, ProtectionError) as error:
                progress.reason = error.code
                services.gathering.vanished(progress.attempt.vanished)
                failed, progress.attempt = progress.attempt, None
                await services.attempts.void(failed.plan, error)
            # At once after a restart; a site that cannot take part is asked again less and less often.
            await asyncio.sleep(pause(progress.tried))

    def _add(self, progress: _Progress, opened: Opened) -> None:
        self._sums.add(opened)
        progress.opened, progress.reason = True, ""

    async def _result(self) -> RoundResult:
        opened = [progress.attempt for progress in self._circles if progress.opened and progress.attempt]
        waiting = [attempt for attempt in self._services.attempts if attempt not in opened]
        for attempt in waiting:
            await self._services.attempts.void(
                attempt.plan, LateMessageError("the round is over, and this circle was not complete")
            )
        self._services.gathering.vanished(vanished(waiting))
        self._services.gathering.look()
        return RoundResult(
            opened=self._sums.total(),
            attempts=opened,
            tried=max(progress.tried for progress in self._circles),
            circles=tuple(
                CircleRound(
                    members=progress.circle, opened=progress.opened, attempts=progress.tried, reason=progress.reason
                )
                for progress in self._circles
            ),
            given_up=waiting,
        )
