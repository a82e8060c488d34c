"""One attempt at one round, from its first announcement until it is opened (docs/DATA_PATH.md, 11 and 12).

An `AttemptRunner` owns everything that dies with the attempt: its state machine, its answers, half-received uploads,
traffic, who has been away since when. A round makes one, waits for what it opens, and drops it; several may be
open at once. After a crash a new one is made from the store by replaying the accepted messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial

from coordinator.announcing import announcement
from coordinator.bulk_files import EMPTY, BulkFile
from coordinator.machine import RoundMachine
from coordinator.pulse import Pulse
from coordinator.reception import Reception
from coordinator.reports import require_report
from coordinator.store import Attempt, StoredAnswer
from coordinator.study_services import StudyServices
from coordinator.traffic import Traffic
from coordinator.waiting import Waiting
from secure_fl.errors import (
    CohortTooSmallError,
    ConflictingUploadError,
    LateMessageError,
    NotConnectedError,
    ProtectionError,
    RoundError,
    SecureFLError,
    StorageError,
)
from secure_fl.events import Answered, PhaseClosed, SatOut, WaitingForHolders
from secure_fl.messages import require
from secure_fl.protect.contract import Message, Opened, Protection, RoundContext
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.threads import in_thread
from secure_fl.transport.objects import IncomingObject
from secure_fl.transport.pace import deadline_seconds

log = logging.getLogger(__name__)


class AttemptRunner:
    """Collects answers phase by phase, and opens."""

    def __init__(
        self, plan: Attempt, services: StudyServices, *, model: pb.ModelRef, context: RoundContext, seconds: float = 0.0
    ) -> None:
        self.plan = plan
        self.key = (plan.number, plan.attempt)
        self._left: Mapping[str, str] = {}  # node → error code: who is gone, and why
        self._answers: dict[tuple[str, str], StoredAnswer] = {}  # by phase and node
        self._traffic: dict[str, Traffic] = {}
        self._services = services
        self._study = services.resolved
        self._protection = services.resolved.protection_in(plan.kind)
        self._model = model
        self._context = context
        self._folder = upload_folder(plan)
        self._began = asyncio.get_running_loop().time() - seconds
        self._lock = asyncio.Lock()  # one answer at a time enters the machine
        self._pulse = Pulse()
        self._position = 0  # of the phase
        self._machine: RoundMachine | None = None
        self._opened: Opened | None = None
        self._failed: RoundError | None = None  # in an earlier life of the coordinator
        self._torn: StorageError | None = None  # why the machine knows an answer that the store does not
        self._unwanted: RoundError | None = None  # why nobody needs any more what it would open
        self._over: SecureFLError | None = None  # what is said to whoever still sends something
        self._waiting = Waiting(
            partial(services.sessions.ready, services.resolved.id),
            grace=services.grace,
            # Where sites join at their own pace everybody is invited, and whoever is not there is asked when it comes.
            expected=() if self._at_own_pace else plan.invited,
            change=self._next_change,
            ask=self._announce,
            tell=self._tell_missing,
        )
        # What nodes download for this attempt.
        self._objects = {model.object.sha256, model.first.sha256} - {b""}
        self._reception = Reception(services.files, self._folder)

    # --- from the first phase to the last -----------------------------------------------------------------------

    async def begin(self) -> None:
        """Enter the first phase."""
        machine = await in_thread(self._make_machine)
        self._waiting.begin(machine)
        self._machine, self._left = machine, machine.left

    async def replay(self) -> None:
        """Go through what the store remembers of an attempt that was under way when the coordinator stopped."""
        log.info("resuming round %d, attempt %d", *self.key)
        store = self._services.store
        machine = await in_thread(self._make_machine)
        answers = await in_thread(store.answers, self.plan)
        try:
            for phase in await in_thread(store.closed_phases, self.plan):
                await in_thread(self._feed, machine, phase, answers)
                self._opened = await in_thread(machine.close)
                self._position += 1
            if self._opened is None:
                await in_thread(self._feed, machine, machine.phase, answers)
        except (CohortTooSmallError, ProtectionError) as error:
            self._failed = error  # As it did before the coordinator stopped; it had not come to say so.
        self._answers = {(answer.phase, answer.node): answer for answer in answers}
        for answer in answers:
            self._count(answer.node, up=answer.bytes)
        self._waiting.resume(machine)
        self._machine, self._left = machine, machine.left

    def _make_machine(self) -> RoundMachine:
        self._services.files.open_uploads(self._folder)
        machine = RoundMachine(self._protection, self._context, self._services.store.openings(self.plan))
        machine.begin()
        return machine

    def _feed(self, machine: RoundMachine, phase: str, answers: tuple[StoredAnswer, ...]) -> None:
        for answer in answers:
            if answer.phase == phase:
                header = answer.header
                self._learn(header)
                bulk = self._services.files.upload(self._folder, spool_name(answer.node, header), header.bulk)
                machine.accept(answer.node, phase, Message(body=header.payload.body), bulk)

    async def collect(self) -> Opened:
        """11.–12. Collect answers phase by phase, then open. Raises `CohortTooSmallError` or `ProtectionError`."""
        machine = self._require_machine()
        if self._failed is not None:
            raise self._failed
        while self._opened is None:
            if machine.opens:
                await in_thread(self._services.store.keep_opening, self.plan, machine.opens)
            for node in sorted(machine.waiting):
                await self._announce(node)
            await self._close_phase(machine)
        return self._opened

    async def _close_phase(self, machine: RoundMachine) -> None:
        begun = asyncio.get_running_loop().time()
        await self._wait_for_answers(machine, begun + self._seconds())
        if not self._at_own_pace:  # There the deadline has all patience in it.
            await self._waiting.for_holders(machine, patience=self._study.study.rounds.patience)
        seconds = asyncio.get_running_loop().time() - begun
        self._services.listener(PhaseClosed(study_id=self._study.id, phase=machine.phase, seconds=seconds))
        async with self._lock:
            self._require_whole()
            await in_thread(self._services.store.close_phase, self.plan, self._position, machine.phase)
            self._opened = await in_thread(machine.close)
        self._position += 1

    @property
    def began(self) -> float:
        """When, by the loop's clock; over all lives of the coordinator."""
        return self._began

    @property
    def asked_for_updates(self) -> bool:
        """Whether sites were told to send what they trained: it may have left them."""
        return self._position >= self._study.phases(self.plan.kind).index(self._protection.carrier)

    @property
    def left(self) -> Mapping[str, str]:
        """Who is gone, and why: node → error code."""
        return self._left

    @property
    def answers(self) -> Iterable[StoredAnswer]:
        """Everything that was accepted."""
        return self._answers.values()

    @property
    def traffic(self) -> dict[str, Traffic]:
        """Bytes, by node; those of an attempt that has no record are added to the next one's."""
        return self._traffic

    @property
    def met(self) -> frozenset[str]:
        """Who was there to be asked: everybody invited, but where sites join at their own pace."""
        return self._waiting.met.union(answer.node for answer in self.answers)

    @property
    def vanished(self) -> set[str]:
        """Who is not waited for before the next attempt; whoever is back is ready anyway."""
        return {node for node, reason in self._left.items() if reason == NotConnectedError.code}

    def give_up(self, error: RoundError) -> None:
        """Nobody needs what this would open: `collect` raises `error` unless it has opened already."""
        self._unwanted = error
        self._pulse.beat()

    async def close(self, error: SecureFLError) -> None:
        """From now on nothing enters, and whoever sends something is told `error`. What has entered is whole."""
        async with self._lock:
            self._over = error
        await self._reception.close()

    def erase(self) -> None:
        """Forget the uploads on disk. The attempt was closed before. Blocks."""
        self._services.files.clear_uploads(self._folder)

    # --- waiting --------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """A session came or went."""
        self._pulse.beat()

    async def _wait_for_answers(self, machine: RoundMachine, deadline: float) -> None:
        if self._at_own_pace:
            filling = self._study.study.rounds.filling(self._context.min_cohort)
            await self._waiting.for_enough(machine, filling, least=self._context.min_cohort, deadline=deadline)
            return

        def decided() -> bool:
            return self.plan.kind is RoundKind.DECLARE and self._study.division.is_decided(machine.answered)

        await self._waiting.for_answers(machine, deadline=deadline, decided=decided, began=self._began)

    def _tell_missing(self, missing: int) -> None:
        phase = self._require_machine().phase
        log.warning("phase %r waits for more sites: %d needed", phase, missing)
        self._services.listener(WaitingForHolders(study_id=self._study.id, phase=phase, missing=missing))

    async def _next_change(self, seconds: float) -> None:
        await self._pulse.next(seconds)
        self._require_whole()

    def _seconds(self) -> float:
        """How long the current phase may take."""
        rounds = self._study.study.rounds
        if self._position == 0:  # training, and the model on its way
            # Sites that join at their own pace go on training whatever becomes of the attempt: nothing is gained by
            # another one before enough are done.
            patience = rounds.patience if self._at_own_pace else 0.0
            return deadline_seconds(rounds.deadline, self._model.object.size) + patience
        return deadline_seconds(rounds.phase_deadline, self._protection.largest_upload(self._context))

    def _seconds_told(self) -> float:
        """How long a node may take. In a circle a late answer still counts: the round ends it, not the phase."""
        return self._seconds() + (self._study.study.rounds.patience if self._context.whole else 0.0)

    # --- what nodes are told ----------------------------------------------------------------------------------------

    async def catch_up(self, node: str) -> None:
        """Tell a node that has just (re)connected what it should be doing, if anything."""
        if self._machine is not None and self._opened is None:
            await self._announce(node)

    async def _announce(self, node: str) -> None:
        # In a thread: a message may be a combination, formed as it is asked for.
        message = await in_thread(self._announcement, node)
        if message is not None and self._services.sessions.send(node, message):
            self._count(node, down=message.ByteSize())

    def _announcement(self, node: str) -> pb.CoordinatorMessage | None:
        question = self._require_machine().question(node)
        if question is None:
            return None
        agreed = self._services.agreements.passed_on if self._at_own_pace else b""
        body = announcement(
            self.plan, self._protection, question, model=self._model, seconds=self._seconds_told(), agreements=agreed
        )
        if (declared := self._study.division.declared) is not None:
            body.declared.CopyFrom(self._services.files.put(declared.raw, attempt=self._folder))
            self._objects.add(body.declared.sha256)
        if bulk := question[1].bulk:
            body.bulk.CopyFrom(self._services.files.put(bulk, attempt=self._folder))
            self._objects.add(body.bulk.sha256)
        return pb.CoordinatorMessage(study_id=self._study.id, announcement=body)

    def count_download(self, node: str, digest: bytes, size: int) -> None:
        """Add to a node's traffic, if what it downloads is of this attempt."""
        if digest in self._objects and node in self.plan.invited:
            self._count(node, down=size)

    def _count(self, node: str, *, up: int = 0, down: int = 0) -> None:
        traffic = self._traffic.setdefault(node, Traffic())
        traffic.up += up
        traffic.down += down

    # --- what nodes say ---------------------------------------------------------------------------------------------

    def sit_out(self, node: str, reason: str) -> None:
        """A node will not take part in this attempt, and says why."""
        machine = self._machine
        # Of an attempt that is over that is no news: whoever was sending was told so, and this is its answer.
        if self._over is None and machine is not None and node in machine.waiting:
            machine.leave(node, reason)
            self._services.listener(SatOut(study_id=self._study.id, round=self.plan.number, node=node, reason=reason))
            self._pulse.beat()

    async def receive(self, node: str, header: pb.UploadHeader, chunks: AsyncIterator[pb.Chunk]) -> bool:
        """11. Take one answer, whose signature was verified: to the disk, into the machine, into the store.

        Returns whether it was there already. Raises, and is as before, for an answer that nobody waits for or that is
        not what it should be.
        """
        async with self._lock:  # An identical upload may be entering just now.
            if self._expects(node, header):
                return True
        if header.bulk.size == 0:  # Most answers are like this: they touch no disk.
            require(header.bulk.sha256 == EMPTY, "an upload does not match its digest")
            incoming, size = None, header.ByteSize()
        else:
            name = spool_name(node, header)
            incoming, size = await self._reception.spool(node, header, chunks, name=name)
        # A line that is cut now cancels the call. It must not cancel this: half an answer cannot be taken back.
        return await self._services.unbroken.run(self._enter(node, header, incoming, size))

    async def _enter(self, node: str, header: pb.UploadHeader, incoming: IncomingObject | None, size: int) -> bool:
        name = spool_name(node, header)
        try:
            if incoming is not None:
                await in_thread(incoming.finish, durable=True)
            bulk = await in_thread(self._services.files.upload, self._folder, name, header.bulk)
            return await self._take(node, header, bulk, size)
        except SecureFLError:
            await in_thread(self._services.files.discard, self._folder, name)
            raise

    def received(self, node: str, upload_id: bytes) -> int:
        """How many bytes of an upload's bulk are here: where its sender goes on after a broken line."""
        return self._reception.received(node, upload_id)

    def _expects(self, node: str, header: pb.UploadHeader) -> bool:
        machine = self._machine
        if self._over is not None:
            raise self._over
        if machine is None or self._torn is not None:
            raise NotConnectedError("the round is being replayed")  # The node asks again.
        earlier = self._answers.get((header.phase, node))
        if earlier is not None:
            if earlier.header.upload_id != header.upload_id:
                raise ConflictingUploadError(f"{node} answered phase {header.phase!r} differently before")
            return True
        if header.phase != machine.phase or node not in machine.waiting:
            raise LateMessageError(f"{node}: phase {header.phase!r} is over")
        require_report(header.metrics, self._study.study.metrics.measured)
        _require_form(node, header, self._protection, self._context)
        return False

    async def _take(self, node: str, header: pb.UploadHeader, bulk: BulkFile, size: int) -> bool:
        async with self._lock:
            if self._expects(node, header):
                return True
            machine = self._require_machine()
            await in_thread(machine.accept, node, header.phase, Message(body=header.payload.body), bulk)
            answer = StoredAnswer(node=node, phase=header.phase, header=header, bytes=size)
            try:
                await in_thread(self._learn, header)
                await in_thread(self._services.store.add_answer, self.plan, answer)
            except StorageError as error:
                # The machine has it, the store has not: only a replay makes them agree again.
                self._torn = error
                self._pulse.beat()
                raise
            self._answers[header.phase, node] = answer
            self._count(node, up=size)  # Here, not once the caller is back: by then the round may be over.
        self._services.listener(
            Answered(study_id=self._study.id, round=self.plan.number, phase=header.phase, node=node)
        )
        self._pulse.beat()
        return False

    # --- pieces -----------------------------------------------------------------------------------------------------

    @property
    def _at_own_pace(self) -> bool:
        """Whether sites join as they are done: the first phase is then where they do."""
        return self._context.staleness is not None and self._position == 0

    def _learn(self, header: pb.UploadHeader) -> None:
        if self._at_own_pace:
            self._services.agreements.add(header.payload.body)

    def _require_machine(self) -> RoundMachine:
        if self._machine is None:
            raise LateMessageError("the attempt has not begun")
        return self._machine

    def _require_whole(self) -> None:
        if self._torn is not None:
            raise self._torn
        if self._unwanted is not None and self._opened is None:
            raise self._unwanted


def upload_folder(plan: Attempt) -> str:
    """The folder of everything that sites upload in an attempt."""
    return f"{plan.number}-{plan.attempt}"


def spool_name(node: str, header: pb.UploadHeader) -> str:
    """The file of one upload in it."""
    return f"{node}-{header.upload_id.hex()[:32]}"


def _require_form(node: str, header: pb.UploadHeader, protection: Protection, context: RoundContext) -> None:
    """Raise `ProtectionError` unless an answer says that it is of the attempt's protection, and not too long."""
    if header.payload.protection != protection.name:
        raise ProtectionError(f"{node} answered with protection {header.payload.protection!r}")
    if header.payload.version != protection.payload_version:
        raise ProtectionError(f"{node} speaks another version of {protection.name!r}")
    if header.bulk.size > protection.largest_upload(context):
        raise ProtectionError(f"{node} announces more than any answer needs")
