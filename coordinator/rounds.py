"""A study's rounds, from plan to publication. Reads as the data's path on this side (docs/DATA_PATH.md, 1 and 11–14).

    plan round → collect protected blocks → open aggregate → strategy.step → publish global blocks

Each step is committed before anybody hears of it, so a coordinator that is killed anywhere resumes here by
replaying the accepted messages through the same state machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

from coordinator.depot import BulkFile, Depot
from coordinator.machine import RoundMachine
from coordinator.recording import EVALUATE, TRAIN, RoundFacts, Traffic, record_round
from coordinator.shared_model import SharedModel
from coordinator.store import Attempt, Store, StoredAnswer
from secure_fl import logs
from secure_fl.errors import (
    CohortTooSmallError,
    ConflictingUploadError,
    LateMessageError,
    NotConnectedError,
    ProtectionError,
    RoundError,
    StorageError,
    StudyAbortedError,
    StudyStoppedError,
)
from secure_fl.events import Listener, ignore
from secure_fl.protect.base import Message, Opened, RoundContext
from secure_fl.record import RoundRecord, StudyRecord
from secure_fl.round_context import round_context
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study import Study
from secure_fl.wire import reference

T = TypeVar("T")

log = logging.getLogger(__name__)


class Sessions(Protocol):
    """The connected nodes, as the rounds see them."""

    def ready(self, study_id: str) -> frozenset[str]:
        """Nodes that are connected and accepted the study."""
        ...

    def send(self, node: str, message: pb.CoordinatorMessage) -> None:
        """Queue a message for a node; one that is not connected misses it and is told again on reconnecting."""
        ...


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
        self.study = study
        self.id = study.id
        self.depot = Depot(folder)
        self.outcome = "running"
        self.reason = ""
        self._store = store
        self._sessions = sessions
        self._listener = listener
        self._now = now
        self._grace = grace  # how long a node that vanished in mid-phase is waited for
        self._folder = folder
        self._strategy = study.make_strategy()
        self._protection = study.make_protection()
        self._lock = asyncio.Lock()  # one answer at a time enters the machine
        self._pulse = asyncio.Event()
        self._settled = asyncio.Event()  # what the store remembers of a round under way has been replayed
        self._attempt: Attempt | None = None
        self._machine: RoundMachine | None = None
        self._answers: dict[tuple[str, str], StoredAnswer] = {}
        self._began = 0.0  # on the loop's clock
        self._entering: set[asyncio.Task[Any]] = set()  # what a cancellation does not stop
        self._torn: StorageError | None = None  # why the machine knows an answer that the store does not
        self._traffic: dict[str, Traffic] = {}
        self._away_since: dict[str, float] = {}
        self._missing: frozenset[str] = frozenset()
        self._records: list[RoundRecord] = []

    # --- the study --------------------------------------------------------------------------------------------

    async def run(self) -> StudyRecord:
        """Run to the end, from wherever the store says the study is. Raises `StudyAbortedError`."""
        self._leave()
        self._settled.clear()
        if self._entering:  # of the life before; a replay that overtook them would miss an answer
            await asyncio.wait(self._entering)
        await self._whole(asyncio.to_thread(self._open))
        try:
            while (number := len(self._records) + 1) <= self.study.study.rounds:
                with logs.about(round=number):
                    await self._round(number, TRAIN)
            if len(self._records) == self.study.study.rounds:
                await self._closing_evaluation()
        except StudyAbortedError as error:
            await self._end("aborted", error.code)
            raise
        await self._end("finished", "")
        return self.record()

    @property
    def is_open(self) -> bool:
        """Whether the study's model and records are loaded."""
        return hasattr(self, "_model")

    @property
    def rounds_done(self) -> int:
        """Committed training rounds."""
        return sum(record.kind == TRAIN for record in self._records)

    def checkpoint(self) -> tuple[int, Path]:
        """The current version and its safetensors file."""
        model = self._store.model(self.id)
        if model is None:
            raise LateMessageError("the study has no model yet")
        return model.version, self.depot.checkpoint(model.version)

    def record(self) -> StudyRecord:
        """The study so far."""
        return StudyRecord(
            study=self.study.study.name,
            study_id=self.id,
            task=self.study.task.name,
            strategy=self.study.strategy.name,
            protection=self.study.protection.kind,
            planned_rounds=self.study.study.rounds,
            roster=tuple(self.study.study.roster),
            outcome=self.outcome,  # type: ignore[arg-type]
            reason=self.reason,
            parameters=self._model.parameters,
            shared_parameters=self._model.layout.model.size,
            combinations_opened=sum(record.combinations for record in self._records),
            rounds=tuple(self._records),
            settings=self.study.canonical().decode(),
        )

    def recall(self, outcome: str, reason: str) -> None:
        """Take up how a study stands in the store. One that has ended is not opened again, but its rounds are known."""
        self.outcome, self.reason = outcome, reason
        if outcome != "running":
            self._records = list(self._store.records(self.id))

    def known_record(self) -> StudyRecord | None:
        """The study so far; of one that ended before this process started, what it left on disk."""
        if self.is_open:
            return self.record()
        path = self._folder / "record.json"
        return StudyRecord.load(path) if path.exists() else None

    def _open(self) -> None:
        """Load the current model, or make the first one from the study's seed."""
        self._store.add_study(self.id, self.study.canonical(), now=self._now())
        self._model = SharedModel(self.study, self._strategy, self._store, self.depot)
        self._minimum = self.study.min_cohort(self._model.kind)
        self._records = list(self._store.records(self.id))

    async def _closing_evaluation(self) -> None:
        try:
            await self._round(self.study.study.rounds + 1, EVALUATE)
        except StudyAbortedError:
            # The model is there; only its last measurement is missing. That is no reason to lose the study.
            log.warning("the closing evaluation did not find enough sites")

    async def stop(self) -> None:
        """End the study early. The caller has cancelled `run`; committed rounds stay."""
        if self._entering:
            await asyncio.wait(self._entering)
        if not self.is_open:
            await asyncio.to_thread(self._open)
        self._records = list(await asyncio.to_thread(self._store.records, self.id))
        attempt = await asyncio.to_thread(self._store.open_attempt, self.id)
        if attempt is not None:
            await self._void(attempt, StudyStoppedError("the study lead stopped the study"))
        if self.outcome == "running":
            await self._end("aborted", "StudyStopped")

    async def _end(self, outcome: str, reason: str) -> None:
        self.outcome, self.reason = outcome, reason
        # The record first: a study that has ended is not run again, so nobody would write it any more.
        await asyncio.to_thread(self.record().save, self._folder / "record.json")
        await asyncio.to_thread(self._store.end_study, self.id, state=outcome, reason=reason)
        self._emit("study-ended", outcome=outcome, reason=reason)
        for node in self.study.study.roster:
            self._sessions.send(node, self.closing_message())

    def closing_message(self) -> pb.CoordinatorMessage:
        """What a node is told about a study that is over."""
        body = pb.StudyClosed(finished=self.outcome == "finished", reason=self.reason)
        return pb.CoordinatorMessage(study_id=self.id, study_closed=body)

    # --- one round --------------------------------------------------------------------------------------------

    async def _round(self, number: int, kind: str) -> None:
        """Attempt a round until it commits; `StudyAbortedError` when the study's patience is used up."""
        while True:
            attempt = await asyncio.to_thread(self._store.open_attempt, self.id)
            tried = await asyncio.to_thread(self._store.attempts, self.id, number)
            if attempt is None and tried >= self.study.rounds.attempts:
                raise StudyAbortedError(
                    f"round {number} failed {tried} times",
                    advice="see the log for why; raise rounds.deadline or rounds.attempts in a new study",
                )
            try:
                if attempt is None:
                    attempt = await self._plan(number, kind, tried + 1)
                    opened = None
                else:
                    opened = await self._replay(attempt)
                if opened is None:
                    opened = await self._collect(attempt)
                await self._publish(attempt, opened)
            except (CohortTooSmallError, ProtectionError) as error:
                await self._void(attempt, error)
            else:
                return

    async def _plan(self, number: int, kind: str, attempt_number: int) -> Attempt:
        """1. Plan: who is invited, from which model; committed before it is announced."""
        invited = await self._gather()
        attempt = Attempt(
            study_id=self.id,
            number=number,
            attempt=attempt_number,
            kind=kind,
            invited=invited,
            model_version=self._model.current.version,
            started=self._now(),
        )
        await asyncio.to_thread(self._store.begin_attempt, attempt)
        machine = await self._begun(attempt)
        self._enter(attempt, machine)
        self._emit("round-started", round=number, attempt=attempt_number, kind=kind, invited=len(invited))
        return attempt

    async def _begun(self, attempt: Attempt) -> RoundMachine:
        """The machine of an attempt, in its first phase."""
        earlier = await asyncio.to_thread(self._store.openings, attempt)
        machine = RoundMachine(self._protection, self._context(attempt), earlier)
        machine.begin()
        return machine

    async def _replay(self, attempt: Attempt) -> Opened | None:
        """Rebuild the machine of an attempt that was under way when the coordinator stopped."""
        log.info("resuming round %d, attempt %d", attempt.number, attempt.attempt)
        machine = await self._begun(attempt)
        answers = await asyncio.to_thread(self._store.answers, attempt)
        closed = await asyncio.to_thread(self._store.closed_phases, attempt)
        opened: Opened | None = None
        for phase in closed:
            await self._feed(machine, phase, answers)
            opened = await asyncio.to_thread(machine.close)
        if opened is None:
            await self._feed(machine, machine.phase, answers)
        # Only the wall clock spans two lives of the coordinator; a clock that was set back counts as no time at all.
        before = max(0.0, self._now() - attempt.started)
        self._enter(attempt, machine, {(answer.phase, answer.node): answer for answer in answers}, before)
        self._emit("round-resumed", round=attempt.number, attempt=attempt.attempt)
        return opened

    async def _feed(self, machine: RoundMachine, phase: str, answers: tuple[StoredAnswer, ...]) -> None:
        for answer in answers:
            if answer.phase == phase:
                bulk = self.depot.upload(_spool_name(answer.node, answer.header), answer.header.bulk.sha256)
                message = Message(body=answer.header.payload.body)
                await asyncio.to_thread(machine.accept, answer.node, phase, message, bulk)

    async def _collect(self, attempt: Attempt) -> Opened:
        """11.–12. Collect answers phase by phase, then open."""
        machine = self._require_machine()
        position = len(await asyncio.to_thread(self._store.closed_phases, attempt))
        while True:
            if machine.opens:
                await asyncio.to_thread(self._store.keep_opening, attempt, machine.opens)
            for node in sorted(machine.waiting):
                # In a thread: a message may be a combination, formed as it is asked for.
                if (announcement := await asyncio.to_thread(self.catch_up, node)) is not None:
                    self._sessions.send(node, announcement)
            begun = asyncio.get_running_loop().time()
            await self._wait_for_answers(machine, self._deadline(position))
            await self._wait_for_holders(machine)
            self._emit("phase-closed", phase=machine.phase, seconds=asyncio.get_running_loop().time() - begun)
            async with self._lock:
                self._require_whole()
                await asyncio.to_thread(self._store.close_phase, attempt, position, machine.phase)
                opened = await asyncio.to_thread(machine.close)
            if opened is not None:
                return opened
            position += 1

    async def _publish(self, attempt: Attempt, opened: Opened) -> None:
        """13.–14. Decode the sums, let the strategy step, and make the result the current model."""
        decoded = self._model.decode(opened, training=attempt.kind == TRAIN)
        if decoded.blocks_kept and not decoded.means:
            raise CohortTooSmallError(have=len(opened.cohort), need=self._minimum, what="every block")
        stepped = await asyncio.to_thread(self._model.step, decoded.means) if attempt.kind == TRAIN else None
        record = record_round(
            RoundFacts(
                attempt=attempt,
                opened=opened,
                left=self._require_machine().left,
                answers=self._answers.values(),
                traffic=self._traffic,
                metrics=decoded.metrics,
                blocks_kept=decoded.blocks_kept,
                seconds=asyncio.get_running_loop().time() - self._began,
            ),
            roster=self.study.study.roster,
            per_node=self.study.metrics.share == "per-node",
        )
        # A stop cancels this task but not the transaction; it waits for it, so that both tell the same story.
        commit = asyncio.to_thread(self._store.commit_round, attempt, record, stepped and stepped[0])
        await self._whole(commit)
        # From here on the round is a fact; what follows can be lost and rebuilt.
        previous = self._model.current
        if stepped is not None:
            self._model.adopt(*stepped)
        self._records.append(record)
        self._leave()
        self._close_round(attempt, committed=True, reason="")
        await asyncio.to_thread(self._tidy, {previous.object, self._model.current.object})
        self._emit("round-committed", **asdict(record))

    async def _void(self, attempt: Attempt | None, error: RoundError) -> None:
        if attempt is None:
            raise error
        log.warning("attempt %d is void: %s", attempt.attempt, error)
        await asyncio.to_thread(self._store.abort_attempt, attempt, error.code)
        self._leave()
        self._close_round(attempt, committed=False, reason=error.code)
        await asyncio.to_thread(self.depot.clear_spool)
        self._emit("round-void", round=attempt.number, attempt=attempt.attempt, reason=error.code)

    # --- waiting ----------------------------------------------------------------------------------------------

    async def _gather(self) -> tuple[str, ...]:
        """Wait for the roster, but not again for a site that was missing before, and never below the minimum."""
        self._settled.set()
        roster = frozenset(self.study.study.roster)
        loop = asyncio.get_running_loop()
        patience = loop.time() + self.study.rounds.gather
        told = False
        while True:
            ready = self._sessions.ready(self.id) & roster
            if ready >= roster - self._missing and len(ready) >= self._minimum:
                break
            if len(ready) >= self._minimum and loop.time() >= patience:
                break
            if not told:
                told = True
                self._emit("waiting", ready=len(ready), roster=len(roster), minimum=self._minimum)
            await self._next_change(max(0.05, min(1.0, patience - loop.time())))
        self._missing = roster - ready
        return tuple(sorted(ready))

    async def _wait_for_answers(self, machine: RoundMachine, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while machine.waiting and loop.time() < deadline:
            await self._next_change(min(1.0, max(0.01, deadline - loop.time())))
            self._require_whole()
            ready = self._sessions.ready(self.id)
            for node in machine.waiting:
                if node in ready:
                    self._away_since.pop(node, None)
                elif loop.time() - self._away_since.setdefault(node, loop.time()) > self._grace:
                    machine.leave(node, "NotConnected")

    async def _wait_for_holders(self, machine: RoundMachine) -> None:
        """Beyond the deadline, where what was uploaded is not lost yet: until enough of those who vanished are back."""
        told = False
        loop = asyncio.get_running_loop()
        patience = loop.time() + self.study.rounds.patience
        while machine.missing and loop.time() < patience:
            if not told:
                told = True
                log.warning("%d more sites have to come back for phase %r", machine.missing, machine.phase)
                self._emit("waiting-for-holders", phase=machine.phase, missing=machine.missing)
            for node in self._sessions.ready(self.id):
                if machine.readmit(node) and (announcement := self.catch_up(node)) is not None:
                    self._sessions.send(node, announcement)
            await self._next_change(1.0)
            self._require_whole()

    async def _next_change(self, timeout: float) -> None:  # noqa: ASYNC109
        try:
            async with asyncio.timeout(timeout):
                await self._pulse.wait()
        except TimeoutError:
            return
        self._pulse.clear()

    def _deadline(self, position: int) -> float:
        seconds = self.study.rounds.phase_deadline if position else self.study.rounds.deadline
        return asyncio.get_running_loop().time() + seconds

    # --- what the hub tells us --------------------------------------------------------------------------------

    def changed(self) -> None:
        """A session came or went."""
        self._pulse.set()

    def catch_up(self, node: str) -> pb.CoordinatorMessage | None:
        """What a node should be doing now, if anything: also for one that has just (re)connected."""
        attempt, machine = self._attempt, self._machine
        if attempt is None or machine is None or (question := machine.question(node)) is None:
            return None
        return self._announcement(attempt, machine, *question)

    def refused(self, node: str, reason: str) -> None:
        """A site's policy does not allow this study. The study lead sees that, and only the kind of reason."""
        self._emit("refused", node=node, reason=reason)

    def sit_out(self, node: str, message: pb.SitOut) -> None:
        """A node will not take part in this attempt, and says why."""
        attempt = self._attempt
        if attempt and self._machine and (message.round, message.attempt) == (attempt.number, attempt.attempt):
            if node not in self._machine.waiting:
                return
            self._machine.leave(node, message.reason)
            self._emit("sat-out", round=attempt.number, node=node, reason=message.reason)
            self._pulse.set()

    async def expect(self, node: str, header: pb.UploadHeader) -> bool:
        """Whether this upload was accepted before; raises for one that nobody waits for."""
        if self.outcome == "running":
            await self._settled.wait()  # A restarted coordinator first has to know again what it waits for.
        async with self._lock:  # An identical upload may be entering just now.
            return self._expects(node, header)

    def _expects(self, node: str, header: pb.UploadHeader) -> bool:
        if self.outcome == "running" and not self._settled.is_set():
            raise NotConnectedError("the round is being replayed")  # The node asks again.
        attempt, machine = self._attempt, self._machine
        if attempt is None or machine is None or (header.round, header.attempt) != (attempt.number, attempt.attempt):
            raise LateMessageError(f"{node}: round {header.round} attempt {header.attempt} is over")
        earlier = self._answers.get((header.phase, node))
        if earlier is not None:
            if earlier.header.upload_id != header.upload_id:
                raise ConflictingUploadError(f"{node} answered phase {header.phase!r} differently before")
            return True
        if header.phase != machine.phase or node not in machine.waiting:
            raise LateMessageError(f"{node}: phase {header.phase!r} is over")
        if header.payload.protection != self._protection.name:
            raise ProtectionError(f"{node} answered with protection {header.payload.protection!r}")
        if header.payload.version != self._protection.payload_version:
            raise ProtectionError(f"{node} speaks another version of {self._protection.name!r}")
        if header.bulk.size > self._protection.largest_upload(machine.context):
            raise ProtectionError(f"{node} announces more than any answer needs")
        return False

    async def accept(self, node: str, header: pb.UploadHeader, bulk: BulkFile, *, size: int) -> bool:
        """11. One answer enters the machine and the store; returns whether it was there already."""
        # A line that is cut now cancels the call. It must not cancel this: half an answer cannot be taken back.
        return await self._whole(self._take(node, header, bulk, size))

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something to its end, also when whoever waits for it is cancelled."""
        task = asyncio.create_task(work)
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)
        return await asyncio.shield(task)

    async def _take(self, node: str, header: pb.UploadHeader, bulk: BulkFile, size: int) -> bool:
        async with self._lock:
            if self._expects(node, header):
                return True
            attempt, machine = self._attempt, self._require_machine()
            if attempt is None:
                raise LateMessageError("no round is open")
            message = Message(body=header.payload.body)
            await asyncio.to_thread(machine.accept, node, header.phase, message, bulk)
            answer = StoredAnswer(node=node, phase=header.phase, header=header, bytes=size)
            try:
                await asyncio.to_thread(self._store.add_answer, attempt, answer)
            except StorageError as error:
                # The machine has it, the store has not: only a replay makes them agree again.
                self._torn = error
                self._settled.clear()
                self._pulse.set()
                raise
            self._answers[header.phase, node] = answer
            self.count(node, up=size)  # Here, not once the caller is back: by then the round may be over.
        self._emit("answered", round=attempt.number, phase=header.phase, node=node)
        self._pulse.set()
        return False

    def spool_name(self, node: str, header: pb.UploadHeader) -> str:
        """The file an upload's bulk goes to."""
        return _spool_name(node, header)

    def count(self, node: str, *, up: int = 0, down: int = 0) -> None:
        """Add to a node's traffic in this round."""
        traffic = self._traffic.setdefault(node, Traffic())
        traffic.up += up
        traffic.down += down

    # --- pieces -----------------------------------------------------------------------------------------------

    def _context(self, attempt: Attempt) -> RoundContext:
        return round_context(
            self.study,
            number=attempt.number,
            attempt=attempt.attempt,
            training=attempt.kind == TRAIN,
            base_model=self._model.current.digest,
            invited=attempt.invited,
            shared=self._model.layout,
            kind=self._model.kind,
        )

    def _announcement(
        self, attempt: Attempt, machine: RoundMachine, phase: str, message: Message
    ) -> pb.CoordinatorMessage:
        phases = self._protection.phases(machine.context.kind)
        seconds = self.study.rounds.deadline if phase == phases[0] else self.study.rounds.phase_deadline
        body = pb.PhaseAnnouncement(
            round=attempt.number,
            attempt=attempt.attempt,
            kind=pb.ROUND_KIND_TRAIN if attempt.kind == TRAIN else pb.ROUND_KIND_EVALUATE,
            phase=phase,
            deadline_ms=int(seconds * 1000),
            model=self._model.reference(),
            invited=attempt.invited,
            payload=pb.Payload(
                protection=self._protection.name,
                phase=phase,
                version=self._protection.payload_version,
                body=message.body,
            ),
        )
        if message.bulk:
            self.depot.put(message.bulk)
            body.bulk.CopyFrom(reference(message.bulk))
        return pb.CoordinatorMessage(study_id=self.id, announcement=body)

    def _enter(
        self,
        attempt: Attempt,
        machine: RoundMachine,
        answers: dict[tuple[str, str], StoredAnswer] | None = None,
        seconds: float = 0.0,
    ) -> None:
        self._attempt, self._machine = attempt, machine
        self._began = asyncio.get_running_loop().time() - seconds
        self._answers = answers or {}
        for (_, node), answer in self._answers.items():
            self.count(node, up=answer.bytes)
        self._away_since.clear()
        self._settled.set()

    def _leave(self) -> None:
        if self._machine is not None:
            # Who vanished in this round is not waited for before the next; whoever is back is ready anyway.
            self._missing |= {node for node, reason in self._machine.left.items() if reason == "NotConnected"}
        self._attempt = self._machine = None
        self._torn = None
        self._answers, self._traffic = {}, {}

    def _close_round(self, attempt: Attempt, *, committed: bool, reason: str) -> None:
        body = pb.RoundClosed(round=attempt.number, attempt=attempt.attempt, committed=committed, reason=reason)
        for node in attempt.invited:
            self._sessions.send(node, pb.CoordinatorMessage(study_id=self.id, round_closed=body))

    def _tidy(self, keep: set[bytes]) -> None:
        self.depot.clear_spool()
        self.depot.prune(keep_from=self._model.current.version, keep_objects=keep)
        self.record().save(self._folder / "record.json")

    def _require_machine(self) -> RoundMachine:
        if self._machine is None:
            raise LateMessageError("no round is open")
        return self._machine

    def _require_whole(self) -> None:
        if self._torn is not None:
            raise self._torn

    def _emit(self, event: str, /, **fields: Any) -> None:
        self._listener(event, {"study_id": self.id, **fields})


def _spool_name(node: str, header: pb.UploadHeader) -> str:
    return f"{header.round}-{header.attempt}-{node}-{header.upload_id.hex()[:32]}"
