"""A coordinator that cheats a node, and a node that abuses its coordinator: each was possible once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import node.models
from node.config import NodeFile
from node.policy import Policy
from node.service import Node
from node.store import StudyStore
from node.training.executor import Executor
from node.training.jobs import Job
from node.training.worker import WorkerProcess
from secure_fl.blocks import BlockShape, Layout, TensorShape
from secure_fl.errors import NotConnectedError, ProtectionError, RefusedError, TrainingError
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.local import LocalLink
from secure_fl.transport.wire import layout_to_wire, reference, sign_upload_header
from tests.support.federation import Federation
from tests.support.training import FakeTraining

LAYOUT = Layout((BlockShape(name="features", tensors=(TensorShape(name="w", shape=(3,)),)),))
WEIGHTS = bytes(12)
INITIAL = LAYOUT.digest(LAYOUT.unflatten(WEIGHTS)).hex()
HANGS = 150  # seconds, below pytest's own limit: no test is about them, and one that hangs should still tidy up


class EvilCoordinator:
    """Says what a test wants, and remembers what the node sends."""

    def __init__(self, fed: Federation) -> None:
        self.fed = fed
        self.outbox: asyncio.Queue[pb.CoordinatorMessage] = asyncio.Queue()
        self.uploads: list[pb.UploadHeader] = []
        self.models: dict[bytes, bytes] = {}  # that it announced, by digest
        self.fetched: list[bytes] = []
        self.said: asyncio.Queue[pb.NodeMessage] = asyncio.Queue()
        self._came = asyncio.Condition()  # an upload

    async def session(self, peer: Any, incoming: AsyncIterator[pb.NodeMessage]) -> AsyncIterator[pb.CoordinatorMessage]:
        reader = asyncio.create_task(self._read(incoming))
        yield pb.CoordinatorMessage(welcome=pb.Welcome(version=1, heartbeat_ms=60_000))
        offer = pb.StudyOffer(settings=self.fed.study.canonical())
        yield pb.CoordinatorMessage(study_id=self.fed.study.id, study_offer=offer)
        try:
            while True:
                yield await self.outbox.get()
        finally:
            reader.cancel()

    async def _read(self, incoming: AsyncIterator[pb.NodeMessage]) -> None:
        async for message in incoming:
            if message.WhichOneof("body") in ("sit_out", "study_answer"):
                self.said.put_nowait(message)

    async def upload(self, peer: Any, parts: AsyncIterator[pb.UploadPart]) -> pb.UploadReceipt:
        collected = [part async for part in parts]
        async with self._came:
            self.uploads.append(collected[0].header)
            self._came.notify_all()
        return pb.UploadReceipt(study_id=self.fed.study.id, upload_id=collected[0].header.upload_id)

    async def download(self, peer: Any, request: pb.DownloadRequest) -> AsyncIterator[pb.Chunk]:
        self.fetched.append(self.models[request.sha256])
        yield pb.Chunk(study_id=request.study_id, offset=0, data=self.models[request.sha256])

    def announce(
        self, *, number: int = 1, attempt: int = 1, invited: tuple[str, ...] = (), weights: bytes = WEIGHTS,
        first: bytes = b"", version: int = 0, **changes: Any,
    ) -> None:  # fmt: skip
        """An announcement that is right but for the changes."""
        model = pb.ModelRef(
            version=version, digest=LAYOUT.digest(LAYOUT.unflatten(weights)), blocks=layout_to_wire(LAYOUT),
            object=reference(weights), first=reference(first) if first else None,
        )  # fmt: skip
        self.models.update({reference(each).sha256: each for each in (first, weights)})
        body = pb.PhaseAnnouncement(
            round=number, attempt=attempt, kind=pb.ROUND_KIND_TRAIN, phase="upload", deadline_ms=60_000, model=model,
            invited=invited or self.fed.names, payload=pb.Payload(protection="none", phase="upload", version=1),
        )  # fmt: skip
        if declared := changes.pop("declared", b""):
            body.declared.CopyFrom(reference(declared))
        body.asked.extend(changes.pop("asked", ()))
        if payload := changes.pop("payload", None):
            body.payload.CopyFrom(payload)
        for name, value in changes.items():
            setattr(body, name, value)
        self.outbox.put_nowait(pb.CoordinatorMessage(study_id=self.fed.study.id, announcement=body))

    async def answer(self) -> str:
        """The code by which the node refuses."""
        return (await self.said.get()).sit_out.reason

    async def next_upload(self, count: int) -> None:
        """Wait until the node has sent that many uploads, however long a busy machine takes to train."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.uploads) >= count)

    async def outcome(self, count: int) -> str:
        """Whatever comes first: the code by which the node refuses, or "uploaded" with that many uploads."""
        refused, sent = asyncio.ensure_future(self.answer()), asyncio.ensure_future(self.next_upload(count))
        try:
            done, _ = await asyncio.wait({refused, sent}, return_when=asyncio.FIRST_COMPLETED)
            return refused.result() if refused in done else "uploaded"
        finally:
            refused.cancel()
            sent.cancel()


def against_a_node(
    folder: Path,
    scenario: Callable[[EvilCoordinator, asyncio.Task[None], Node], Any],
    *,
    settings: dict[str, Any] | None = None,
    training: Executor | None = None,
    policy: dict[str, Any] | None = None,
) -> None:
    """One real node, one evil coordinator."""

    async def run() -> None:
        fed = Federation(folder / "run", {"study": {"rounds": 2, "initial": INITIAL}, **(settings or {})})
        fed.set_policy("site-01", **(policy or {}))
        evil = EvilCoordinator(fed)
        file = NodeFile.read(fed.workspace.node_file("site-01"))
        node = Node(file, _Fixed(evil, file), training or FakeTraining())
        task = asyncio.create_task(node.run())
        try:
            async with asyncio.timeout(HANGS):
                assert (await evil.said.get()).study_answer.accepted
                await scenario(evil, task, node)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


class _Fixed:
    def __init__(self, service: Any, file: NodeFile) -> None:
        self._service, self._peer = service, file.credential().certificate

    async def connect(self) -> LocalLink:
        return LocalLink(self._service, self._peer)


def test_an_attempt_has_one_cohort_and_time_does_not_run_backwards(tmp_path: Path) -> None:
    async def scenario(evil: EvilCoordinator, _task: Any, _node: Node) -> None:
        evil.announce(number=1, attempt=2)
        await evil.next_upload(1)
        for number, attempt in ((1, 1), (1, 4), (1, 2**32 - 1), (9, 1)):
            evil.announce(number=number, attempt=attempt)
            assert await evil.answer() == "Refused"
        evil.announce(number=2, attempt=1)
        await evil.next_upload(2)
        # The attempt before, and this one once more with a site fewer: two cohorts that differ by one reveal one.
        evil.announce(number=1, attempt=2)
        assert await evil.answer() == "Refused"
        evil.announce(number=2, attempt=1, invited=evil.fed.names[:3])
        assert await evil.answer() == "Refused"
        assert len(evil.uploads) == 2

    against_a_node(tmp_path, scenario)


def test_lies_leave_nothing_on_the_nodes_disk_and_cost_only_their_round(tmp_path: Path) -> None:
    async def scenario(evil: EvilCoordinator, task: asyncio.Task[None], _node: Node) -> None:
        folder = evil.fed.workspace.node_folder("site-01") / "studies" / evil.fed.study.id
        for attempt in (1, 2, 3):
            evil.announce(attempt=attempt)
            message = evil.outbox.get_nowait()
            message.announcement.model.digest = bytes([attempt] * 32)
            evil.outbox.put_nowait(message)
            assert await evil.answer() == "Protection"
        assert not list(folder.glob("scratch-*"))
        assert not task.done()
        evil.announce(number=2)
        await evil.next_upload(1)

    against_a_node(tmp_path, scenario)


def test_a_node_that_is_stopped_neither_trains_nor_sends(tmp_path: Path) -> None:
    async def scenario(evil: EvilCoordinator, task: asyncio.Task[None], node: Node) -> None:
        node.stop()
        evil.announce()
        await asyncio.wait_for(task, 5)
        assert not evil.uploads

    against_a_node(tmp_path, scenario)


def test_a_model_of_countless_empty_tensors_is_refused_at_once(tmp_path: Path) -> None:
    async def scenario(evil: EvilCoordinator, task: asyncio.Task[None], _node: Node) -> None:
        evil.announce()
        message = evil.outbox.get_nowait()
        message.announcement.model.blocks[0].tensors.extend([pb.TensorEntry(shape=[0])] * 20_000)
        evil.outbox.put_nowait(message)
        await asyncio.sleep(1)
        assert not task.done()
        assert not evil.uploads

    against_a_node(tmp_path, scenario)


def test_a_model_larger_than_the_site_allows_is_not_fetched(tmp_path: Path) -> None:
    async def scenario(evil: EvilCoordinator, _task: Any, node: Node) -> None:
        fetched = []
        evil.download = lambda *request: fetched.append(request)  # type: ignore[method-assign, assignment]
        evil.announce()
        message = evil.outbox.get_nowait()
        message.announcement.model.object.size = 2**30 + 1
        evil.outbox.put_nowait(message)
        assert await evil.answer() == "Refused"
        assert not fetched

    against_a_node(tmp_path, scenario)


# --- against the coordinator ----------------------------------------------------------------------------------


def test_one_upload_at_a_time_and_none_larger_than_an_answer_can_be(tmp_path: Path) -> None:
    async def run() -> None:
        fed = Federation(tmp_path / "run", {"rounds": {"deadline": 5, "gather": 2}})
        held = asyncio.Event()
        study = asyncio.create_task(fed.coordinate())
        for name in fed.names[1:]:
            fed.start_node(name, executor=_Held(held))
        await asyncio.sleep(0.5)
        file = NodeFile.read(fed.workspace.node_file("site-02"))
        service = fed.services[0]
        assert service is not None
        link = LocalLink(service, file.credential().certificate)
        while not any(kind == "round-started" for kind, _ in fed.events):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

        def header(size: int) -> pb.UploadHeader:
            payload = pb.Payload(protection="none", phase="upload", version=1)
            bulk = pb.ObjectRef(sha256=bytes(32), size=size)
            made = pb.UploadHeader(
                study_id=fed.study.id, round=1, attempt=1, phase="upload", payload=payload, bulk=bulk
            )
            sign_upload_header(made, file.credential().signing_key)
            return made

        async def stalled(size: int) -> AsyncIterator[pb.UploadPart]:
            yield pb.UploadPart(header=header(size))
            await asyncio.sleep(60)

        with pytest.raises(ProtectionError):
            await link.upload(stalled(10**9), timeout=10)
        hanging = [asyncio.create_task(link.upload(stalled(1000 + n), timeout=30)) for n in range(5)]
        await asyncio.sleep(0.5)
        # Every newer upload ended the one before it: one is left.
        outcomes = [task.exception() for task in hanging if task.done()]
        assert len(outcomes) == 4
        assert all(isinstance(outcome, NotConnectedError) for outcome in outcomes)
        assert len(list((fed.workspace.study_state / "spool").iterdir())) <= 1
        held.set()
        record = await study
        assert record is not None
        assert record.rounds[0].cohort == fed.names[1:]
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        await fed.close()

    asyncio.run(asyncio.wait_for(run(), 60))


class _Held(FakeTraining):
    def __init__(self, event: asyncio.Event) -> None:
        super().__init__()
        self._event = event

    async def run(self, job: Job) -> Any:
        await self._event.wait()
        return await super().run(job)


# --- between studies ------------------------------------------------------------------------------------------


def test_results_of_one_study_never_become_the_answer_to_another(tmp_path: Path) -> None:
    """Jobs share a process; a cancelled or broken one leaves nothing in the pipe."""
    echo = (
        "import sys, json, hashlib, time\n"
        "for line in sys.stdin.buffer:\n"
        "    job = json.loads(line)\n"
        "    time.sleep(job['round'] / 10)\n"
        "    digest = hashlib.sha256(line.strip()).hexdigest() if job['me'] != 'liar' else 'x'\n"
        "    metrics = dict(samples=job['round'], accuracy=None, loss=None, mse=None, global_accuracy=None)\n"
        "    result = dict(samples=job['round'], metrics=metrics, row={})\n"
        "    print(json.dumps(dict(job=digest, result=result)), flush=True)\n"
    )

    def job(number: int, me: str = "site-01") -> Job:
        return Job(
            kind=RoundKind.TRAIN, study="", round=number, attempt=1, seed=1, me=me, dataset={}, folder="", device="cpu",
            threads=1, layout=[], received="", personal="", combination="", state="", update_to="", personal_to="",
            state_to="", features_to="", model_to="",
        )  # fmt: skip

    async def run() -> None:
        import sys

        worker = WorkerProcess((sys.executable, "-c", echo))
        results = await asyncio.gather(*(worker.run(job(number)) for number in (3, 1, 2)))
        assert [result.samples for result in results] == [3, 1, 2]
        cancelled = asyncio.create_task(worker.run(job(5)))
        await asyncio.sleep(0.2)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert (await worker.run(job(1))).samples == 1
        with pytest.raises(TrainingError):
            await worker.run(job(1, me="liar"))
        assert (await worker.run(job(2))).samples == 2
        await worker.close()

    asyncio.run(asyncio.wait_for(run(), 30))


# --- models of the coordinator's choosing -------------------------------------------------------------------------

OTHER_WEIGHTS = bytes(8) + b"\x00\x00\x80\x3f"  # the last one is 1.0


@pytest.mark.parametrize("checked", [True, False], ids=["shipped", "without the check"])
@pytest.mark.parametrize("number", [1, 2])
def test_no_model_is_measured_before_the_study_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, checked: bool
) -> None:
    """Asked in any round, a site would tell its accuracy and loss on any model: twice, with it and without."""
    if not checked:
        monkeypatch.setattr(Policy, "check_announcement", lambda *_: None)

    async def scenario(evil: EvilCoordinator, _task: asyncio.Task[None], _node: Node) -> None:
        evil.announce(number=number, kind=pb.ROUND_KIND_EVALUATE)
        if checked:
            assert await evil.answer() == "Refused"
            assert not evil.uploads
        else:
            await evil.next_upload(1)

    against_a_node(tmp_path, scenario)


def test_the_closing_round_measures_and_trains_nobody(tmp_path: Path) -> None:
    async def scenario(evil: EvilCoordinator, _task: asyncio.Task[None], _node: Node) -> None:
        closing = evil.fed.study.study.rounds + 1
        evil.announce(number=closing, kind=pb.ROUND_KIND_TRAIN)
        assert await evil.answer() == "Refused"
        evil.announce(number=closing, kind=pb.ROUND_KIND_EVALUATE, attempt=2)
        await evil.next_upload(1)

    against_a_node(tmp_path, scenario)


@pytest.mark.parametrize("checked", [True, False], ids=["shipped", "without the check"])
def test_a_round_has_one_model_in_every_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool) -> None:
    if not checked:
        monkeypatch.setattr(StudyStore, "fix_base", lambda *_: None)
        # This would refuse as well, as one step too many.
        monkeypatch.setattr(node.models, "require_step", lambda *_, **__: None)

    async def scenario(evil: EvilCoordinator, _task: asyncio.Task[None], _node: Node) -> None:
        evil.announce()
        await evil.next_upload(1)
        evil.announce(number=2, attempt=1, weights=OTHER_WEIGHTS)
        await evil.next_upload(2)
        evil.announce(number=2, attempt=2)
        if checked:
            assert await evil.answer() == "Refused"
            evil.announce(number=2, attempt=3, weights=OTHER_WEIGHTS)  # from the same one again
        await evil.next_upload(3)

    against_a_node(tmp_path, scenario)


def test_a_restart_does_not_change_a_rounds_model(tmp_path: Path) -> None:
    store = StudyStore(tmp_path)
    store.fix_base(3, b"a" * 32)
    again = StudyStore(tmp_path)
    again.fix_base(3, b"a" * 32)
    for number, digest in ((3, b"b" * 32), (2, b"a" * 32)):
        with pytest.raises(RefusedError):
            again.fix_base(number, digest)
    again.fix_base(4, b"b" * 32)
