"""A transfer over a line that breaks goes on where it broke, in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.session import Session
from secure_fl import limits
from secure_fl.errors import LateMessageError, MalformedMessageError, NetworkError, NotConnectedError
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.base import CoordinatorLink
from secure_fl.transport.objects import IncomingObject
from secure_fl.transport.wire import chunks, our_versions, reference

STUDY = "5a" * 32
CONTENT = bytes(range(256)) * 4


class Breaking:
    """A coordinator whose line breaks after `after` chunks of every transfer; it keeps what has arrived."""

    def __init__(self, after: int, error: Exception | None = None) -> None:
        self.after = after
        self.error = error or NetworkError("the line was cut")
        self.arrived = b""
        self.sent = 0  # bytes that crossed the line, in either direction
        self.asked: list[int] = []

    async def connect(self) -> CoordinatorLink:
        return self

    async def session(self, outgoing: AsyncIterator[pb.NodeMessage]) -> AsyncIterator[pb.CoordinatorMessage]:
        version = our_versions().highest
        yield pb.CoordinatorMessage(welcome=pb.Welcome(version=version, software="test", heartbeat_ms=60_000))
        async for _ in outgoing:
            pass

    async def upload(self, parts: AsyncIterator[pb.UploadPart], *, timeout: float) -> pb.UploadReceipt:  # noqa: ASYNC109
        header, count = pb.UploadHeader(), 0
        async for part in parts:
            if part.WhichOneof("body") == "header":
                header = part.header
                continue
            if count == self.after:
                raise self.error
            count += 1
            if part.chunk.offset == 0:
                self.arrived = b""
            assert part.chunk.offset == len(self.arrived)
            self.arrived += part.chunk.data
            self.sent += len(part.chunk.data)
        return pb.UploadReceipt(study_id=header.study_id, upload_id=header.upload_id)

    async def uploaded(self, query: pb.UploadQuery, *, timeout: float) -> pb.UploadProgress:  # noqa: ASYNC109
        assert (query.study_id, query.round, query.attempt, query.upload_id) == (STUDY, 3, 2, b"i" * 32)
        return pb.UploadProgress(study_id=STUDY, received=len(self.arrived))

    async def download(self, request: pb.DownloadRequest, *, timeout: float) -> AsyncIterator[pb.Chunk]:  # noqa: ASYNC109
        self.asked.append(request.offset)
        for count, chunk in enumerate(chunks(CONTENT, study_id=STUDY, offset=request.offset)):
            if count == self.after:
                raise self.error
            self.sent += len(chunk.data)
            yield chunk

    async def close(self) -> None:
        """Nothing to hang up."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES", 100)
    monkeypatch.setattr("node.session.CHUNK_BYTES", 100)
    monkeypatch.setattr("node.session.Backoff.next", lambda _: 0.001)


async def connected(link: Breaking) -> tuple[Session, asyncio.Task[None]]:
    async def ignore(_message: pb.CoordinatorMessage) -> None:
        return

    session = Session(link, handler=ignore)
    return session, asyncio.create_task(session.run())


def header() -> pb.UploadHeader:
    return pb.UploadHeader(study_id=STUDY, round=3, attempt=2, upload_id=b"i" * 32, bulk=reference(CONTENT))


@pytest.mark.parametrize("after", [1, 3, 10])
def test_an_upload_sends_every_byte_once(after: int) -> None:
    async def run() -> None:
        link = Breaking(after)
        session, task = await connected(link)
        receipt = await session.upload(header(), CONTENT)
        assert receipt.upload_id == b"i" * 32
        assert link.arrived == CONTENT
        assert link.sent == len(CONTENT)
        session.stop()
        await task

    asyncio.run(asyncio.wait_for(run(), 20))


def test_an_upload_that_is_refused_is_not_sent_again() -> None:
    async def run() -> None:
        link = Breaking(2, LateMessageError("too late"))
        session, task = await connected(link)
        with pytest.raises(LateMessageError):
            await session.upload(header(), CONTENT)
        assert link.sent == 200
        session.stop()
        await task

    asyncio.run(asyncio.wait_for(run(), 20))


@pytest.mark.parametrize("error", [None, NotConnectedError("busy")], ids=["cut", "not connected"])
@pytest.mark.parametrize("after", [1, 4])
def test_a_download_fetches_every_byte_once(tmp_path: Path, after: int, error: Exception | None) -> None:
    async def run() -> None:
        link = Breaking(after, error)
        session, task = await connected(link)
        incoming = IncomingObject(tmp_path / "object", reference(CONTENT))
        await session.download(STUDY, incoming)
        assert incoming.path.read_bytes() == CONTENT
        assert link.sent == len(CONTENT)
        assert link.asked == list(range(0, len(CONTENT), 100 * after))
        session.stop()
        await task

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_download_of_something_else_begins_again_and_then_gives_up(tmp_path: Path) -> None:
    async def run() -> None:
        link = Breaking(100)
        session, task = await connected(link)
        incoming = IncomingObject(tmp_path / "object", pb.ObjectRef(sha256=bytes(32), size=len(CONTENT)))
        with pytest.raises(MalformedMessageError):
            await session.download(STUDY, incoming)
        assert link.asked == [0, 0, 0]
        session.stop()
        await task

    asyncio.run(asyncio.wait_for(run(), 20))
    assert not list(tmp_path.iterdir())
