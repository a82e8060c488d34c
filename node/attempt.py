"""One node in one attempt at one round. Reads as the data's path (docs/DATA_PATH.md, 2–10 and 15).

    check → fetch → reserve → load → train → clip, weigh, round, keep → protect → charge → send

Every promise to the site is kept here, in the node's own process: nothing is fetched before the announcement is
checked, nothing is trained before its privacy is reserved, nothing is sent before it is charged. Each step is done in
a thread or in the training process: the event loop carries the node's heartbeats and nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from node.charge import Charge
from node.circles import learn_circles
from node.config import NodeFile
from node.encoding import encode
from node.events import AnswerSent, Fetched, RoundDone, SatOut, Trained
from node.giving import Giving, announced_context
from node.kept import KeptUpdate
from node.models import VerifiedModels
from node.privacy import SitePrivacy
from node.reasons import spoken
from node.site_services import SiteServices
from node.store import AttemptMemory, StudyStore
from node.training.jobs import Job, Result
from node.training.orders import make_job
from node.uploads import fetched_question, release, signed_header
from secure_fl import logs
from secure_fl.checkpoints import save_arrays
from secure_fl.encoding.integers import Integers
from secure_fl.encoding.metrics import SiteMetrics
from secure_fl.encoding.update import decode_sums
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.errors import CodeChangedError, LateMessageError, ProtectionError, RestartedError, SecureFLError
from secure_fl.protect.combining import CombiningNodeHalf
from secure_fl.protect.contract import Message, NodeHalf, RoundContext
from secure_fl.randomness import KeyStream
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.settings import Study
from secure_fl.threads import in_thread_whole
from secure_fl.transport.objects import IncomingObject
from secure_fl.transport.wire import layout_from_wire, round_kind

log = logging.getLogger(__name__)


class _About(TypedDict):
    """What every event of a round says."""

    study_id: str
    round: int


class Participation:
    """Takes part in one attempt, phase by phase."""

    def __init__(
        self, services: SiteServices, resolved: ResolvedStudy, store: StudyStore, announcement: pb.PhaseAnnouncement
    ) -> None:
        self.key = (announcement.round, announcement.attempt)
        self._services = services
        self._resolved = resolved
        self._study = resolved.study
        self._store = store
        self._first = announcement
        self._current = announcement
        self._kind = round_kind(announcement.kind)
        self.declares = self._kind is RoundKind.DECLARE  # It trains the first round, also if it is too late to declare.
        self._protection = resolved.protection_in(self._kind)
        # The round whose training this is. What a site declares is made of the first one's, which is kept for it.
        self._number = max(1, announcement.round)
        self._layout = layout_from_wire(announcement.model.blocks)
        self._phases = resolved.phases(self._kind)
        self._announced = {announcement.phase}
        self._asked: asyncio.Queue[pb.PhaseAnnouncement] = asyncio.Queue()
        self._timeout: asyncio.Timeout | None = None
        self._privacy = SitePrivacy(services.file, resolved)
        self._charge = self._new_charge()
        self._version: int | None = None  # of the model that was fetched, where it does not follow from the round
        self._refusal = ""
        self.began = False  # Before, there is nothing of it but this object.
        self.is_over = False  # Nothing more will be answered; its files may still be about to be erased.
        self._seconds = 0.0  # that training took
        self._heard = time.monotonic()
        self._unready = False  # what comes before the fetch was tried, and has not worked yet

    @staticmethod
    def begins(resolved: ResolvedStudy, announcement: pb.PhaseAnnouncement) -> bool:
        """Whether this announces the first phase of an attempt."""
        return announcement.phase == resolved.phases(round_kind(announcement.kind))[0]

    def announce(self, announcement: pb.PhaseAnnouncement) -> None:
        """A further phase, or the same one again because the coordinator did not get the answer."""
        if self._refusal:
            self._sit_out(self._refusal)  # It may have been lost with the link.
            return
        if announcement.phase not in self._announced and announcement.phase in self._phases:
            self._announced.add(announcement.phase)
            self._asked.put_nowait(announcement)
        elif announcement.phase == self._current.phase:
            self._allow(announcement)

    async def run(self) -> None:
        """Take part; whatever goes wrong, the node sits out and says only the error's code."""
        with logs.about(study=self._resolved.id, round=self._first.round):
            await self._run()

    async def _run(self) -> None:
        try:
            async with asyncio.timeout_at(_deadline(self._first)) as self._timeout:
                await self._take_part()
            self._services.listener(RoundDone(**self._about(), kind=self._kind))
        except TimeoutError:
            log.warning("too slow for the deadline; left out")
            self._refusal = LateMessageError.code
            self._services.listener(SatOut(**self._about(), code=LateMessageError.code))
        except SecureFLError as error:
            log.warning("sitting out: %s%s", error.message, f" → {error.hint}" if error.hint else "")
            self._services.listener(SatOut(**self._about(), code=error.code))
            await self._sit_out_in_time(error)
        except Exception as error:
            log.exception("sitting out after an unexpected error")
            self._services.listener(SatOut(**self._about(), code=SecureFLError.code))
            await self._sit_out_in_time(error)
        finally:
            self.is_over = True
            await self._clear()

    async def _clear(self) -> None:
        await in_thread_whole(self._store.clear_scratch, *self.key)

    async def _take_part(self) -> None:
        announcement = self._first
        if announcement.phase != self._phases[0]:
            await self._go_on(announcement)
            return
        await learn_circles(self._services.session, self._resolved, self._store, announcement)
        await in_thread_whole(self._check, announcement)
        await self._contribute()

    async def _contribute(self) -> None:
        """Have something to send, from this attempt or from an earlier one at the round, and send it."""
        kept = await in_thread_whole(self._kept)
        # Where answers are padded, a site fetches what it does not need: otherwise that says that training is done.
        fetches = kept is None or self._services.file.policy.answer_after > 0
        found, received = await self._prepare() if fetches else ({}, Path())
        try:
            # 4. Set the round's privacy cost aside.
            await in_thread_whole(self._charge.reserve, found, repeats=kept is not None)
            if kept is None:
                kept = await in_thread_whole(self._keep_update, await self._train(received, found))
            half, metrics = await in_thread_whole(self._encoded_half, kept), kept.metrics
            del kept  # Its integers go as they are protected.
            await self._protect_and_send(half, metrics)
        except BaseException as error:
            await in_thread_whole(self._charge.give_back, error)
            raise

    async def _prepare(self) -> tuple[Mapping[str, str], Path]:
        """What is known of data and code, and the model to train from."""
        self._unready = True
        found = await self._rehearse()
        self._unready = False
        return found, await self._fetch(self._first)

    async def _rehearse(self) -> Mapping[str, str]:
        """What can fail without a model fails before there is one. Afterwards it would tell of the model."""
        job = await in_thread_whole(self._job, None)
        try:
            found = await self._services.executor.rehearse(job)
        except CodeChangedError:
            await in_thread_whole(self._services.agreements.refused, self._study, number=self._number)
            raise
        await in_thread_whole(self._services.agreements.require, self._study, found, number=self._number)
        return found

    async def _go_on(self, announcement: pb.PhaseAnnouncement) -> None:
        """After a restart: take part in the later phases, if the protection remembers. What was charged stays so."""
        half = await in_thread_whole(self._remembered_half, announcement)
        await self._protect_and_send(half, SiteMetrics())

    def _remembered_half(self, announcement: pb.PhaseAnnouncement) -> NodeHalf:
        self._services.policy.check_announcement(self._resolved, announcement)
        if self._memory().load() is None:
            raise RestartedError("this node has no memory of the round's earlier phases")
        self._store.require_under_way(*self.key)
        context = self._context()
        return self._half(context, {}, WEIGHT_UNITS)

    def _check(self, announcement: pb.PhaseAnnouncement) -> None:
        """2. Check the announcement against the approved study, the site's policy, and what was announced before."""
        self._services.policy.check_announcement(self._resolved, announcement)
        if self._layout.digest_of(announcement.model.object.sha256) != announcement.model.digest:
            raise ProtectionError("the model's digest does not match its blocks")
        cohort = hashlib.sha256("\n".join(sorted(announcement.invited)).encode() + announcement.model.digest)
        self._store.advance(announcement.round, announcement.attempt, cohort.digest())

    def _kept(self) -> KeptUpdate | None:
        """What was trained for this round in an earlier attempt; None where nothing was.

        Raises `RefusedError` where it was sent and is lost, or was made of another model.
        """
        number, base = self._number, _base(self._first)
        if self._resolved.leaves_once(self._kind):
            self._store.require_first(number)
        kept = KeptUpdate.load(self._store.kept_update(number))
        if kept is None:
            self._store.require_unsent(number)
            self._store.require_unsent(self._first.round)  # 0 of a declaration, which is made of the first training
            return None
        self._store.fix_base(number, base)
        log.info("this round's training is done already: the same update goes into this attempt")
        return kept

    async def _fetch(self, announcement: pb.PhaseAnnouncement) -> Path:
        """3. Fetch the shared model; keep it only if it is the announced one, and one that rounds can have made."""
        number, target = self._number, announcement.model.object
        models = await in_thread_whole(VerifiedModels, self._resolved, self._store.folder, self._layout)
        route = await in_thread_whole(models.route, announcement.model, number=number)
        await in_thread_whole(self._store.fix_base, number, _base(announcement))
        for step in route:
            incoming = IncomingObject(self._scratch("received.bin"), step.object)
            await self._services.session.download(self._resolved.id, incoming, durable=True)
            received = await in_thread_whole(models.accept, incoming.path, step)
        self._version = route[-1].version if self._study.rounds.is_buffered else None
        self._services.listener(Fetched(**self._about(), bytes=target.size))
        return received

    async def _train(self, received: Path, found: Mapping[str, str], charge: Charge | None = None) -> Result:
        """5.–6. Have the data loaded, the model trained and the blocks selected, in a process of its own."""
        # By the code that was tried: another process may have loaded another since.
        job = replace(await in_thread_whole(self._job, received), code=found.get("code", ""))
        begun = time.monotonic()
        (charge or self._charge).computing()
        result = await self._services.executor.run(job)
        self._seconds = await _paused(self._services.file, job.kind, time.monotonic() - begun)
        self._services.listener(Trained(**self._about(), seconds=self._seconds))
        return result

    def _job(self, received: Path | None) -> Job:
        file, number = self._services.file, self._number
        return make_job(
            file,
            self._store,
            kind=RoundKind.TRAIN if self._kind is RoundKind.DECLARE else self._kind,
            key=(number, self._first.attempt),
            dataset=file.datasets[self._study.task.dataset_id],
            seed=self._services.training_seed(self._resolved, number),
            layout=self._layout,
            received=received,
            scratch=self._scratch,
            secrets=self._services.data_secrets(self._resolved, number, self._first.attempt),
            mechanism=self._privacy.mechanism,
            epochs=self._privacy.epochs(number, trains=self._kind is not RoundKind.EVALUATE),
            asked=tuple(self._first.asked),
            task=self._services.agreements.task_file(self._study, number=number),
            package=self._services.agreements.package(self._study),
            version=self._version,
        )

    def _keep_update(self, result: Result) -> KeptUpdate:
        """7. Clip, weigh and round the update, and keep it: from here on it is integers, the same in every attempt."""
        context, number = self._context(), self._number
        kept = encode(
            self._resolved,
            context,
            result,
            base=_base(self._first),
            trained=self._scratch("update.safetensors") if self._kind is not RoundKind.EVALUATE else None,
            stream=KeyStream(self._services.randomness(*_names(self._study, self._number, "rounding")).bytes(32)),
            check_size=self._services.policy.check_upload,
        )
        if context.compares:
            self._scratch("features.safetensors").replace(self._store.kept_features(number))
        kept = replace(kept, seconds=self._seconds)
        self._save(kept)
        return kept

    def _save(self, kept: KeptUpdate) -> None:
        kept.save(self._store.kept_update(self._number), bits=self._study.protection.bits)

    def _encoded_half(self, kept: KeptUpdate) -> NodeHalf:
        context = self._context()
        features = self._store.kept_features(self._number) if context.compares else None
        self._seconds = kept.seconds
        return self._half(context, dict(kept.blocks), kept.weight, features)

    def _half(
        self, context: RoundContext, blocks: dict[str, Integers], weight: int, features: Path | None = None
    ) -> NodeHalf:
        giving = self._giving(context)
        randomness, memory = self._services.randomness(*_names(self._study, self.key, "protect")), self._memory()
        return giving.half(blocks, weight, features, randomness=randomness, memory=memory, seconds=self._seconds)

    def _giving(self, context: RoundContext) -> Giving:
        return Giving(self._services, self._resolved, self._protection, self._store, context)

    async def _protect_and_send(self, half: NodeHalf, metrics: SiteMetrics) -> None:
        """8.–10. Phase by phase: let the protection answer, charge the site, send."""
        phases = self._phases
        while True:
            phase = self._current.phase
            question = await self._question()
            # 8. Let the protection answer.
            answer = await in_thread_whole(half.answer, phase, question)
            if phase == phases[-1]:
                # Before the last word is sent: once it arrives the round may be over, and this task with it.
                await in_thread_whole(self._keep, half)
            carries = phase == self._protection.carrier
            header = await in_thread_whole(self._header, phase, answer, metrics if carries else None)
            if carries:
                # 9. Charge durably, then send: a byte that may have left is a byte that left.
                await in_thread_whole(self._spend, header, answer.pledged)
            if phase == phases[0]:
                await self._answer_time()
            # 10. Send: the same bytes, until they are acknowledged or refused.
            await self._services.session.upload(header, answer.bulk)
            self._services.listener(AnswerSent(**self._about(), phase=phase, bytes=len(answer.bulk) + len(answer.body)))
            if phase == phases[-1]:
                return
            del answer  # It may be as large as the model.
            await self._next_phase(phases[phases.index(phase) + 1 :])
            if phase == phases[0]:
                # Whoever announces a second phase has every first answer: it has no reason to begin again.
                await in_thread_whole(self._store.spend, *self.key)

    def _spend(self, header: pb.UploadHeader, pledged: int) -> None:
        self._store.note_sent(self._first.round)
        self._charge.spend(release(self._resolved, header, pledged=pledged))

    async def _next_phase(self, later: tuple[str, ...]) -> None:
        # Waiting for others is no fault of this node: the coordinator announces, or closes the round.
        self._allow(None)
        announcement = await self._asked.get()
        self._services.policy.check_announcement(self._resolved, announcement)
        # Not every phase asks every node; whether one may be left out is for the protection to say.
        if announcement.phase not in later or announcement.model.digest != self._first.model.digest:
            raise ProtectionError(f"phase {announcement.phase!r} was announced where {later[0]!r} follows")
        self._current = announcement
        self._allow(announcement)

    def _allow(self, announcement: pb.PhaseAnnouncement | None) -> None:
        """Let the node take as long as the announcement says, from now."""
        if self._timeout is not None and not self.is_over and not self._timeout.expired():
            self._timeout.reschedule(None if announcement is None else _deadline(announcement))

    async def _question(self) -> Message:
        """What the coordinator says in the current phase, bulk fetched and checked."""
        path = self._scratch(f"{self._current.phase}.bin")
        return await fetched_question(self._services.session, self._resolved.id, self._current, path)

    def _header(self, phase: str, answer: Message, metrics: SiteMetrics | None) -> pb.UploadHeader:
        key, about = self._services.me.key, (self._kind, self.key)
        return signed_header(self._resolved, key, about=about, phase=phase, answer=answer, metrics=metrics)

    def _keep(self, half: NodeHalf) -> None:
        """15. Keep what was opened here and nowhere else; scratch files go when the round ends."""
        if isinstance(half, CombiningNodeHalf) and (combination := half.combination()):
            means = decode_sums(dict(combination), self._resolved.codec)
            blocks = {name: block.mean for name, block in means.items()}
            save_arrays(self._store.path("combination", self._first.round), blocks)
        self._tidy(self._first.round)

    def _tidy(self, number: int) -> None:
        self._store.tidy(number=number)

    # --- small things -----------------------------------------------------------------------------------------

    def _new_charge(self) -> Charge:
        about = {"number": self._number, "attempt": self._first.attempt}
        return Charge(self._services.accountant, self._privacy, trains=self._kind is not RoundKind.EVALUATE, **about)

    def _context(self) -> RoundContext:
        return announced_context(self._resolved, self._first, self._layout)

    def _memory(self) -> AttemptMemory:
        return self._store.memory(*self.key)

    def _scratch(self, name: str) -> Path:
        return self._store.scratch(f"{self._first.round}-{self._first.attempt}-{name}")

    def _about(self) -> _About:
        return {"study_id": self._resolved.id, "round": self._first.round}

    async def _answer_time(self) -> None:
        """Wait for the next multiple of `[policy] answer_after`: how long training took is the site's business."""
        if every := self._services.file.policy.answer_after:
            await asyncio.sleep(every - (time.monotonic() - self._heard) % every)

    async def _sit_out_in_time(self, error: Exception) -> None:
        await self._answer_time()
        if self._unready:
            self._services.unready(self._resolved.id, self._rehearse, error)
        self._sit_out(spoken(error))

    def _sit_out(self, code: str) -> None:
        self._refusal = code
        body = pb.SitOut(round=self._first.round, attempt=self._first.attempt, reason=code)
        self._services.session.say(pb.NodeMessage(study_id=self._resolved.id, sit_out=body))


def _names(study: Study, part: int | tuple[int, int], purpose: str) -> tuple[str, ...]:
    """What randomness is for: it matters in simulations only, which draw alike from run to run.

    Without the study's id, since certificates differ from run to run. Rounding belongs to the round, and all else to
    the attempt: which attempt a circle's is depends on who came first.
    """
    return study.study.name, str(part), purpose


def _deadline(announcement: pb.PhaseAnnouncement) -> float:
    return asyncio.get_running_loop().time() + announcement.deadline_ms / 1000


def _base(announcement: pb.PhaseAnnouncement) -> bytes:
    """What a round's training begins from, in every attempt: the model, and which blocks of it are asked for."""
    if not announcement.asked:
        return announcement.model.digest
    return hashlib.sha256("\n".join(announcement.asked).encode() + announcement.model.digest).digest()


async def _paused(file: NodeFile, kind: RoundKind, seconds: float) -> float:
    """How long it took, once a simulated machine has trained for its least time, and as much longer as it is slower."""
    if file.simulation is None:
        return seconds
    taken = file.simulation.slowdown * max(seconds, file.simulation.seconds if kind is RoundKind.TRAIN else 0.0)
    await asyncio.sleep(taken - seconds)
    return taken
