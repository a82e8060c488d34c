"""From opened sums to the next version of the model: decode, step, commit, tell (docs/DATA_PATH.md, 13 and 14)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from coordinator.attempt import AttemptRunner, spool_name, upload_folder
from coordinator.attempts import OpenAttempts, vanished
from coordinator.bulk_files import BulkFiles
from coordinator.gathering import Gathering
from coordinator.left_out import LeftOutSites
from coordinator.recording import RoundFacts, record_round
from coordinator.rounds import RoundResult, nothing
from coordinator.shared_model import Decoded, OpenedTurn, SharedModel
from coordinator.store import Store, StoredModel
from coordinator.unbroken import Unbroken
from secure_fl.aggregation import Aggregate
from secure_fl.encoding.metrics import SiteMetrics
from secure_fl.errors import CohortTooSmallError, LateMessageError, ProtectionError, RoundError
from secure_fl.events import Listener, RoundCommitted, RoundVoid
from secure_fl.protect.contract import Opened
from secure_fl.results.record import RoundRecord
from secure_fl.rounds import RoundKind
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.threads import in_thread

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Makes versions of one study's model, one at a time."""

    resolved: ResolvedStudy
    store: Store
    files: BulkFiles
    model: SharedModel
    attempts: OpenAttempts
    gathering: Gathering
    left_out: LeftOutSites
    unbroken: Unbroken
    listener: Listener
    records: list[RoundRecord]  # the committed rounds; this adds to it
    save_record: Callable[[], None]

    async def publish(self, number: int, kind: RoundKind, result: RoundResult) -> None:
        """13. Decode what a round opened, and let the strategy step.

        Raises `CohortTooSmallError` or `ProtectionError` where it makes no model, and sites may be asked again.
        """
        await self._close(result, number)
        made = await self._made(kind, result, partial(self._step, kind, result.opened))
        await self._make(kind, *made, roster=tuple(self.resolved.study.study.roster), alone=True)

    async def merge(self, turns: Sequence[OpenedTurn], result: RoundResult, *, everybody: bool = False) -> None:
        """Make the next version of circles' turns, each of which began from a version of its own. Raises likewise.

        With `everybody` there is no other turn that goes on, and the record tells of all sites.
        """
        number = self.model.current.version + 1
        await self._close(result, number)
        made = await self._made(RoundKind.TRAIN, result, partial(self.model.merge, turns))
        roster = tuple(self.resolved.study.study.roster) if everybody else result.opened.cohort
        await self._make(RoundKind.TRAIN, *made, roster=roster, alone=everybody)

    async def _made(
        self, kind: RoundKind, result: RoundResult, step: Callable[[], tuple[Decoded, StoredModel | None]]
    ) -> tuple[RoundResult, Decoded, StoredModel | None]:
        """What `step` makes of a round; the same model again where nothing was opened, or nothing came of it."""
        try:
            result.require_opened()
            return result, *await in_thread(step)
        except (CohortTooSmallError, ProtectionError) as error:
            return self._nothing(kind, result, error), *await in_thread(self._unchanged)

    def _nothing(self, kind: RoundKind, result: RoundResult, error: RoundError) -> RoundResult:
        """What becomes of a round that made no model. Raises `error` where it can be attempted again.

        Where sites send once what they trained for a round, the next round begins from the same model.
        """
        if kind is not RoundKind.TRAIN or not self.resolved.leaves_once(kind):
            raise error
        (attempt,) = result.attempts
        log.warning("round %d came to nothing: %s", attempt.plan.number, error)
        self.listener(
            RoundVoid(
                study_id=self.resolved.id,
                round=attempt.plan.number,
                attempt=attempt.plan.attempt,
                reason=error.code,
            )
        )
        return nothing(attempt, error, tried=result.tried)

    def _unchanged(self) -> tuple[Decoded, StoredModel]:
        kept = self.model.layout.model.names
        return Decoded(means=Aggregate({}), metrics=SiteMetrics(), blocks_kept=kept), self.model.unchanged()

    async def _close(self, result: RoundResult, number: int) -> None:
        for attempt in result.attempts:
            await attempt.close(LateMessageError(f"round {number} attempt {attempt.plan.attempt} is over"))
        await self.left_out.add(number, result.opened.blamed)

    async def _make(
        self,
        kind: RoundKind,
        result: RoundResult,
        decoded: Decoded,
        stepped: StoredModel | None,
        *,
        roster: Sequence[str],
        alone: bool,
    ) -> None:
        """14. Commit the round and its model in one transaction; then tell."""
        record = record_round(
            RoundFacts.of(
                len(self.records) + 1,
                kind,
                result,
                metrics=decoded.metrics,
                blocks_kept=decoded.blocks_kept,
                arrived=await in_thread(_arrived, self.files, result.attempts),
                committed=self.attempts.now(),
            ),
            roster=roster,
            per_node=self.resolved.study.metrics.share == "per-node",
            measured=self.resolved.study.metrics.measured,
            left_out=self.left_out.names,
        )
        plans = [attempt.plan for attempt in result.attempts]
        # A stop cancels this task but not the transaction; it waits for it, so that both tell the same story.
        await self.unbroken.run(in_thread(self.store.commit_round, plans, record, stepped, alone=alone))
        # From here on the round is a fact; what follows can be lost and rebuilt.
        previous = self.model.current
        if stepped is not None:
            self.model.adopt(stepped)
        self.records.append(record)
        self.gathering.vanished(vanished(result.attempts))
        for plan in plans:
            self.attempts.end(plan, committed=True, reason="")
        await in_thread(self._tidy, result, previous)
        self.listener(RoundCommitted(study_id=self.resolved.id, record=record))

    def _step(self, kind: RoundKind, opened: Opened) -> tuple[Decoded, StoredModel | None]:
        training = kind is RoundKind.TRAIN
        decoded = self.model.decode(opened, training=training)
        if decoded.blocks_kept and not decoded.means:
            raise CohortTooSmallError(
                have=len(opened.cohort),
                need=self.resolved.study.min_cohort(self.resolved.request),
                what="every block",
            )
        return decoded, self.model.step(decoded.means) if training else None

    def _tidy(self, result: RoundResult, previous: StoredModel) -> None:
        """Drop what no node needs any more. The predecessor stays: a slow node may still be fetching it."""
        for attempt in result.attempts:
            attempt.erase()
        current = self.model.current
        bases = self.attempts.bases
        self.files.prune(
            newest=current.version,
            versions={current.version - 1, current.version, *bases},
            objects={
                self.model.first,
                previous.object,
                current.object,
                *(self.model.version(base).object for base in bases),
            },
        )
        self.save_record()


def _arrived(files: BulkFiles, attempts: Sequence[AttemptRunner]) -> dict[str, float]:
    """When each site's update was here, by the wall clock: its file tells, also after a restart. Blocks."""
    found: dict[str, float] = {}
    for attempt in attempts:
        # The update is the largest of what a site sends.
        for answer in sorted(attempt.answers, key=lambda answer: answer.header.bulk.size):
            header, folder = answer.header, upload_folder(attempt.plan)
            if header.bulk.size:
                upload = files.upload(folder, spool_name(answer.node, header), header.bulk)
                found[answer.node] = upload.path.stat().st_mtime
    return found
