"""Peers that stall, flood and hang up at the worst moment: what they cost, and whom."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import coordinator.sessions
import node.session
from coordinator.machine import RoundMachine
from coordinator.service import Coordinator
from coordinator.sessions import Hub
from secure_fl.errors import MalformedMessageError, NotConnectedError, ProtectionError
from secure_fl.identity.certificates import Certificate
from secure_fl.limits import SESSION_QUEUE
from secure_fl.messages import parse
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.rpc.protect_none_pb2 import PlainUpload
from secure_fl.study.settings import Study
from secure_fl.transport import pace
from secure_fl.transport.pace import Backoff
from secure_fl.transport.wire import our_versions, reference, sign_upload_header
from tests.attacks.test_attacks import EvilCoordinator, against_a_node
from tests.fuzz.coordinator_target import HONEST, Held, World
from tests.fuzz.mutation import varint
from tests.fuzz.watch import settled_tasks, watched
from tests.support.submission import submit


def in_a_round(folder: Path, scenario: Any, *, rounds: int = 1) -> None:
    """A round is open among honest sites; afterwards it ends with all of them."""

    async def run() -> None:
        world = World(folder, rounds=rounds)
        await world.start()
        await asyncio.wait_for(scenario(world), 60)
        async with asyncio.timeout(60):
            await world.finish()
        record = world.runner.record()
        assert record.outcome == "finished"
        assert all(set(HONEST) <= set(done.cohort) for done in record.rounds)
        assert list((world.workspace.study_state / "spool").iterdir()) == []
        await world.close()
        assert await settled_tasks(1) == []

    asyncio.run(run())


async def stream(parts: list[pb.UploadPart]) -> AsyncIterator[pb.UploadPart]:
    """Parts as they come from the wire."""
    for part in parts:
        yield part


# --- uploads --------------------------------------------------------------------------------------------------


def test_an_upload_whose_sender_hangs_up_while_it_is_added_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cannot be cancelled: the answer was in the sum and not in the store, and its retry was refused."""
    entered = threading.Event()
    accept = RoundMachine.accept

    def slowly(self: RoundMachine, node: str, *rest: Any) -> None:
        entered.set()
        time.sleep(0.3)
        accept(self, node, *rest)

    async def scenario(world: World) -> None:
        peer = world.held[0]
        parts = world.upload(peer)
        monkeypatch.setattr(RoundMachine, "accept", slowly)
        call = asyncio.create_task(world.coordinator.hub.upload(peer.certificate, stream(parts)))
        await asyncio.to_thread(entered.wait)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        receipt = await world.coordinator.hub.upload(peer.certificate, stream(parts))
        assert receipt.duplicate
        assert world.attempt is not None
        stored = world.runner._store.answers(world.attempt.plan)
        assert [answer.node for answer in stored] == [peer.certificate.name]

    in_a_round(tmp_path, scenario)


def _dripping(world: World, peer: Held, *, pause: float, size: int) -> AsyncIterator[pb.UploadPart]:
    """A valid header, then a byte at a time."""
    header = pb.UploadHeader()
    header.CopyFrom(world.upload(peer)[0].header)
    header.bulk.CopyFrom(reference(bytes(size)))
    sign_upload_header(header, peer.key)

    async def parts() -> AsyncIterator[pb.UploadPart]:
        yield pb.UploadPart(header=header)
        for offset in range(size):
            await asyncio.sleep(pause)
            yield pb.UploadPart(chunk=pb.Chunk(study_id=world.study_id, offset=offset, data=b"\0"))

    return parts()


@pytest.mark.parametrize(("chunk_seconds", "upload_seconds", "pause"), [(0.2, 60.0, 1.0), (0.2, 0.5, 0.05)])
def test_an_upload_that_drips_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_seconds: float, upload_seconds: float, pause: float
) -> None:
    """A pause too long, and chunks just often enough of an upload that would never end."""
    monkeypatch.setattr(coordinator.sessions, "_CHUNK_SECONDS", chunk_seconds)
    monkeypatch.setattr(pace, "_FIXED_SECONDS", upload_seconds)

    async def scenario(world: World) -> None:
        peer = world.held[0]
        started = time.monotonic()
        with pytest.raises(NotConnectedError):
            await world.coordinator.hub.upload(peer.certificate, _dripping(world, peer, pause=pause, size=40))
        assert time.monotonic() - started < 2.0
        # What has come so far may be gone on with; it is no upload, and it goes with the attempt.
        assert all(path.suffix == ".part" for path in (world.workspace.study_state / "spool" / "1-1").iterdir())

    in_a_round(tmp_path, scenario)


def test_an_upload_without_a_header_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator.sessions, "_CHUNK_SECONDS", 0.2)

    async def silence() -> AsyncIterator[pb.UploadPart]:
        await asyncio.sleep(60)
        yield pb.UploadPart()

    async def scenario(world: World) -> None:
        with pytest.raises(NotConnectedError):
            await world.coordinator.hub.upload(world.held[0].certificate, silence())

    in_a_round(tmp_path, scenario)


def test_an_upload_of_empty_chunks_is_refused_at_the_first(tmp_path: Path) -> None:
    taken = 0

    async def scenario(world: World) -> None:
        peer = world.held[0]

        async def parts() -> AsyncIterator[pb.UploadPart]:
            nonlocal taken
            yield world.upload(peer)[0]
            while True:
                taken += 1
                yield pb.UploadPart(chunk=pb.Chunk(study_id=world.study_id))

        with pytest.raises(MalformedMessageError):
            await world.coordinator.hub.upload(peer.certificate, parts())
        assert taken == 1

    in_a_round(tmp_path, scenario)


# --- sessions -------------------------------------------------------------------------------------------------


def test_a_session_that_never_says_hello_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator.sessions, "_HELLO_SECONDS", 0.2)

    async def silence() -> AsyncIterator[pb.NodeMessage]:
        await asyncio.sleep(60)
        yield pb.NodeMessage()

    async def scenario(world: World) -> None:
        with pytest.raises(MalformedMessageError):
            async for _ in world.coordinator.hub.session(world.stranger, silence()):
                pass

    in_a_round(tmp_path, scenario)


@pytest.mark.parametrize("kind", ["accepts", "refuses", "sits out"])
def test_a_flood_of_answers_costs_its_sender_only(tmp_path: Path, kind: str) -> None:
    """Five thousand in a row: the others' round goes on meanwhile, and the log does not grow with the flood."""
    count = 5_000

    async def scenario(world: World) -> None:
        mine = world.study_id
        message = {
            "accepts": pb.NodeMessage(study_id=mine, study_answer=pb.StudyAnswer(accepted=True)),
            "refuses": pb.NodeMessage(study_id=mine, study_answer=pb.StudyAnswer(refusal="Refused")),
            "sits out": pb.NodeMessage(study_id=mine, sit_out=pb.SitOut(round=1, attempt=1, reason="Refused")),
        }[kind]

        async def flood() -> AsyncIterator[pb.NodeMessage]:
            yield pb.NodeMessage(hello=pb.Hello(versions=our_versions()))
            for _ in range(count):
                yield message

        with watched() as watch:
            answered = [reply async for reply in world.coordinator.hub.session(world.talking[0], flood())]
        assert watch.lines < 20
        assert len(answered) < 20
        watch.check()

    in_a_round(tmp_path, scenario)


def test_nothing_piles_up_for_a_node_that_does_not_read(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async def flood() -> AsyncIterator[pb.NodeMessage]:
            yield pb.NodeMessage(hello=pb.Hello(versions=our_versions()))
            for sequence in range(5_000):
                yield pb.NodeMessage(heartbeat=pb.Heartbeat(sequence=sequence))
            await asyncio.sleep(60)

        replies = world.coordinator.hub.session(world.talking[0], flood())
        await anext(replies)
        await asyncio.sleep(0.5)
        async with asyncio.timeout(5):
            rest = [reply async for reply in replies]
        assert len(rest) <= SESSION_QUEUE

    in_a_round(tmp_path, scenario)


def test_a_heartbeat_comes_back_without_what_was_hidden_in_it() -> None:
    async def run() -> None:
        hub = Hub()
        session = coordinator.sessions._Session(None, lambda _session: None)  # type: ignore[arg-type]
        hidden = b"\x08\x07" + b"\x7a" + varint(100_000) + bytes(100_000)  # a sequence, and a field we do not have
        beat = parse(pb.NodeMessage, b"\x1a" + varint(len(hidden)) + hidden)
        hub._handle(session, beat)
        assert session.outgoing.get_nowait() == pb.CoordinatorMessage(heartbeat=pb.Heartbeat(sequence=7))

    asyncio.run(run())


# --- names ----------------------------------------------------------------------------------------------------

ESCAPES = (
    "../../escape", "/tmp/escape", "a/../../escape", "..", "escape\x00", "\x1b[2Jescape", "e" * 129,
    "escape\n2026-01-01T00:00:00.000+00:00 info    coordinator: forged",
)  # fmt: skip


@pytest.mark.parametrize("name", ESCAPES)
def test_no_name_of_a_node_reaches_a_file_or_a_second_log_line(tmp_path: Path, name: str) -> None:
    async def scenario(world: World) -> None:
        peer, hub = world.held[0], world.coordinator.hub

        async def refused(change: Callable[[pb.UploadHeader], None]) -> None:
            header = pb.UploadHeader()
            header.CopyFrom(world.upload(peer)[0].header)
            change(header)
            sign_upload_header(header, peer.key)
            parts = [pb.UploadPart(header=header), *world.upload(peer)[1:]]
            with pytest.raises((MalformedMessageError, ProtectionError)):
                await hub.upload(peer.certificate, stream(parts))

        def in_phase(header: pb.UploadHeader) -> None:
            header.phase = header.payload.phase = name

        with watched() as watch:
            await refused(in_phase)
            await refused(lambda header: setattr(header, "study_id", name))
            await refused(lambda header: setattr(header.payload, "protection", name))
            block = PlainUpload(blocks=[name], weight=64).SerializeToString()
            await refused(lambda header: setattr(header.payload, "body", block))
            with pytest.raises(MalformedMessageError):
                await anext(hub.download(peer.certificate, pb.DownloadRequest(study_id=name, sha256=bytes(32))))
            for said in (
                pb.NodeMessage(study_id=name, study_answer=pb.StudyAnswer(accepted=True)),
                pb.NodeMessage(study_id=world.study_id, study_answer=pb.StudyAnswer(refusal=name)),
                pb.NodeMessage(study_id=world.study_id, sit_out=pb.SitOut(round=1, attempt=1, reason=name)),
            ):
                await _say(hub, world.talking[0], said)
        watch.check()
        # Whoever was made to leave would have its reason in the study's record.
        assert world.attempt is not None
        assert name not in world.attempt._left.values()

    in_a_round(tmp_path, scenario)
    assert not _escaped(tmp_path)


async def _say(hub: Hub, peer: Certificate, message: pb.NodeMessage) -> None:
    """Hello, one message, and whatever it leads to."""

    async def messages() -> AsyncIterator[pb.NodeMessage]:
        yield pb.NodeMessage(hello=pb.Hello(versions=our_versions()))
        yield message

    with contextlib.suppress(MalformedMessageError):
        async for _ in hub.session(peer, messages()):
            pass


@pytest.mark.parametrize("name", ESCAPES)
def test_no_name_of_a_coordinator_reaches_a_file_or_a_second_log_line(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.session, "Backoff", partial(Backoff, longest=0.1))

    async def scenario(evil: EvilCoordinator, task: asyncio.Task[None], _node: Any) -> None:
        with watched() as watch:
            for place in ("phase", "invited", "block", "tensor", "study"):
                evil.announce()
                message = evil.outbox.get_nowait()
                body = message.announcement
                match place:
                    case "phase":
                        body.phase = body.payload.phase = name
                    case "invited":
                        body.invited.append(name)
                    case "block":
                        body.model.blocks[0].name = name
                    case "tensor":
                        body.model.blocks[0].tensors[0].name = name
                    case "study":
                        message.study_id = name
                evil.outbox.put_nowait(message)
                await _heard(evil)
            offer = pb.StudyOffer(settings=evil.fed.study.canonical())
            evil.outbox.put_nowait(pb.CoordinatorMessage(study_id=name, study_offer=offer))
            await _heard(evil)
        assert not task.done()
        assert not evil.uploads
        watch.check()

    against_a_node(tmp_path, scenario)
    assert not _escaped(tmp_path)


async def _heard(evil: EvilCoordinator) -> None:
    """Until the node has read everything, through as many sessions as that takes, and had time to act on it."""
    while not evil.outbox.empty():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)


def _escaped(folder: Path) -> list[Path]:
    outside = [path for path in (folder.parent / "escape", Path("/tmp/escape")) if path.exists()]
    return outside + [path for path in folder.rglob("*") if "escape" in path.name]


# --- operations -----------------------------------------------------------------------------------------------


def test_a_study_can_be_stopped_before_its_model_is_made(tmp_path: Path) -> None:
    async def run() -> None:
        made = Coordinator(tmp_path / "state")
        runner = await submit(made, Study.parse({"study": {"rounds": 1}}).completed())
        await made.stop(runner)
        assert (runner.outcome, runner.reason) == ("aborted", "StudyStopped")
        await made.close()

    asyncio.run(run())


def test_a_study_submitted_twice_at_once_is_one_study_and_its_sessions_stay_in_their_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[bool] = []
    add = Hub.add

    def noting(self: Hub, runner: Any) -> None:
        added.append(threading.current_thread() is threading.main_thread())
        add(self, runner)

    monkeypatch.setattr(Hub, "add", noting)

    async def run() -> None:
        made = Coordinator(tmp_path / "state")
        study = Study.parse({"study": {"rounds": 1}}).completed()
        first, second = await asyncio.gather(submit(made, study), submit(made, study))
        assert first is second
        assert added == [True]
        await made.close()

    asyncio.run(run())
