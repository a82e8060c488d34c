"""Between two parties an error is a code: no text of one ever reaches the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from secure_fl.errors import (
    CohortTooSmallError,
    IdentityError,
    MalformedMessageError,
    NetworkError,
    SecureFLError,
    StorageError,
)
from secure_fl.identity.certificates import Certificate
from secure_fl.identity.credential import Credential
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.errors import DETAIL_KEY, error_from_status, errors_as_status
from secure_fl.transport.local import LocalConnector, LocalLink

SECRET = "patient 4711 in /srv/ward-7"

FAILURES = [
    StorageError(SECRET),
    CohortTooSmallError(have=1, need=3, what=SECRET),
    ValueError(SECRET),
    KeyError(SECRET),
]


class Failing:
    """A service that fails in every call, before or after its first message."""

    def __init__(self, error: Exception, *, after: int = 0) -> None:
        self._error = error
        self._after = after

    async def session(
        self, peer: Certificate, incoming: AsyncIterator[pb.NodeMessage]
    ) -> AsyncIterator[pb.CoordinatorMessage]:
        for _ in range(self._after):
            yield pb.CoordinatorMessage(heartbeat=pb.Heartbeat())
        raise self._error

    async def upload(self, peer: Certificate, parts: AsyncIterator[pb.UploadPart]) -> pb.UploadReceipt:
        raise self._error

    async def uploaded(self, peer: Certificate, query: pb.UploadQuery) -> pb.UploadProgress:
        raise self._error

    async def download(self, peer: Certificate, request: pb.DownloadRequest) -> AsyncIterator[pb.Chunk]:
        for _ in range(self._after):
            yield pb.Chunk()
        raise self._error


async def nothing() -> AsyncIterator[Any]:
    return
    yield


async def _drain(messages: AsyncIterator[Any]) -> None:
    async for _ in messages:
        pass


CALLS: dict[str, Callable[[LocalLink], Awaitable[object]]] = {
    "session": lambda link: _drain(link.session(nothing())),
    "upload": lambda link: link.upload(nothing(), timeout=5),
    "uploaded": lambda link: link.uploaded(pb.UploadQuery(), timeout=5),
    "download": lambda link: _drain(link.download(pb.DownloadRequest(), timeout=5)),
}


def failure(call: Awaitable[object]) -> SecureFLError:
    async def run() -> None:
        await call

    with pytest.raises(SecureFLError) as caught:
        asyncio.run(run())
    return caught.value


# --- in one process ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_failing_service_is_heard_of_by_its_code_only(
    north: Credential, call: str, after: int, error: Exception
) -> None:
    heard = failure(CALLS[call](LocalLink(Failing(error, after=after), north.certificate)))
    expected = type(error) if isinstance(error, SecureFLError) else SecureFLError
    assert type(heard) is expected
    assert "4711" not in f"{heard!s}{heard!r}{heard.args}{heard.hint}{vars(heard)}"
    assert heard.__cause__ is None
    assert heard.__suppress_context__


class Hanging(Failing):
    """A service that never answers."""

    async def upload(self, peer: Certificate, parts: AsyncIterator[pb.UploadPart]) -> pb.UploadReceipt:
        await asyncio.sleep(60)
        raise self._error

    async def uploaded(self, peer: Certificate, query: pb.UploadQuery) -> pb.UploadProgress:
        await asyncio.sleep(60)
        raise self._error

    async def download(self, peer: Certificate, request: pb.DownloadRequest) -> AsyncIterator[pb.Chunk]:
        await asyncio.sleep(60)
        yield pb.Chunk()


def test_a_service_that_never_answers_is_a_network_error(north: Credential) -> None:
    link = LocalLink(Hanging(ValueError()), north.certificate)
    assert type(failure(link.upload(nothing(), timeout=0.01))) is NetworkError
    assert type(failure(link.uploaded(pb.UploadQuery(), timeout=0.01))) is NetworkError
    assert type(failure(_drain(link.download(pb.DownloadRequest(), timeout=0.01)))) is NetworkError


class Echoing:
    """A service that keeps what it was given and answers with what it is told."""

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.answer = pb.CoordinatorMessage(heartbeat=pb.Heartbeat(sequence=7))

    async def session(
        self, peer: Certificate, incoming: AsyncIterator[pb.NodeMessage]
    ) -> AsyncIterator[pb.CoordinatorMessage]:
        async for message in incoming:
            self.given.append((peer, message))
            yield self.answer

    async def upload(self, peer: Certificate, parts: AsyncIterator[pb.UploadPart]) -> pb.UploadReceipt:
        self.given.extend([part async for part in parts])
        return pb.UploadReceipt(duplicate=True)

    async def uploaded(self, peer: Certificate, query: pb.UploadQuery) -> pb.UploadProgress:
        self.given.append(query)
        return pb.UploadProgress(received=5)

    async def download(self, peer: Certificate, request: pb.DownloadRequest) -> AsyncIterator[pb.Chunk]:
        self.given.append(request)
        yield pb.Chunk(offset=3)


def test_messages_cross_by_value_under_the_peers_certificate(north: Credential) -> None:
    service = Echoing()
    said = pb.NodeMessage(heartbeat=pb.Heartbeat(sequence=1))

    async def say() -> AsyncIterator[pb.NodeMessage]:
        yield said

    async def run() -> None:
        connector = LocalConnector(north.certificate)
        connector.service = service
        link = await connector.connect()
        heard = [message async for message in link.session(say())]
        assert heard == [service.answer]
        assert heard[0] is not service.answer
        peer, received = service.given.pop()
        assert peer == north.certificate
        assert received == said
        assert received is not said
        assert (await link.upload(nothing(), timeout=5)).duplicate
        assert [chunk.offset async for chunk in link.download(pb.DownloadRequest(offset=3), timeout=5)] == [3]
        assert service.given == [pb.DownloadRequest(offset=3)]
        await link.close()

    asyncio.run(run())


def test_without_a_coordinator_there_is_no_link(north: Credential) -> None:
    assert type(failure(LocalConnector(north.certificate).connect())) is NetworkError


# --- over gRPC --------------------------------------------------------------------------------------------------


class Context:
    """What a servicer aborts with."""

    def __init__(self) -> None:
        self.said: tuple[object, ...] = ()

    async def abort(self, status: grpc.StatusCode, details: str, trailing_metadata: tuple[Any, ...]) -> None:
        self.said = (status, details, trailing_metadata)


def aborted_with(error: Exception) -> tuple[Any, ...]:
    context = Context()

    async def run() -> None:
        async with errors_as_status(context):  # type: ignore[arg-type]
            raise error

    asyncio.run(run())
    return context.said


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_servicer_aborts_with_the_code_only(error: Exception) -> None:
    status, details, metadata = aborted_with(error)
    expected = (error.status, error.code) if isinstance(error, SecureFLError) else ("INTERNAL", "SecureFL")
    assert (status.name, details) == expected
    assert metadata == ((DETAIL_KEY, pb.ErrorDetail(code=expected[1]).SerializeToString()),)


def rpc_error(status: grpc.StatusCode, *trailing: tuple[str, bytes | str]) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details=SECRET)


def test_a_status_becomes_the_typed_error_it_was() -> None:
    detail = pb.ErrorDetail(code="CohortTooSmall").SerializeToString()
    error = error_from_status(rpc_error(grpc.StatusCode.FAILED_PRECONDITION, ("other", "x"), (DETAIL_KEY, detail)))
    assert type(error) is CohortTooSmallError


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, NetworkError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, NetworkError),
        (grpc.StatusCode.INTERNAL, NetworkError),
        (grpc.StatusCode.UNAUTHENTICATED, IdentityError),
        (grpc.StatusCode.PERMISSION_DENIED, IdentityError),
    ],
)
def test_a_status_without_a_code_is_the_links_own(status: grpc.StatusCode, expected: type[SecureFLError]) -> None:
    error = error_from_status(rpc_error(status))
    assert type(error) is expected
    assert SECRET not in error.message


def test_a_detail_that_does_not_decode_is_malformed() -> None:
    with pytest.raises(MalformedMessageError):
        error_from_status(rpc_error(grpc.StatusCode.INTERNAL, (DETAIL_KEY, b"\xff\xff")))
