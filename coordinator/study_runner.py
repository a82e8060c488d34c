"""A study's rounds, from plan to publication. Reads as the data's path on this side (docs/DATA_PATH.md, 1, 13 and 14).

    plan round → [attempts: collect protected blocks → open aggregate] → strategy.step → publish global blocks

Each step is committed before anybody hears of it, so a coordinator that is killed anywhere resumes here. Which attempts
a round takes is in `coordinator.rounds`, what is true of one attempt only in `coordinator.attempt`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from coordinator.agreements import KnownAgreements
from coordinator.attempt import upload_folder
from coordinator.attempts import OpenAttempts
from coordinator.buffered import BufferedRounds
from coordinator.bulk_files import BulkFiles
from coordinator.gathering import Gathering
from coordinator.left_out import LeftOutSites
from coordinator.publication import Publication
from coordinator.recording import study_record
from coordinator.rounds import CirclesRound, GatheredRound, Round, RoundServices
from coordinator.schedule import InOrder, Schedule
from coordinator.shared_model import SharedModel
from coordinator.site_flush import SiteFlush
from coordinator.store import Store
from coordinator.study_services import Sessions, StudyServices
from coordinator.unbroken import Unbroken
from secure_fl.errors import (
    BudgetExceededError,
    CohortTooSmallError,
    LateMessageError,
    ProtectionError,
    StudyAbortedError,
    StudyStoppedError,
    WrongSharesError,
)
from secure_fl.events import (
    Listener,
    Refused,
    StudyEnded,
    ignore,
)
from secure_fl.files import write_atomically
from secure_fl.protect.declarations import OpenedDeclarations
from secure_fl.results.record import RoundRecord, StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.circles import Circle
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.settings import Study
from secure_fl.threads import in_thread

log = logging.getLogger(__name__)

_DECLARED = "declared.bin"  # what sites declared, where circles follow from it


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
            agreements=KnownAgreements(folder),
            grace=grace,
        )
        self._left_out = LeftOutSites(self.id, folder, listener)
        self._attempts = OpenAttempts(self._services, self._left_out, now=now)
        self._welcoming: set[asyncio.Task[None]] = set()
        self._gathering = Gathering(self.resolved, sessions, listener, self._left_out)
        self._records: list[RoundRecord] = []
        self._sat_out: dict[str, tuple[int, str]] = {}  # by site: the last round it sat out, and why

    # --- the study --------------------------------------------------------------------------------------------

    async def run(self) -> StudyRecord:
        """Run to the end, from wherever the store says the study is. Raises `StudyAbortedError`."""
        await self._attempts.replaying()
        await self._unbroken.run(in_thread(self._load))
        try:
            await self._declare()
            await self._schedule().run()
            self._require_progress()
            if not any(record.kind is RoundKind.EVALUATE for record in self._records):
                await self._closing_evaluation()
        except StudyAbortedError as error:
            await self._end("aborted", error.code)
            raise
        await self._end("finished", "")
        return self.record()

    def _schedule(self) -> Schedule:
        """Who waits for whom: everybody for everybody, circles for nobody, or flushes for enough sites."""
        rounds = self.study.rounds
        if rounds.is_buffered and not rounds.by_sites:
            return BufferedRounds(self._round_services(), self._publication(), self._store)
        return InOrder(
            rounds=self.study.study.rounds,
            committed=lambda: len(self._records),
            take=self._flush if rounds.by_sites else self._train,
        )

    async def _train(self, number: int) -> None:
        self._require_progress()
        await self._round(number, RoundKind.TRAIN)

    def _require_progress(self) -> None:
        """Raise `StudyAbortedError` where the last rounds came to nothing: all, or as many as a round has attempts."""
        enough = min(self.study.rounds.attempts, self.study.study.rounds)
        last = [record for record in self._records if record.kind is RoundKind.TRAIN][-enough:]
        if len(last) == enough and all(record.came_to_nothing for record in last):
            raise StudyAbortedError(
                f"the last {len(last)} rounds came to nothing",
                advice="see the log for why; raise rounds.phase_deadline or rounds.attempts in a new study",
            )

    async def _flush(self, number: int) -> None:
        self._require_progress()
        await SiteFlush(self._round_services(), self._publication(), self._store, number).run()

    def _load(self) -> None:
        """The current model, or the first one from the study's seed, and the rounds so far."""
        self._store.add_study(self.id, self.resolved.canonical, now=self._now())
        self._model = SharedModel(self.resolved, self._store, self._files)
        self._records = list(self._store.records(self.id))
        self._left_out.load()
        self._services.agreements.load()
        if (declared := self._folder / _DECLARED).exists():
            self.resolved.division.settle(declared.read_bytes())
            for plan in self._store.open_attempts(self.id):
                if plan.kind is RoundKind.DECLARE:  # Stopped between the two, it was left under way.
                    self._store.abort_attempt(plan, "")
        # Killed between a commit and its tidying up, a coordinator left uploads that nobody will ask for.
        self._files.clear_uploads_but({upload_folder(plan) for plan in self._store.open_attempts(self.id)})

    async def _declare(self) -> None:
        """Where circles follow from what sites share: have it declared, once, before the first round."""
        if self.resolved.division.settled:
            return
        under_way = await in_thread(self._store.open_attempts, self.id)
        result = await (await self._next_round(0, RoundKind.DECLARE)).run(under_way)
        if isinstance(result.opened, OpenedDeclarations):
            # On disk before anybody hears of it: the circles of a study are formed once.
            await self._unbroken.run(in_thread(self._settle, result.opened.declarations))
        for attempt in result.attempts:
            self._attempts.count_later(attempt)
            await self._attempts.let_go(attempt, "everybody has declared")

    def _settle(self, declarations: bytes) -> None:
        write_atomically(self._folder / _DECLARED, declarations)
        self.resolved.division.settle(declarations)

    async def _closing_evaluation(self) -> None:
        try:
            await self._round(self.study.study.rounds + 1, RoundKind.EVALUATE)
        except StudyAbortedError:
            # The model is there; only its last measurement is missing. That is no reason to lose the study.
            log.warning("the closing evaluation did not find enough sites")

    async def stop(self) -> None:
        """End the study early. The caller has cancelled `run`; committed rounds stay."""
        stopped = StudyStoppedError("the study lead stopped the study")
        await self._attempts.drop(LateMessageError(stopped.message))
        if not self.is_open:
            await in_thread(self._load)
        self._records = list(await in_thread(self._store.records, self.id))
        for plan in await in_thread(self._store.open_attempts, self.id):
            await self._attempts.void(plan, stopped)
        await in_thread(self._files.clear_uploads_but, set())
        if self.outcome == "running":
            await self._end("aborted", StudyStoppedError.code)

    async def _end(self, outcome: str, reason: str) -> None:
        self.outcome, self.reason = outcome, reason
        self._attempts.settle()  # Whoever still sends something is told that it is late.
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
            blocks={shape.name: shape.size for shape in self._model.layout.model},
            rounds=tuple(self._records),
            left_out=self._left_out.sites,
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

    @property
    def set_aside(self) -> dict[str, str]:
        """Sites that the study goes on without, whatever they say, and why, as a code."""
        used_up = dict.fromkeys(self._gathering.exhausted, BudgetExceededError.code)
        return used_up | dict.fromkeys(self._left_out.names, WrongSharesError.code)

    @property
    def sat_out_lately(self) -> dict[str, tuple[int, str]]:
        """Sites that sat out a round and have not taken part since: in which round, and why, as a code."""
        last = {name: number for record in self._records for name, number in _taken(record)}
        return {name: said for name, said in self._sat_out.items() if said[0] > last.get(name, 0)}

    @property
    def missing(self) -> tuple[tuple[Circle, frozenset[str]], ...]:
        """Each circle with those of its sites that are not ready now; none where whoever is there takes part."""
        if self.outcome != "running" or not self.resolved.division.settled:
            return ()
        return tuple((circle, self._gathering.missing(circle)) for circle in self.resolved.circles_in(RoundKind.TRAIN))

    def closing_message(self) -> pb.CoordinatorMessage:
        """What a node is told about a study that is over."""
        body = pb.StudyClosed(finished=self.outcome == "finished", reason=self.reason)
        return pb.CoordinatorMessage(study_id=self.id, study_closed=body)

    # --- one round --------------------------------------------------------------------------------------------

    async def _round(self, number: int, kind: RoundKind) -> None:
        """Run a round until it commits; `StudyAbortedError` when the study's patience is used up."""
        for _ in range(self.study.rounds.attempts):
            under_way = await in_thread(self._store.open_attempts, self.id)
            result = await (await self._next_round(number, kind)).run(under_way)
            try:
                await self._publication().publish(number, kind, result)
            except (CohortTooSmallError, ProtectionError) as error:
                for attempt in result.attempts:
                    await self._attempts.void(attempt.plan, error)
                if self.resolved.leaves_once(kind):
                    break  # Sites do not send again what they have sent.
            else:
                return
        raise StudyAbortedError(
            f"round {number}: what was opened made no model", advice="see the log for which blocks, and why"
        )

    async def _next_round(self, number: int, kind: RoundKind) -> Round:
        services = self._round_services()
        if self.resolved.circles_in(kind):
            return CirclesRound(services, number, kind)
        return GatheredRound(services, number, kind, tried=await in_thread(self._store.attempts, self.id, number))

    def _round_services(self) -> RoundServices:
        return RoundServices(
            resolved=self.resolved, attempts=self._attempts, gathering=self._gathering, model=self._model
        )

    def _publication(self) -> Publication:
        return Publication(
            resolved=self.resolved,
            store=self._store,
            files=self._files,
            model=self._model,
            attempts=self._attempts,
            gathering=self._gathering,
            left_out=self._left_out,
            unbroken=self._unbroken,
            listener=self._listener,
            records=self._records,
            save_record=lambda: self.record().save(self._folder / "record.json"),
        )

    # --- what the hub tells us --------------------------------------------------------------------------------

    def changed(self) -> None:
        """A session came or went."""
        self._gathering.changed()
        for attempt in self._attempts:
            attempt.changed()

    def joined(self, node: str) -> None:
        """A node has accepted the study, perhaps again: it is told what it should be doing."""
        self.changed()
        for attempt in self._attempts:
            task = asyncio.create_task(attempt.catch_up(node))
            self._welcoming.add(task)
            task.add_done_callback(self._welcoming.discard)

    def refused(self, node: str, reason: str) -> None:
        """A site's policy does not allow this study. The study lead sees that, and only the kind of reason."""
        self._listener(Refused(study_id=self.id, node=node, reason=reason))

    def sit_out(self, node: str, message: pb.SitOut) -> None:
        """A node will not take part in an attempt, and says why."""
        if message.reason == BudgetExceededError.code:
            self._gathering.used_up(node)
        if node in self.study.study.roster and 0 < message.round <= self.study.study.rounds + 1:
            self._sat_out[node] = (message.round, message.reason)
        if (attempt := self._attempts.get(message.round, message.attempt)) is not None:
            attempt.sit_out(node, message.reason)

    async def receive(self, node: str, header: pb.UploadHeader, chunks: AsyncIterator[pb.Chunk]) -> bool:
        """Take one answer; returns whether it was there already. Raises for one that nobody waits for."""
        attempt = await self._attempts.addressed(node, header.round, header.attempt)
        return await attempt.receive(node, header, chunks)

    async def received(self, node: str, query: pb.UploadQuery) -> int:
        """How many bytes of an upload's bulk are here."""
        return (await self._attempts.addressed(node, query.round, query.attempt)).received(node, query.upload_id)

    def count_download(self, node: str, digest: bytes, size: int) -> None:
        """Add to a node's traffic in the attempts that it downloads for."""
        for attempt in self._attempts:
            attempt.count_download(node, digest, size)


def _taken(record: RoundRecord) -> Iterator[tuple[str, int]]:
    """Who took part, and in which round or, where circles do not wait for each other, turn of its circle."""
    for circle in record.circles:
        yield from ((name, circle.turn) for name in circle.members if circle.opened and circle.turn is not None)
    if all(circle.turn is None for circle in record.circles):
        yield from ((name, record.number) for name in record.cohort)
