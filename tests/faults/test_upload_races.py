"""Uploads that are cut, asked about, superseded or overtaken by the end of their attempt, at the worst moment."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.attempt import AttemptRunner
from coordinator.bulk_files import BulkFiles
from coordinator.machine import RoundMachine
from node.config import NodeFile
from node.session import _parts
from secure_fl import limits
from secure_fl.errors import NotConnectedError, SecureFLError, StorageError
from secure_fl.identity.certificates import Certificate
from secure_fl.protect.contract import Ask, Message
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.base import FederationService
from secure_fl.transport.local import LocalLink
from secure_fl.transport.objects import IncomingObject
from secure_fl.transport.wire import reference, sign_upload_header
from tests.coordinator.test_stop import SETTINGS
from tests.faults.test_upload_cuts import _iterate, _stalled, with_an_upload
from tests.support.federation import FaultyStore, Federation


def query_of(header: pb.UploadHeader) -> pb.UploadQuery:
    return pb.UploadQuery(
        study_id=header.study_id, round=header.round, attempt=header.attempt, upload_id=header.upload_id
    )


def bulk_of(whole: list[pb.UploadPart]) -> bytes:
    return b"".join(part.chunk.data for part in whole[1:])


def spooled(fed: Federation) -> list[Path]:
    return [path for path in (fed.workspace.study_state / "spool").rglob("*") if path.is_file()]


class Gate:
    """A thread waits here, once, until the test lets it go."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()

    def wait(self) -> None:
        if not self.entered.is_set():
            self.entered.set()
            self.leave.wait(10)


def test_a_line_that_breaks_after_the_last_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES", 40)
    write, gate = IncomingObject.write, Gate()

    def slow(self: IncomingObject, chunk: pb.Chunk) -> None:
        write(self, chunk)
        if self.position == self.reference.size:
            gate.wait()

    async def scenario(
        _fed: Federation, service: FederationService, peer: Certificate, whole: list[pb.UploadPart]
    ) -> None:
        monkeypatch.setattr(IncomingObject, "write", slow)
        call = asyncio.ensure_future(service.upload(peer, _iterate(whole)))
        assert await asyncio.to_thread(gate.entered.wait, 10)
        call.cancel()
        gate.leave.set()
        await asyncio.gather(call, return_exceptions=True)
        header, bulk = whole[0].header, bulk_of(whole)
        offset = (await service.uploaded(peer, query_of(header))).received
        assert offset == len(bulk)
        receipt = await service.upload(peer, _parts(header, bulk, offset))
        assert receipt.upload_id == header.upload_id

    with_an_upload(tmp_path, scenario)


def test_a_site_that_changes_its_mind_keeps_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = IncomingObject.finish
    gates: list[Gate] = []

    def slow(self: IncomingObject, *, durable: bool) -> None:
        if gates:
            gates[-1].wait()
        finish(self, durable=durable)

    async def scenario(
        fed: Federation, service: FederationService, peer: Certificate, whole: list[pb.UploadPart]
    ) -> None:
        monkeypatch.setattr(IncomingObject, "finish", slow)
        key = NodeFile.read(fed.workspace.node_file("site-01")).credential().signing_key
        for number in range(5):
            gates.append(Gate())
            other = bytes([number]) * len(bulk_of(whole))
            header = pb.UploadHeader()
            header.CopyFrom(whole[0].header)
            header.payload.body = b"\xff"  # no answer of this protection, so that none of them is taken
            header.bulk.CopyFrom(reference(other))
            sign_upload_header(header, key)
            call = asyncio.ensure_future(service.upload(peer, _parts(header, other, 0)))
            assert await asyncio.to_thread(gates[-1].entered.wait, 5)
            call.cancel()
            gates[-1].leave.set()
            await asyncio.gather(call, return_exceptions=True)
            await asyncio.sleep(0.1)
        gates.clear()
        assert not spooled(fed)

    with_an_upload(tmp_path, scenario)


def test_a_question_about_an_upload_waits_for_the_call_that_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES", 40)
    write, gate = IncomingObject.write, Gate()

    def slow(self: IncomingObject, chunk: pb.Chunk) -> None:
        if self.position >= 80:
            gate.wait()
        write(self, chunk)

    async def scenario(
        _fed: Federation, service: FederationService, peer: Certificate, whole: list[pb.UploadPart]
    ) -> None:
        monkeypatch.setattr(IncomingObject, "write", slow)
        call = asyncio.ensure_future(service.upload(peer, _stalled(whole[:4])))
        assert await asyncio.to_thread(gate.entered.wait, 10)
        header = whole[0].header
        question = asyncio.ensure_future(service.uploaded(peer, query_of(header)))
        await asyncio.sleep(0.05)
        gate.leave.set()
        offset = (await question).received
        assert offset == 120
        receipt = await service.upload(peer, _parts(header, bulk_of(whole), offset))
        assert receipt.upload_id == header.upload_id
        await asyncio.gather(call, return_exceptions=True)

    with_an_upload(tmp_path, scenario)


# --- the end of an attempt ------------------------------------------------------------------------------------------


class Stolen(LocalLink):
    """Keeps site-01's first upload; the test sends it itself, as a node that does not listen would."""

    parts: asyncio.Future[list[pb.UploadPart]]

    async def upload(self, parts: AsyncIterator[pb.UploadPart], *, timeout: float) -> pb.UploadReceipt:  # noqa: ASYNC109
        """Hand the parts to the test."""
        if not self.parts.done():
            self.parts.set_result([part async for part in parts])
            await asyncio.Event().wait()
        return await super().upload(parts, timeout=timeout)


async def stopped_while_it_uploads(folder: Path, gate: Gate) -> tuple[Federation, object]:
    """A study that is stopped while site-01's upload waits at `gate`, and what became of the upload."""
    fed = Federation(folder / "run", {**SETTINGS, "task": {"name": "tests.support.task:Line", "width": 16}})
    Stolen.parts = asyncio.get_running_loop().create_future()
    for name in fed.names:
        fed.start_node(name, link=Stolen if name == "site-01" else LocalLink)
    study = asyncio.create_task(fed.coordinate())
    whole = await asyncio.wait_for(Stolen.parts, 10)
    peer = NodeFile.read(fed.workspace.node_file("site-01")).credential().certificate
    service, coordinator = fed.services[0], fed.coordinator
    assert service is not None
    assert coordinator is not None
    call = asyncio.create_task(service.upload(peer, _iterate(whole)))
    assert await asyncio.to_thread(gate.entered.wait, 10)
    stop = asyncio.create_task(coordinator.stop(coordinator.runners[fed.study.id]))
    await asyncio.sleep(0.2)
    gate.leave.set()
    await stop
    outcome = (await asyncio.gather(call, return_exceptions=True))[0]
    study.cancel()
    await asyncio.gather(study, return_exceptions=True)
    await fed.close()
    return fed, outcome


@pytest.mark.parametrize("where", ["before its file", "in its file", "in the sum"])
def test_nothing_of_an_upload_is_left_when_its_study_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES", 40)
    gate = Gate()
    place: tuple[type[Any], str] = {
        "before its file": (BulkFiles, "incoming"), "in its file": (IncomingObject, "write"),
        "in the sum": (RoundMachine, "accept"),
    }[where]  # fmt: skip
    original = getattr(*place)

    def slow(*given: Any, **named: Any) -> Any:
        name = given[0].path.name if where == "in its file" else given[2 if where == "before its file" else 1]
        if name.startswith("site-01"):
            gate.wait()
        return original(*given, **named)

    monkeypatch.setattr(*place, slow)

    async def run() -> None:
        fed, outcome = await stopped_while_it_uploads(tmp_path, gate)
        assert isinstance(outcome, SecureFLError | pb.UploadReceipt)
        with sqlite3.connect(fed.workspace.coordinator_state / "coordinator.sqlite") as raw:
            assert raw.execute("SELECT node FROM answers").fetchall() == []
        assert not spooled(fed)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_stop_during_the_commit_leaves_no_uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, gate = FaultyStore.commit_round, Gate()

    def slow(self: FaultyStore, *given: Any, **named: Any) -> None:
        gate.wait()
        commit(self, *given, **named)

    monkeypatch.setattr(FaultyStore, "commit_round", slow)

    async def run() -> None:
        fed = Federation(tmp_path / "run", SETTINGS)
        for name in fed.names:
            fed.start_node(name)
        study = asyncio.create_task(fed.coordinate())
        assert await asyncio.to_thread(gate.entered.wait, 20)
        assert fed.coordinator is not None
        stop = asyncio.create_task(fed.coordinator.stop(fed.coordinator.runners[fed.study.id]))
        await asyncio.sleep(0.2)
        gate.leave.set()
        await stop
        await study
        await fed.close()
        assert not spooled(fed)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_an_attempt_that_is_closed_takes_nothing_any_more(tmp_path: Path) -> None:
    async def scenario(
        fed: Federation, service: FederationService, peer: Certificate, whole: list[pb.UploadPart]
    ) -> None:
        assert fed.coordinator is not None
        (attempt,) = fed.coordinator.runners[fed.study.id]._attempts
        assert isinstance(attempt, AttemptRunner)
        over, attempt._over = attempt._over, SecureFLError("it is over")
        with pytest.raises(SecureFLError, match="over"):
            await service.upload(peer, _iterate(whole))
        attempt._over = over

    with_an_upload(tmp_path, scenario)


def test_a_runner_that_a_pause_replaced_takes_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails in the middle of a round: the study pauses, and a new runner goes on from the store."""
    monkeypatch.setattr(limits, "CHUNK_BYTES", 40)
    wait, runners = AttemptRunner._next_change, list[AttemptRunner]()
    failing = threading.Event()

    async def once(self: AttemptRunner, seconds: float) -> None:
        if self not in runners:
            runners.append(self)
        if failing.is_set():
            failing.clear()
            raise StorageError("no space left on device")
        await wait(self, min(seconds, 0.05))

    monkeypatch.setattr(AttemptRunner, "_next_change", once)

    async def run() -> None:
        fed = Federation(tmp_path / "run", {**SETTINGS, "task": {"name": "tests.support.task:Line", "width": 16}})
        Stolen.parts = asyncio.get_running_loop().create_future()
        for name in fed.names:
            fed.start_node(name, link=Stolen if name == "site-01" else LocalLink)
        study = asyncio.create_task(fed.coordinate(storage_pause=0.1))
        whole = await asyncio.wait_for(Stolen.parts, 10)
        peer = NodeFile.read(fed.workspace.node_file("site-01")).credential().certificate
        service = fed.services[0]
        assert service is not None
        with pytest.raises(NotConnectedError):
            await service.upload(peer, _iterate(whole[:3]))
        assert [path.suffix for path in spooled(fed) if path.name.startswith("site-01")] == [".part"]
        failing.set()
        while len(runners) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert not [path for path in spooled(fed) if path.suffix == ".part"]

        async def nothing() -> AsyncIterator[pb.Chunk]:
            return
            yield

        with pytest.raises(NotConnectedError):
            await runners[0].receive("site-01", whole[0].header, nothing())
        receipt = await service.upload(peer, _iterate(whole))
        assert not receipt.duplicate
        record = await asyncio.wait_for(study, 40)
        assert record is not None
        assert "site-01" in record.rounds[0].cohort
        await fed.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_node_that_vanishes_while_its_answer_enters_has_answered() -> None:
    gate = Gate()

    class Half:
        missing = 0

        def begin(self) -> Ask:
            return Ask(phase="upload", messages={"a": Message(), "b": Message()})

        def accept(self, *_: object) -> None:
            gate.wait()

    machine = RoundMachine.__new__(RoundMachine)
    vars(machine).update(left={}, _half=Half(), _entering="")
    machine.begin()
    nothing: Any = None
    thread = threading.Thread(target=machine.accept, args=("a", "upload", Message(), nothing))
    thread.start()
    gate.entered.wait(5)
    for node in ("a", "b"):
        machine.leave(node, "NotConnected")
    gate.leave.set()
    thread.join()
    assert (machine.left, machine.waiting) == ({"b": "NotConnected"}, frozenset())
