"""A study's rounds, from plan to publication. Reads as the data's path on this side (docs/DATA_PATH.md, 1, 13 and 14).

    plan round → [attempt: collect protected blocks → open aggregate] → strategy.step → publish global blocks

Each step is committed before anybody hears of it, so a coordinator that is killed anywhere resumes here. What is true
of one attempt only is in `coordinator.attempt`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

from coordinator.attempt import AttemptRunner, Sessions, StudyServices, upload_folder
from coordinator.bulk_files import BulkFiles
from coordinator.gathering import Gathering
from coordinator.recording import record_round, study_record
from coordinator.shared_model import Decoded, SharedModel
from coordinator.store import Attempt, Store, StoredModel
from coordinator.unbroken import Unbroken
from secure_fl import logs
from secure_fl.errors import (
    CohortTooSmallError,
    LateMessageError,
    NotConnectedError,
    ProtectionError,
    RoundError,
    SecureFLError,
    StudyAbortedError,
    StudyStoppedError,
)
from secure_fl.events import (
    Listener,
    Refused,
    RoundCommitted,
    RoundResumed,
    RoundStarted,
    RoundVoid,
    StudyEnded,
    ignore,
)
from secure_fl.protect.contract import Opened
from secure_fl.results.record import RoundRecord, StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.context import round_context
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.settings import Study
from secure_fl.threads import in_thread

log = logging.getLogger(__name__)


class StudyRunner:
    """Runs one study."""

    def __init__(
        self,
        study: Study,
        *,
        store: Store,
        folder: Path,
        sessions: Sessions,
        listener: Listener = ignore,
        now: Callable[[], float] = time.time,
        grace: float = 20.0,
    ) -> None:
        self.resolved = ResolvedStudy.of(study)
        self.study = study
        self.id = self.resolved.id
        self.outcome = "running"
        self.reason = ""
        self._store = store
        self._files = BulkFiles(folder)
        self._sessions = sessions
        self._listener = listener
        self._now = now
        self._folder = folder
        self._unbroken = Unbroken()
        self._services = StudyServices(
            resolved=self.resolved,
            store=store,
            files=self._files,
            sessions=sessions,
            listener=listener,
            unbroken=self._unbroken,
            grace=grace,
        )
        self._attempts: dict[tuple[int, int], AttemptRunner] = {}  # those that are open, by round and attempt
        self._settled = asyncio.Event()  # What the store remembers of attempts under way has been replayed.
        self._welcoming: set[asyncio.Task[None]] = set()
        self._gathering = Gathering(self.resolved, sessions, listener)
        self._records: list[RoundRecord] = []

    # --- the study --------------------------------------------------------------------------------------------

    async def run(self) -> StudyRecord:
        """Run to the end, from wherever the store says the study is. Raises `StudyAbortedError`."""
        self._settled.clear()
        await self._drop_attempts(NotConnectedError("the round is being replayed"))
        await self._unbroken.run(in_thread(self._load))
        try:
            while (number := len(self._records) + 1) <= self.study.study.rounds:
                with logs.about(round=number):
                    await self._round(number, RoundKind.TRAIN)
            if len(self._records) == self.study.study.rounds:
                await self._closing_evaluation()
        except StudyAbortedError as error:
            await self._end("aborted", error.code)
            raise
        await self._end("finished", "")
        return self.record()

    def _load(self) -> None:
        """The current model, or the first one from the study's seed, and the rounds so far."""
        self._store.add_study(self.id, self.resolved.canonical, now=self._now())
        self._model = SharedModel(self.resolved, self._store, self._files)
        self._records = list(self._store.records(self.id))
        # Killed between a commit and its tidying up, a coordinator left uploads that nobody will ask for.
        under_way = self._store.open_attempt(self.id)
        self._files.clear_uploads_but({upload_folder(under_way)} if under_way else set())

    async def _closing_evaluation(self) -> None:
        try:
            await self._round(self.study.study.rounds + 1, RoundKind.EVALUATE)
        except StudyAbortedError:
            # The model is there; only its last measurement is missing. That is no reason to lose the study.
            log.warning("the closing evaluation did not find enough sites")

    async def stop(self) -> None:
        """End the study early. The caller has cancelled `run`; committed rounds stay."""
        stopped = StudyStoppedError("the study lead stopped the study")
        await self._drop_attempts(LateMessageError(stopped.message))
        if not self.is_open:
            await in_thread(self._load)
        self._records = list(await in_thread(self._store.records, self.id))
        plan = await in_thread(self._store.open_attempt, self.id)
        if plan is not None:
            await self._void(plan, stopped)
        await in_thread(self._files.clear_uploads_but, set())
        if self.outcome == "running":
            await self._end("aborted", StudyStoppedError.code)

    async def _drop_attempts(self, error: SecureFLError) -> None:
        """Nothing enters any more, and what was entering has: a replay that overtook it would miss an answer."""
        for attempt in list(self._attempts.values()):
            await attempt.close(error)
        await self._unbroken.ended()
        self._attempts.clear()

    async def _end(self, outcome: str, reason: str) -> None:
        self.outcome, self.reason = outcome, reason
        # The record first: a study that has ended is not run again, so nobody would write it any more.
        await in_thread(self.record().save, self._folder / "record.json")
        await in_thread(self._store.end_study, self.id, state=outcome, reason=reason)
        self._listener(StudyEnded(study_id=self.id, outcome=outcome, reason=reason))
        for node in self.study.study.roster:
            self._sessions.send(node, self.closing_message())

    # --- what is known of it ------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the study's model and records are loaded."""
        return hasattr(self, "_model")

    @property
    def rounds_done(self) -> int:
        """Committed training rounds."""
        return sum(record.kind is RoundKind.TRAIN for record in self._records)

    def checkpoint(self) -> tuple[int, Path]:
        """The current version and its safetensors file."""
        model = self._store.model(self.id)
        if model is None:
            raise LateMessageError("the study has no model yet")
        return model.version, self._files.checkpoint(model.version)

    def object_path(self, digest: bytes) -> Path:
        """Where an object lies that nodes may download; `MalformedMessageError` when there is none."""
        return self._files.object_path(digest)

    def record(self) -> StudyRecord:
        """The study so far."""
        return study_record(
            self.resolved,
            outcome=self.outcome,
            reason=self.reason,
            parameters=self._model.parameters,
            shared_parameters=self._model.layout.model.size,
            rounds=tuple(self._records),
        )

    def recall(self, outcome: str, reason: str) -> None:
        """Take up how a study stands in the store. One that has ended is not loaded again, but its rounds are known."""
        self.outcome, self.reason = outcome, reason
        if outcome != "running":
            self._records = list(self._store.records(self.id))

    def known_record(self) -> StudyRecord | None:
        """The study so far; of one that ended before this process started, what it left on disk."""
        if self.is_open:
            return self.record()
        path = self._folder / "record.json"
        return StudyRecord.load(path) if path.exists() else None

    def closing_message(self) -> pb.CoordinatorMessage:
        """What a node is told about a study that is over."""
        body = pb.StudyClosed(finished=self.outcome == "finished", reason=self.reason)
        return pb.CoordinatorMessage(study_id=self.id, study_closed=body)

    # --- one round --------------------------------------------------------------------------------------------

    async def _round(self, number: int, kind: RoundKind) -> None:
        """Attempt a round until it commits; `StudyAbortedError` when the study's patience is used up."""
        while True:
            plan = await in_thread(self._store.open_attempt, self.id)
            tried = await in_thread(self._store.attempts, self.id, number)
            if plan is None and tried >= self.study.rounds.attempts:
                raise StudyAbortedError(
                    f"round {number} failed {tried} times",
                    advice="see the log for why; raise rounds.deadline or rounds.attempts in a new study",
                )
            try:
                if plan is None:
                    plan = await self._plan(number, kind, tried + 1)
                    attempt = await self._begin(plan)
                else:
                    attempt = await self._resume(plan)
                opened = await attempt.collect()
                await self._publish(attempt, opened)
            except (CohortTooSmallError, ProtectionError) as error:
                if plan is None:
                    raise
                await self._void(plan, error)
            else:
                return

    async def _plan(self, number: int, kind: RoundKind, attempt: int) -> Attempt:
        """1. Plan: who is invited, from which model; committed before it is announced."""
        self._settled.set()
        plan = Attempt(
            study_id=self.id,
            number=number,
            attempt=attempt,
            kind=kind,
            invited=await self._gathering.invited(),
            model_version=self._model.current.version,
            started=self._now(),
        )
        await in_thread(self._store.begin_attempt, plan)
        return plan

    async def _begin(self, plan: Attempt) -> AttemptRunner:
        attempt = self._attempt(plan)
        await attempt.begin()
        self._register(attempt)
        self._listener(
            RoundStarted(
                study_id=self.id, round=plan.number, attempt=plan.attempt, kind=plan.kind, invited=len(plan.invited)
            )
        )
        return attempt

    async def _resume(self, plan: Attempt) -> AttemptRunner:
        """Go on with an attempt that was under way when the coordinator stopped."""
        # Only the wall clock spans two lives of the coordinator; a clock that was set back counts as no time at all.
        attempt = self._attempt(plan, seconds=max(0.0, self._now() - plan.started))
        await attempt.replay()
        self._register(attempt)
        self._listener(RoundResumed(study_id=self.id, round=plan.number, attempt=plan.attempt))
        return attempt

    def _attempt(self, plan: Attempt, *, seconds: float = 0.0) -> AttemptRunner:
        version = self._model.version(plan.model_version)
        context = round_context(
            self.resolved,
            number=plan.number,
            attempt=plan.attempt,
            kind=plan.kind,
            base_model=version.digest,
            invited=plan.invited,
            shared=self._model.layout,
        )
        return AttemptRunner(
            plan, self._services, model=self._model.reference(version, self._records), context=context, seconds=seconds
        )

    def _register(self, attempt: AttemptRunner) -> None:
        self._attempts[attempt.key] = attempt
        self._settled.set()

    async def _publish(self, attempt: AttemptRunner, opened: Opened) -> None:
        """13.–14. Decode the sums, let the strategy step, and make the result the current model."""
        plan = attempt.plan
        await attempt.close(LateMessageError(f"round {plan.number} attempt {plan.attempt} is over"))
        decoded, stepped = await in_thread(self._step, plan, opened)
        record = record_round(
            attempt.facts(opened, metrics=decoded.metrics, blocks_kept=decoded.blocks_kept),
            roster=self.study.study.roster,
            per_node=self.study.metrics.share == "per-node",
        )
        # A stop cancels this task but not the transaction; it waits for it, so that both tell the same story.
        await self._unbroken.run(in_thread(self._store.commit_round, plan, record, stepped))
        # From here on the round is a fact; what follows can be lost and rebuilt.
        previous = self._model.current
        if stepped is not None:
            self._model.adopt(stepped)
        self._records.append(record)
        self._close(plan, committed=True, reason="")
        await in_thread(self._tidy, attempt, previous)
        self._listener(RoundCommitted(study_id=self.id, record=record))

    def _step(self, plan: Attempt, opened: Opened) -> tuple[Decoded, StoredModel | None]:
        training = plan.kind is RoundKind.TRAIN
        decoded = self._model.decode(opened, training=training)
        if decoded.blocks_kept and not decoded.means:
            raise CohortTooSmallError(
                have=len(opened.cohort), need=self.study.min_cohort(self.resolved.request), what="every block"
            )
        return decoded, self._model.step(decoded.means) if training else None

    async def _void(self, plan: Attempt, error: RoundError) -> None:
        log.warning("attempt %d is void: %s", plan.attempt, error)
        attempt = self._attempts.get((plan.number, plan.attempt))
        if attempt is not None:
            await attempt.close(LateMessageError(f"round {plan.number} attempt {plan.attempt} is over"))
        await in_thread(self._store.abort_attempt, plan, error.code)
        self._close(plan, committed=False, reason=error.code)
        await in_thread(attempt.erase if attempt is not None else partial(self._files.clear_uploads_but, set()))
        self._listener(RoundVoid(study_id=self.id, round=plan.number, attempt=plan.attempt, reason=error.code))

    def _close(self, plan: Attempt, *, committed: bool, reason: str) -> None:
        """An attempt is over, here and for everybody who was invited."""
        if (attempt := self._attempts.pop((plan.number, plan.attempt), None)) is not None:
            self._gathering.vanished(attempt.vanished)
        body = pb.RoundClosed(round=plan.number, attempt=plan.attempt, committed=committed, reason=reason)
        for node in plan.invited:
            self._sessions.send(node, pb.CoordinatorMessage(study_id=self.id, round_closed=body))

    def _tidy(self, attempt: AttemptRunner, previous: StoredModel) -> None:
        """Drop what no node needs any more. The predecessor stays, and what a site that was away has to go through."""
        attempt.erase()
        current = self._model.current
        under_way = list(self._attempts.values())
        self._files.prune(
            versions={current.version - 1, current.version, *(other.plan.model_version for other in under_way)},
            objects={previous.object, current.object, *self._model.earlier(current.version, self._records)}.union(
                *(other.objects for other in under_way)
            ),
        )
        self.record().save(self._folder / "record.json")

    # --- what the hub tells us --------------------------------------------------------------------------------

    def changed(self) -> None:
        """A session came or went."""
        self._gathering.changed()
        for attempt in self._attempts.values():
            attempt.changed()

    def joined(self, node: str) -> None:
        """A node has accepted the study, perhaps again: it is told what it should be doing."""
        self.changed()
        for attempt in self._attempts.values():
            task = asyncio.create_task(attempt.catch_up(node))
            self._welcoming.add(task)
            task.add_done_callback(self._welcoming.discard)

    def refused(self, node: str, reason: str) -> None:
        """A site's policy does not allow this study. The study lead sees that, and only the kind of reason."""
        self._listener(Refused(study_id=self.id, node=node, reason=reason))

    def sit_out(self, node: str, message: pb.SitOut) -> None:
        """A node will not take part in an attempt, and says why."""
        if (attempt := self._attempts.get((message.round, message.attempt))) is not None:
            attempt.sit_out(node, message.reason)

    async def receive(self, node: str, header: pb.UploadHeader, chunks: AsyncIterator[pb.Chunk]) -> bool:
        """Take one answer; returns whether it was there already. Raises for one that nobody waits for."""
        return await (await self._addressed(node, header.round, header.attempt)).receive(node, header, chunks)

    async def received(self, node: str, query: pb.UploadQuery) -> int:
        """How many bytes of an upload's bulk are here."""
        return (await self._addressed(node, query.round, query.attempt)).received(node, query.upload_id)

    async def _addressed(self, node: str, number: int, attempt: int) -> AttemptRunner:
        if self.outcome == "running":
            await self._settled.wait()  # A restarted coordinator first has to know again what it waits for.
        if (found := self._attempts.get((number, attempt))) is None:
            raise LateMessageError(f"{node}: round {number} attempt {attempt} is over")
        return found

    def count_download(self, node: str, digest: bytes, size: int) -> None:
        """Add to a node's traffic in the attempts that it downloads for."""
        for attempt in self._attempts.values():
            attempt.count_download(node, digest, size)
