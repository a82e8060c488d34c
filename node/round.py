"""One node in one attempt at one round. Reads as the data's path (docs/DATA_PATH.md, 2–10 and 15).

    check → fetch → reserve → load → train → clip, weigh, round → protect → charge → send → keep

Every promise to the site is kept here, in the node's own process: nothing is fetched before the announcement is
checked, nothing is trained before its privacy is reserved, nothing is sent before it is charged.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.config import NodeFile
from node.jobs import FEATURES, Job, Result, layout_to_json
from node.policy import Policy
from node.store import StudyStore, load_blocks, save_blocks
from secure_fl import logs, traces
from secure_fl.blocks import Layout
from secure_fl.errors import ProtectionError, RestartedError, SecureFLError
from secure_fl.events import Listener, ignore
from secure_fl.identity.member import Member
from secure_fl.metrics import METRICS_BLOCK, SiteMetrics, metrics_codec, to_vector
from secure_fl.privacy.accountant import Accountant, Reservation
from secure_fl.protect.base import Contribution, Message, NodeHalf, Protection, RequestKind, RoundContext
from secure_fl.protect.combining import refusal, row_total, steady, whole_weights
from secure_fl.protect.memory import Memory
from secure_fl.protect.sketch import sketch
from secure_fl.protect.weights import WEIGHT_UNITS, quantise_weight
from secure_fl.randomness import KeyStream, Randomness
from secure_fl.round_context import round_context
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.strategies.aggregate import decode_sums, encode_update
from secure_fl.study import Study
from secure_fl.wire import layout_from_wire, reference, seal_upload

if TYPE_CHECKING:
    from node.session import Session
    from node.worker import Executor

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a round needs of the node it runs in."""

    file: NodeFile
    me: Member
    policy: Policy
    accountant: Accountant
    executor: Executor
    session: Session
    randomness: Callable[..., Randomness]  # a fresh source for one attempt
    listener: Listener = ignore


class Round:
    """Takes part in one attempt, phase by phase."""

    def __init__(self, site: Site, study: Study, store: StudyStore, announcement: pb.PhaseAnnouncement) -> None:
        self.key = (announcement.round, announcement.attempt)
        self._site = site
        self._study = study
        self._store = store
        self._first = announcement
        self._current = announcement
        self._layout = layout_from_wire(announcement.model.blocks)
        self._announced = {announcement.phase}
        self._asked: asyncio.Queue[pb.PhaseAnnouncement] = asyncio.Queue()
        self._timeout: asyncio.Timeout | None = None
        self._strategy = study.make_strategy()
        self._protection: Protection = study.make_protection()
        self._left_the_node = False
        self._refusal = ""
        self._finished = False

    @staticmethod
    def begins(study: Study, announcement: pb.PhaseAnnouncement) -> bool:
        """Whether this announces the first phase of an attempt."""
        kinds = (RequestKind.SUM, RequestKind.COMBINE)
        return any(announcement.phase == study.make_protection().phases(kind)[0] for kind in kinds)

    def announce(self, announcement: pb.PhaseAnnouncement) -> None:
        """A further phase, or the same one again because the coordinator did not get the answer."""
        if self._refusal:
            self._sit_out(self._refusal)  # It may have been lost with the link.
            return
        if announcement.phase not in self._announced and announcement.phase in self._phases():
            self._announced.add(announcement.phase)
            self._asked.put_nowait(announcement)
        elif announcement.phase == self._current.phase:
            self._allow(announcement)

    async def run(self) -> None:
        """Take part; whatever goes wrong, the node sits out and says only the error's code."""
        with logs.about(study=self._study.id, round=self._first.round):
            await self._run()

    async def _run(self) -> None:
        try:
            async with asyncio.timeout_at(_deadline(self._first)) as self._timeout:
                await self._take_part()
            self._emit("round-done")
        except TimeoutError:
            log.warning("too slow for the deadline; left out")
            self._refusal = "LateMessage"
            self._emit("sat-out", code="LateMessage")
        except SecureFLError as error:
            log.warning("sitting out: %s%s", error.message, f" → {error.hint}" if error.hint else "")
            self._emit("sat-out", code=error.code)
            self._sit_out(error.code)
        except Exception:
            log.exception("sitting out after an unexpected error")
            self._emit("sat-out", code="SecureFL")
            self._sit_out("SecureFL")
        finally:
            self._finished = True
            self._store.clear_scratch()

    async def _take_part(self) -> None:
        announcement = self._first
        if announcement.phase != self._phases()[0]:
            await self._go_on(announcement)
            return
        self._check(announcement)
        layout = self._layout
        received = await self._fetch(announcement, layout)
        reservation = self._reserve()
        try:
            result = await self._train(layout, received)
            context = self._context(announcement, layout)
            contribution = self._encode(context, result)
            half = self._half(context, contribution)
            await self._protect_and_send(half, reservation, result.metrics)
        except BaseException as error:
            if not self._left_the_node:
                reason = error.code if isinstance(error, SecureFLError) else type(error).__name__
                self._site.accountant.release(reservation, reason=reason)
            raise

    async def _go_on(self, announcement: pb.PhaseAnnouncement) -> None:
        """After a restart: take part in the later phases, if the protection remembers. What was charged stays so."""
        self._site.policy.check_announcement(self._study, announcement)
        if self._memory().load() is None:
            raise RestartedError("this node has no memory of the round's earlier phases")
        self._store.require_under_way(*self.key)
        context = self._context(announcement, self._layout)
        half = self._half(context, self._attentive(context, Contribution(blocks={}, weight=WEIGHT_UNITS)))
        self._left_the_node = True
        await self._protect_and_send(half, None, SiteMetrics())

    def _half(self, context: RoundContext, contribution: Contribution) -> NodeHalf:
        randomness = self._randomness("protect")
        return self._protection.node(context, self._site.me, contribution, randomness, self._memory())

    def _memory(self) -> Memory:
        return self._store.memory(*self.key)

    def _check(self, announcement: pb.PhaseAnnouncement) -> None:
        """2. Check the announcement against the approved study, the site's policy, and what was announced before."""
        self._site.policy.check_announcement(self._study, announcement)
        cohort = hashlib.sha256("\n".join(sorted(announcement.invited)).encode() + announcement.model.digest)
        self._store.advance(announcement.round, announcement.attempt, cohort.digest())

    async def _fetch(self, announcement: pb.PhaseAnnouncement, layout: Layout) -> Path:
        """3. Fetch the shared model; keep it only if it is the announced one, bit for bit."""
        path = self._store.scratch(f"{self._suffix()}-received.bin")
        target = announcement.model.object
        if target.size != 4 * layout.size:
            raise ProtectionError("the model's size does not fit its blocks")
        await self._site.session.download(
            self._study.id, target, lambda chunks: self._store.receive(target, chunks, path)
        )
        self._emit("fetched", bytes=target.size)
        blocks = layout.unflatten(path.read_bytes())
        if layout.digest(blocks) != announcement.model.digest:
            raise ProtectionError("the model's digest does not match its blocks")
        return path

    def _reserve(self) -> Reservation:
        """4. Set the round's privacy cost aside before anything is computed from the data."""
        reservation = Reservation(
            study_id=self._study.id,
            round=self._first.round,
            attempt=self._first.attempt,
            dataset=self._study.task.dataset_id,
        )
        self._site.accountant.reserve(reservation)
        return reservation

    async def _train(self, layout: Layout, received: Path) -> Result:
        """5.–6. Have the data loaded, the model trained and the blocks selected, in a process of its own."""
        file, number = self._site.file, self._first.round
        dataset = file.datasets[self._study.task.dataset_id]
        job = Job(
            kind="train" if self._first.kind == pb.ROUND_KIND_TRAIN else "evaluate",
            study=str(self._store.settings),
            round=number,
            attempt=self._first.attempt,
            me=self._site.me.name,
            dataset=dataset.model_dump(mode="json"),
            folder=str(file.path("")),
            device=file.node.device,
            threads=file.node.threads,
            layout=layout_to_json(layout),
            received=str(received),
            personal=_text(self._store.latest("personal", before=number)),
            combination=_text(self._store.combination(before=number)),
            update_to=str(self._update_path()),
            features_to=str(self._features_path()),
            personal_to=str(self._store.path("personal", number)),
            model_to=str(self._store.model),
            traces_to=str(self._store.traces),
            budget=file.policy.upload_parameters,
        )
        begun = time.monotonic()
        result = await self._site.executor.run(job)
        self._emit("trained", seconds=time.monotonic() - begun)
        return result

    def _encode(self, context: RoundContext, result: Result) -> Contribution:
        """7. Clip, weigh and round the update: from here on it is integers in the study's ring."""
        protection = self._study.protection
        stream = KeyStream(self._randomness("rounding").bytes(32))
        weight = WEIGHT_UNITS
        if context.kind is RequestKind.SUM:
            weight = quantise_weight(
                result.samples,
                reference_samples=protection.reference_samples,
                min_cohort=context.min_cohort,
                colluders=context.colluders,
            )
        training = self._first.kind == pb.ROUND_KIND_TRAIN
        update = load_blocks(self._update_path()) if training else {}
        self._site.policy.check_upload(sum(vector.size for vector in update.values()))
        layout = Layout(tuple(shape for shape in context.layout if shape.name != METRICS_BLOCK))
        contribution, clipped = encode_update(
            update, layout=layout, codec=self._study.codec(), weight=weight, stream=stream
        )
        if clipped:
            log.warning(
                "%d of %d values were beyond ±%g and were clipped; raise protection.clip or train more gently",
                clipped, layout.size, protection.clip,
            )  # fmt: skip
        if METRICS_BLOCK in context.layout.names:
            vector = to_vector(result.metrics, ceiling=self._study.metrics.ceiling)
            values, _ = metrics_codec(protection.bits).encode(vector, weight=weight, stream=stream)
            contribution = replace(contribution, blocks={**contribution.blocks, METRICS_BLOCK: values})
        if context.attention:
            features = load_blocks(self._features_path())[FEATURES]
            contribution = replace(contribution, sketch=sketch(features, binding=context.binding))
        return self._attentive(context, contribution)

    def _attentive(self, context: RoundContext, contribution: Contribution) -> Contribution:
        return replace(contribution, attend=partial(self._attend, context))

    def _attend(self, context: RoundContext, squared_distances: Mapping[str, float]) -> Mapping[str, int]:
        """How this site weighs those who uploaded: the strategy's word, in whole numbers."""
        if context.attention:
            self._store.keep_distances(squared_distances)
        elif self._strategy.attention:
            known = self._store.distances()
            squared_distances = {name: known[name] for name in squared_distances if name in known}
        wanted = self._strategy.attend(self._site.me.name, squared_distances)
        row = self._steady(context, squared_distances, whole_weights(wanted, row_total(len(context.invited))))
        traces.note(self._store.rows, self._first.round, {"asked": row})
        return row

    def _steady(self, context: RoundContext, uploaded: Collection[str], row: Mapping[str, int]) -> Mapping[str, int]:
        """A row that holders will open after those this site asked for before. It is written down before it is said."""
        me, asked = self._site.me.name, self._store.asked()
        row = steady(row, me=me, uploaded=uploaded, colluders=context.colluders, asked=asked)
        if not row or row in asked:
            return row
        if not refusal(row, me=me, uploaded=uploaded, colluders=context.colluders, asked=[]):
            self._store.keep_asked([*asked, row])
        return row

    async def _protect_and_send(self, half: NodeHalf, reservation: Reservation | None, metrics: SiteMetrics) -> None:
        """8.–10. Phase by phase: let the protection answer, charge the site, send."""
        phases = self._phases()
        while True:
            phase = self._current.phase
            answer = half.answer(phase, await self._question())
            if phase == phases[-1]:
                # Before the last word is sent: once it arrives the round may be over, and this task with it.
                self._keep(half)
            carries = phase == self._protection.carrier
            header = self._header(phase, answer, metrics if carries else None)
            if carries and reservation is not None:
                # 9. Charge durably, then send: a byte that may have left is a byte that left.
                self._site.accountant.commit(reservation, release=self._release(header))
                self._left_the_node = True
            await self._site.session.upload(header, answer.bulk)
            self._emit("answered", phase=phase, bytes=len(answer.bulk) + len(answer.body))
            if phase == phases[-1]:
                return
            await self._next_phase(phases[phases.index(phase) + 1 :])
            if phase == phases[0]:
                # Whoever announces a second phase has every first answer: it has no reason to begin again.
                self._store.spend(*self.key)

    async def _next_phase(self, later: tuple[str, ...]) -> None:
        # Waiting for others is no fault of this node: the coordinator announces, or closes the round.
        self._allow(None)
        announcement = await self._asked.get()
        self._site.policy.check_announcement(self._study, announcement)
        # Not every phase asks every node; whether one may be left out is for the protection to say.
        if announcement.phase not in later or announcement.model.digest != self._first.model.digest:
            raise ProtectionError(f"phase {announcement.phase!r} was announced where {later[0]!r} follows")
        self._current = announcement
        self._allow(announcement)

    def _allow(self, announcement: pb.PhaseAnnouncement | None) -> None:
        """Let the node take as long as the announcement says, from now."""
        if self._timeout is not None and not self._finished:
            self._timeout.reschedule(None if announcement is None else _deadline(announcement))

    async def _question(self) -> Message:
        """What the coordinator says in the current phase, bulk fetched and checked."""
        announcement = self._current
        if not announcement.HasField("bulk"):
            return Message(body=announcement.payload.body)
        path = self._store.scratch(f"{self._suffix()}-{announcement.phase}.bin")
        await self._site.session.download(
            self._study.id,
            announcement.bulk,
            lambda chunks: self._store.receive(announcement.bulk, chunks, path),
        )
        return Message(body=announcement.payload.body, bulk=path.read_bytes())

    def _header(self, phase: str, answer: Message, metrics: SiteMetrics | None) -> pb.UploadHeader:
        header = pb.UploadHeader(
            study_id=self._study.id,
            round=self._first.round,
            attempt=self._first.attempt,
            phase=phase,
            payload=pb.Payload(
                protection=self._protection.name,
                phase=phase,
                version=self._protection.payload_version,
                body=answer.body,
            ),
            bulk=reference(answer.bulk),
        )
        if metrics is not None and self._study.metrics.share == "per-node":
            header.metrics.CopyFrom(_report(metrics))
        seal_upload(header, self._site.me.key)
        return header

    def _release(self, header: pb.UploadHeader) -> dict[str, str | int]:
        return {
            "upload": header.upload_id.hex(),
            "bytes": header.bulk.size + len(header.payload.body),
            "protection": self._protection.name,
            "metrics": self._study.metrics.share,
        }

    def _keep(self, half: NodeHalf) -> None:
        """15. Keep what was opened here and nowhere else; scratch files go when the round ends."""
        if combination := half.combination():
            means = decode_sums(combination, self._study.codec())
            blocks = {name: block.mean for name, block in means.items()}
            save_blocks(self._store.path("combination", self._first.round), blocks)
        self._store.tidy(number=self._first.round)

    # --- small things -----------------------------------------------------------------------------------------

    def _context(self, announcement: pb.PhaseAnnouncement, layout: Layout) -> RoundContext:
        return round_context(
            self._study,
            number=announcement.round,
            attempt=announcement.attempt,
            training=announcement.kind == pb.ROUND_KIND_TRAIN,
            base_model=announcement.model.digest,
            invited=tuple(announcement.invited),
            shared=layout,
            kind=self._kind(announcement, layout),
        )

    def _phases(self) -> tuple[str, ...]:
        return self._protection.phases(self._kind(self._first, self._layout))

    def _kind(self, announcement: pb.PhaseAnnouncement, layout: Layout) -> RequestKind:
        if announcement.kind != pb.ROUND_KIND_TRAIN:
            return RequestKind.SUM
        # The strategy says what it asks for; which blocks those are is checked against the task in training.
        return self._strategy.request(layout, ()).kind

    def _randomness(self, purpose: str) -> Randomness:
        # The context matters in simulations only. It leaves the study's id out: certificates differ from run to run.
        return self._site.randomness(self._study.study.name, str(self.key), purpose)

    def _features_path(self) -> Path:
        return self._store.scratch(f"{self._suffix()}-features.safetensors")

    def _update_path(self) -> Path:
        return self._store.scratch(f"{self._suffix()}-update.safetensors")

    def _suffix(self) -> str:
        return f"{self._first.round}-{self._first.attempt}"

    def _emit(self, event: str, **fields: Any) -> None:
        self._site.listener(event, {"study_id": self._study.id, "round": self._first.round, **fields})

    def _sit_out(self, code: str) -> None:
        self._refusal = code
        body = pb.SitOut(round=self._first.round, attempt=self._first.attempt, reason=code)
        self._site.session.say(pb.NodeMessage(study_id=self._study.id, sit_out=body))


def _deadline(announcement: pb.PhaseAnnouncement) -> float:
    return asyncio.get_running_loop().time() + announcement.deadline_ms / 1000


def _text(path: Path | None) -> str:
    return "" if path is None else str(path)


def _report(metrics: SiteMetrics) -> pb.MetricsReport:
    report = pb.MetricsReport(samples=metrics.samples or 0)
    for field in ("accuracy", "loss", "mse", "global_accuracy"):
        value = getattr(metrics, field)
        if value is not None:
            setattr(report, field, value)
    return report
