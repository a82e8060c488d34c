"""Rounds in which circles do not wait for each other: each takes its turns, and a flush makes the next version.

What may happen next is decided by `secure_fl.study.turns`. Here it is carried out: every turn is an attempt in the
store before it is announced, an opened turn stays one until the transaction of its flush, so that a coordinator that
is killed anywhere goes on with the same turns and uses none of them twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coordinator.attempt import AttemptRunner
from coordinator.publication import Publication
from coordinator.pulse import Pulse
from coordinator.rounds import RoundResult, RoundServices, pause
from coordinator.shared_model import OpenedTurn
from coordinator.store import Store, StoredTurn
from secure_fl.encoding.metrics import require_range
from secure_fl.errors import (
    BudgetExceededError,
    CohortTooSmallError,
    ProtectionError,
    RoundError,
    StaleTurnError,
    StudyAbortedError,
)
from secure_fl.events import TurnBegun
from secure_fl.protect.contract import Opened, OpenedSums
from secure_fl.results.record import CircleRound
from secure_fl.rounds import RoundKind
from secure_fl.study.circles import Circle
from secure_fl.study.turns import Turn, Turns
from secure_fl.threads import in_thread

log = logging.getLogger(__name__)

_LOOK_AGAIN = 0.25
_LONGEST_REST = 3600.0  # of a circle whose turns keep failing


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An opened turn in the buffer."""

    opened: Opened
    attempt: AttemptRunner
    tried: int
    seconds: float


@dataclass(slots=True)
class _Buffer:
    """What rests until the next flush."""

    waiting: dict[Turn, _Waiting] = field(default_factory=dict)
    lost: list[CircleRound] = field(default_factory=list)  # turns that came to nothing, for the next version's record


class BufferedRounds:
    """All training of a study, from wherever it stands to its last flush."""

    def __init__(self, services: RoundServices, publication: Publication, store: Store) -> None:
        self._services = services
        self._publication = publication
        self._store = store
        study = services.resolved.study
        self._limits = study.rounds
        self._sites = len(study.study.roster)
        self._circles: tuple[Circle, ...] = services.resolved.circles_in(RoundKind.TRAIN)
        pace, declared = study.rounds.pace(study.study.rounds), services.resolved.division.declares
        self._turns = Turns(len(self._circles), pace, declared=declared)
        self._buffer = _Buffer()
        self._asked: dict[Turn, tuple[str, ...]] = {}  # what a turn asks for, in every attempt
        self._attempts: dict[Turn, AttemptRunner] = {}  # under way
        self._failures: Counter[int] = Counter()  # by circle: turns in a row that its sites failed in
        self._pulse = Pulse()
        self._failed = 0  # flushes in a row that made no model
        self._last_opened = 0.0

    async def run(self) -> None:
        """Until the last flush is committed. Raises `StudyAbortedError` where for too long nothing can be opened."""
        if await self._is_trained():
            return
        resumed = await self._resume()
        self._services.attempts.settle()
        self._services.gathering.announce()
        self._last_opened = asyncio.get_running_loop().time()
        tasks = [
            asyncio.create_task(self._take_turns(index, resumed.get(index))) for index in range(len(self._circles))
        ]
        try:
            await self._flush_until_over(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for attempt in self._services.attempts:
            await self._services.attempts.let_go(attempt, "the study's last flush is done")

    # --- where the study stands -------------------------------------------------------------------------------

    async def _is_trained(self) -> bool:
        """Whether the closing evaluation has begun: what is under way is then its business."""
        under_way = await in_thread(self._store.open_attempts, self._services.resolved.id)
        kinds = {record.kind for record in self._publication.records} | {plan.kind for plan in under_way}
        return not kinds <= {RoundKind.TRAIN}

    async def _resume(self) -> dict[int, AttemptRunner | None]:
        """Circles' turns from the store; by circle, what was under way (None: a turn whose last attempt failed)."""
        taken, self._asked = stand(await in_thread(self._store.turns, self._services.resolved.id), self._circles)
        version = self._services.model.current.version
        self._turns.resume(version=version, taken=taken, under_way=self._asked)
        index = {circle: place for place, circle in enumerate(self._circles)}
        found: dict[int, AttemptRunner | None] = {turn.circle: None for turn in self._asked}
        for plan in await in_thread(self._store.open_attempts, self._services.resolved.id):
            attempt = await self._services.attempts.resume(plan, self._services.model)
            found[index[tuple(sorted(plan.invited))]] = attempt
        return found

    # --- one circle -------------------------------------------------------------------------------------------

    async def _take_turns(self, circle: int, attempt: AttemptRunner | None) -> None:
        """One turn after the other, for as long as there are any."""
        while not self._turns.is_over:
            turn = self._turns.under_way(circle)
            if turn is None:
                # What keeps failing may be mended in an hour: a circle does not use its turns up in a minute.
                await asyncio.sleep(pause_after_turns(self._failures[circle]))
                # Not before: its turn would be as old as it has to wait for its sites.
                await self._services.gathering.members(self._circles[circle])
                turn = self._turns.begin(circle)
            if turn is None:
                await self._pulse.next(_LOOK_AGAIN)
                continue
            await self._take(turn, attempt)
            attempt = None

    async def _take(self, turn: Turn, attempt: AttemptRunner | None) -> None:
        """Attempt a turn until it is opened, and rests until it is flushed; or until it is given up."""
        services, members, tried, failed = self._services, self._circles[turn.circle], 0, 0
        while True:
            if attempt is None:
                await services.gathering.members(members)
                if self._turns.is_stale(turn) or self._turns.is_retired(turn.circle):
                    # Nobody trains for what would be dropped.
                    reason = StaleTurnError.code if self._turns.is_stale(turn) else BudgetExceededError.code
                    await in_thread(self._store.give_up_turn, services.resolved.id, turn.number, members)
                    self._given_up(turn, tried, reason)
                    return
                if turn not in self._asked:
                    self._asked[turn] = await in_thread(services.model.asked, turn.number - 1)
                attempt = await services.attempts.plan(
                    turn.number,
                    RoundKind.TRAIN,
                    members,
                    services.model,
                    version=turn.base,
                    asked=self._asked[turn],
                )
            tried += 1
            self._begun(turn, attempt)
            self._attempts[turn] = attempt
            if self._turns.is_stale(turn):  # It has become so since.
                attempt.give_up(_too_old(turn))
            loop = asyncio.get_running_loop()
            try:
                opened = await attempt.collect()
                await in_thread(self._require_range, opened)
                break
            except StaleTurnError as error:
                await self._void(attempt, error, last=True)
                self._given_up(turn, tried, error.code)
                return
            except (CohortTooSmallError, ProtectionError) as error:
                services.gathering.vanished(attempt.vanished)
                failed += not attempt.vanished
                # A site that was there and could not take part may be able to in the next turn, from a newer model.
                last = failed >= self._limits.attempts and self._turns.version > turn.base
                await self._void(attempt, error, last=last)
                if last:
                    self._failures[turn.circle] += 1
                    self._given_up(turn, tried, error.code)
                    return
                attempt = None
                await asyncio.sleep(pause(tried))
            finally:
                self._attempts.pop(turn, None)
        self._last_opened = loop.time()
        self._failures.pop(turn.circle, None)
        waiting = _Waiting(opened, attempt, tried, loop.time() - attempt.began)
        if self._turns.opened(turn, now=loop.time()):
            self._buffer.waiting[turn] = waiting
        else:
            await self._drop(turn, waiting)
        self._asked.pop(turn, None)
        self._pulse.beat()

    async def _void(self, attempt: AttemptRunner, error: RoundError, *, last: bool = False) -> None:
        """What came to nothing was sent all the same: it counts in the next record of each site."""
        await self._services.attempts.void(attempt.plan, error, last=last)
        self._services.attempts.count_later(attempt)  # Now: what was still arriving has arrived, or was refused.

    def _given_up(self, turn: Turn, tried: int, reason: str) -> None:
        """The circle is free again."""
        self._turns.given_up(turn)
        self._note_lost(turn, tried, reason, asked=self._asked.pop(turn, ()))
        self._pulse.beat()

    async def _drop(self, turn: Turn, opened: _Waiting) -> None:
        """A turn was opened, but too many versions were made in between."""
        error = _too_old(turn)
        await self._void(opened.attempt, error, last=True)
        self._note_lost(turn, opened.tried, error.code, asked=opened.attempt.plan.asked, opened=opened)

    def _note_lost(
        self, turn: Turn, tried: int, reason: str, *, asked: tuple[str, ...], opened: _Waiting | None = None
    ) -> None:
        """The next version's record tells of it."""
        self._buffer.lost.append(
            CircleRound(
                members=self._circles[turn.circle],
                opened=False,
                attempts=tried,
                reason=reason,
                turn=turn.number,
                base=turn.base,
                staleness=self._turns.version - turn.base,
                seconds=None if opened is None else opened.seconds,
                began=None if opened is None else opened.attempt.plan.started,
                asked=asked,
            )
        )

    def _begun(self, turn: Turn, attempt: AttemptRunner) -> None:
        services, plan = self._services, attempt.plan
        services.attempts.tell(
            TurnBegun(
                study_id=plan.study_id,
                turn=turn.number,
                attempt=plan.attempt,
                version=turn.base,
                sites=self._circles[turn.circle],
            )
        )

    def _require_range(self, opened: Opened) -> None:
        """A mean beyond the clip is impossible for sites that follow the rules: such a turn is not merged."""
        if not isinstance(opened, OpenedSums):
            raise ProtectionError("a circle opens a sum")
        for name, block in opened.blocks.items():
            require_range(name, block, self._services.resolved.codec)

    # --- flushes ----------------------------------------------------------------------------------------------

    async def _flush_until_over(self, tasks: list[asyncio.Task[None]]) -> None:
        loop, gathering = asyncio.get_running_loop(), self._services.gathering
        patience = self._services.deadline(RoundKind.TRAIN) + self._limits.patience
        while not self._turns.is_over:
            for task in tasks:
                if task.done():
                    task.result()  # A disk that failed, or whatever else is not a circle's own trouble.
            if due := self._turns.due(now=loop.time()):
                await self._flush(due)
                continue
            gathering.require_budgets(self._circles)
            for index, circle in enumerate(self._circles):
                if gathering.exhausted.intersection(circle) and not self._turns.is_retired(index):
                    log.warning("the circle of %s trains no more: a site's privacy budget is used up", circle[0])
                    self._turns.retire(index)
            if loop.time() > self._last_opened + patience:
                if resting := tuple(self._buffer.waiting):
                    # Whoever these waited for does not come. They are no longer in its way, nor it in theirs.
                    self._last_opened = loop.time()
                    await self._flush(resting)
                    continue
                if self._turns.version:
                    # The model is there; that circles are gone for good is no reason to lose the study.
                    log.warning("training ends with version %d: no circle could be opened", self._turns.version)
                    return
                raise StudyAbortedError(
                    "no circle could be opened for too long",
                    advice="see the log for why; sites that cannot take part say so in their own logs",
                )
            await self._pulse.next(_LOOK_AGAIN)
        if not self._turns.version:
            raise StudyAbortedError(
                "every circle has taken all its turns, and no version came of them",
                advice="see the log for why; a new study needs sites that can take part",
            )

    async def _flush(self, due: tuple[Turn, ...]) -> None:
        """One version of these turns, in one transaction."""
        resting = {turn: self._buffer.waiting.pop(turn) for turn in due}
        lost = tuple(self._buffer.lost)  # Others may be while the version is made.
        result = RoundResult(
            opened=_together([one.opened for one in resting.values()]),
            attempts=[one.attempt for one in resting.values()],
            tried=max(one.tried for one in resting.values()),
            circles=(*(self._recorded(turn, one) for turn, one in resting.items()), *lost),
        )
        turns = [
            OpenedTurn(
                turn=turn,
                opened=one.opened,
                share=len(self._circles[turn.circle]) / self._sites,
                asked=one.attempt.plan.asked,
            )
            for turn, one in resting.items()
        ]
        self._services.attempts.keep(self._turns.bases)
        try:
            await self._publication.merge(turns, result)
        except (CohortTooSmallError, ProtectionError) as error:
            # The turns are lost, and the model stays as it was. That this happens again and again ends the study.
            for turn, one in resting.items():
                await self._void(one.attempt, error, last=True)
                self._note_lost(turn, one.tried, error.code, asked=one.attempt.plan.asked, opened=one)
            self._turns.forget(due)
            self._failed += 1
            if self._failed >= self._limits.attempts:
                raise StudyAbortedError(
                    "what was opened made no model", advice="see the log for which blocks, and why"
                ) from error
            return
        self._failed = 0
        del self._buffer.lost[: len(lost)]
        for turn in self._turns.flushed(due):
            await self._drop(turn, self._buffer.waiting.pop(turn))
        for turn, attempt in self._attempts.items():
            if self._turns.is_stale(turn):
                attempt.give_up(_too_old(turn))  # Nobody trains on, or sends, what would be dropped.
        self._pulse.beat()

    def _recorded(self, turn: Turn, one: _Waiting) -> CircleRound:
        return CircleRound(
            members=self._circles[turn.circle],
            opened=True,
            attempts=one.tried,
            turn=turn.number,
            base=turn.base,
            staleness=self._turns.version - turn.base,
            seconds=one.seconds,
            began=one.attempt.plan.started,
            asked=one.attempt.plan.asked,
        )


def pause_after_turns(failed: int) -> float:
    """Seconds before a circle's next turn, after so many in a row in which its sites failed."""
    return min(_LONGEST_REST, 30.0 * 2.0 ** min(failed - 2, 10)) if failed > 1 else 0.0


def _too_old(turn: Turn) -> StaleTurnError:
    return StaleTurnError(f"a turn from version {turn.base} is too old to be merged")


def stand(
    stored: Iterable[StoredTurn], circles: Sequence[Circle]
) -> tuple[dict[int, int], dict[Turn, tuple[str, ...]]]:
    """By circle how many turns it has taken; and the turns under way, each with the blocks it asks for.

    A turn that was opened and not flushed is under way again: it is opened from what sites had uploaded.
    """
    index = {circle: place for place, circle in enumerate(circles)}
    taken: dict[int, int] = {}
    begun: dict[int, tuple[Turn, tuple[str, ...]]] = {}
    for attempt in stored:
        place = index[tuple(sorted(attempt.invited))]
        if attempt.taken:
            taken[place] = max(taken.get(place, 0), attempt.number)
        else:
            begun[place] = Turn(circle=place, number=attempt.number, base=attempt.base), attempt.asked
    return taken, {turn: asked for turn, asked in begun.values() if turn.number > taken.get(turn.circle, 0)}


def _together(opened: list[Opened]) -> Opened:
    """Who is in what is flushed together; the sums stay with their turns."""
    cohort = tuple(sorted(name for one in opened for name in one.cohort))
    blamed = {name: what for one in opened for name, what in one.blamed.items()}
    return Opened(cohort=cohort, blamed=blamed)
