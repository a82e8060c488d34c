"""An upload whose line breaks: wherever that is, nothing of it stays, and the same bytes are taken the next time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.store import Attempt, Store, StoredAnswer
from node.config import NodeFile
from node.training.jobs import Job, Result
from secure_fl import limits
from secure_fl.errors import MalformedMessageError, NotConnectedError, SecureFLError
from secure_fl.identity.certificates import Certificate
from secure_fl.messages import parse
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.base import FederationService
from secure_fl.transport.local import LocalLink
from tests.support.federation import Federation
from tests.support.training import FakeTraining

SETTINGS: dict[str, Any] = {
    "task": {"name": "tests.support.task:Line", "width": 16},
    "rounds": {"deadline": 60, "phase_deadline": 60, "gather": 3},
}


class Captured(LocalLink):
    """A link that keeps the first upload to itself until the test lets it go."""

    parts: asyncio.Future[list[pb.UploadPart]]
    go: asyncio.Event

    async def upload(self, parts: AsyncIterator[pb.UploadPart], *, timeout: float) -> pb.UploadReceipt:  # noqa: ASYNC109
        """Hand the parts to the test."""
        whole = [part async for part in parts]
        if not self.parts.done():
            self.parts.set_result(whole)
            await self.go.wait()
        return await super().upload(_iterate(whole), timeout=timeout)


async def _iterate(parts: list[pb.UploadPart]) -> AsyncIterator[pb.UploadPart]:
    for part in parts:
        yield part


async def _stalled(parts: list[pb.UploadPart]) -> AsyncIterator[pb.UploadPart]:
    for part in parts:
        yield part
    await asyncio.Event().wait()


class Held(FakeTraining):
    """Trains when it is allowed to."""

    def __init__(self, event: asyncio.Event) -> None:
        super().__init__()
        self._event = event

    async def run(self, job: Job) -> Result:
        """Wait, then train."""
        await self._event.wait()
        return await super().run(job)


Scenario = Callable[[Federation, FederationService, Certificate, list[pb.UploadPart]], Awaitable[None]]


def with_an_upload(folder: Path, scenario: Scenario) -> None:
    """Run a scenario on site-01's upload of round 1 while it is expected; then the study finishes with everybody."""

    async def run() -> None:
        fed = Federation(folder / "run", SETTINGS)
        loop = asyncio.get_running_loop()
        Captured.parts, Captured.go = loop.create_future(), asyncio.Event()
        held = asyncio.Event()
        certificate = NodeFile.read(fed.workspace.node_file("site-01")).credential().certificate
        for name in fed.names[1:]:
            fed.start_node(name, executor=Held(held))
        fed.start_node("site-01", link=Captured)
        study = asyncio.create_task(fed.coordinate())
        try:
            whole = await asyncio.wait_for(Captured.parts, 20)
            service = fed.services[0]
            assert service is not None
            await scenario(fed, service, certificate, whole)
            Captured.go.set()
            held.set()
            record = await study
            assert record is not None
            assert all(round_.cohort == fed.names for round_ in record.rounds)
            assert all(round_.attempts == 1 for round_ in record.rounds)
        finally:
            study.cancel()
            await asyncio.gather(study, return_exceptions=True)
            await fed.close()

    asyncio.run(asyncio.wait_for(run(), 100))


def whole_files(spool: Path) -> list[Path]:
    """What could be taken for an upload. Of one that was cut a part may be there, to go on with: one for a node."""
    files = [path for path in spool.rglob("*") if path.is_file()]
    assert sum(path.suffix == ".part" for path in files) <= 1
    return [path for path in files if path.suffix != ".part"]


def frames(whole: list[pb.UploadPart]) -> tuple[bytes, list[int]]:
    """The stream as bytes, length before every message as gRPC frames it, and where each message ends."""
    stream, ends = b"", []
    for part in whole:
        raw = part.SerializeToString()
        stream += b"\0" + len(raw).to_bytes(4, "big") + raw
        ends.append(len(stream))
    return stream, ends


def test_a_stream_cut_at_any_byte_leaves_nothing_and_can_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES", 40)

    async def scenario(
        fed: Federation, service: FederationService, peer: Certificate, whole: list[pb.UploadPart]
    ) -> None:
        spool = fed.workspace.study_state / "spool"
        stream, ends = frames(whole)
        assert len(whole) > 4
        assert len(stream) > 700
        for position in range(len(stream)):
            # What the receiver has of a stream that ends here: the messages that are complete.
            arrived = [part for part, end in zip(whole, ends, strict=True) if end <= position]
            with pytest.raises(NotConnectedError):
                await service.upload(peer, _iterate(arrived))
            assert not whole_files(spool), position
        for count in range(len(whole)):
            # The same cut as gRPC shows it when the peer is gone: the call is cancelled where it waits.
            call = asyncio.ensure_future(service.upload(peer, _stalled(whole[:count])))
            await asyncio.sleep(0.01)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert call.cancelled()
            await asyncio.sleep(0)
            assert not whole_files(spool), count

    with_an_upload(tmp_path, scenario)


def test_a_stream_that_was_cut_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES", 40)

    async def scenario(
        fed: Federation, service: FederationService, peer: Certificate, whole: list[pb.UploadPart]
    ) -> None:
        header = whole[0].header
        query = pb.UploadQuery(
            study_id=header.study_id, round=header.round, attempt=header.attempt, upload_id=header.upload_id
        )
        assert (await service.uploaded(peer, query)).received == 0
        with pytest.raises(NotConnectedError):
            await service.upload(peer, _iterate(whole[:3]))
        assert (await service.uploaded(peer, query)).received == 80
        # Another upload's bytes are nobody's business, nor another site's.
        other = pb.UploadQuery()
        other.CopyFrom(query)
        other.upload_id = bytes(32)
        assert (await service.uploaded(peer, other)).received == 0
        stranger = NodeFile.read(fed.workspace.node_file("site-02")).credential().certificate
        assert (await service.uploaded(stranger, query)).received == 0
        # A gap, and what was there already, are refused; the whole from the start, or the rest, is taken.
        with pytest.raises(MalformedMessageError):
            await service.upload(peer, _iterate([whole[0], *whole[4:]]))
        with pytest.raises(NotConnectedError):
            await service.upload(peer, _iterate(whole[:4]))
        receipt = await service.upload(peer, _iterate([whole[0], *whole[4:]]))
        assert (receipt.upload_id, receipt.duplicate) == (header.upload_id, False)

    with_an_upload(tmp_path, scenario)


def test_a_message_cut_at_any_byte_is_never_taken_for_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that repairs the framing around half a message: it does not decode, or does not match its digest."""
    monkeypatch.setattr(limits, "CHUNK_BYTES", 40)

    async def scenario(
        fed: Federation, service: FederationService, peer: Certificate, whole: list[pb.UploadPart]
    ) -> None:
        spool = fed.workspace.study_state / "spool"
        tried = 0
        for number in (0, 1, len(whole) - 1):
            raw = whole[number].SerializeToString()
            for position in range(len(raw)):

                async def broken(number: int = number, half: bytes = raw[:position]) -> AsyncIterator[pb.UploadPart]:
                    for part in whole[:number]:
                        yield part
                    yield parse(pb.UploadPart, half)
                    for part in whole[number + 1 :]:
                        yield part

                with pytest.raises((MalformedMessageError, NotConnectedError)):
                    await service.upload(peer, broken())
                assert not whole_files(spool), (number, position)
                tried += 1
        assert tried > 400

    with_an_upload(tmp_path, scenario)


def test_a_byte_flipped_anywhere_in_an_upload_is_refused_by_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES", 1000)

    async def scenario(
        fed: Federation, service: FederationService, peer: Certificate, whole: list[pb.UploadPart]
    ) -> None:
        for number, part in enumerate(whole):
            raw = part.SerializeToString()
            for position in range(len(raw)):

                async def damaged(number: int = number, position: int = position, raw: bytes = raw) -> Any:
                    flipped = bytes([*raw[:position], raw[position] ^ 0x55, *raw[position + 1 :]])
                    for other, whole_part in enumerate(whole):
                        yield parse(pb.UploadPart, flipped) if other == number else whole_part

                with pytest.raises(SecureFLError):
                    await service.upload(peer, damaged())
        assert not whole_files(fed.workspace.study_state / "spool")

    with_an_upload(tmp_path, scenario)


@pytest.mark.parametrize("moment", ["machine", "store"])
def test_a_line_cut_while_the_answer_is_entering_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The call is cancelled when the answer is half-way in; the node sends it again and it counts once."""
    entered, leave = threading.Event(), threading.Event()
    from coordinator.machine import RoundMachine

    def pausing(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            result = method(*arguments, **keywords)
            if not entered.is_set():
                entered.set()
                leave.wait(10)
            return result

        return call

    if moment == "machine":
        monkeypatch.setattr(RoundMachine, "accept", pausing(RoundMachine.accept))
    else:
        from tests.support.federation import FaultyStore

        monkeypatch.setattr(FaultyStore, "add_answer", pausing(FaultyStore.add_answer))

    async def scenario(
        fed: Federation, service: FederationService, peer: Certificate, whole: list[pb.UploadPart]
    ) -> None:
        call = asyncio.ensure_future(service.upload(peer, _iterate(whole)))
        assert await asyncio.to_thread(entered.wait, 10)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        again = asyncio.ensure_future(service.upload(peer, _iterate(whole)))
        await asyncio.sleep(0.05)
        leave.set()
        assert (await again).duplicate
        store = Store.in_folder(fed.workspace.coordinator_state)
        (attempt,) = store.open_attempts(fed.study.id)
        assert isinstance(attempt, Attempt)
        answers: tuple[StoredAnswer, ...] = store.answers(attempt)
        store.close()
        assert [answer.node for answer in answers] == ["site-01"]

    with_an_upload(tmp_path, scenario)
