"""The node's end of the wire: gRPC over mutual TLS to the one coordinator its file names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TypeVar

import grpc.aio

from node.config import NodeFile
from node.standing import Standing
from secure_fl.errors import NetworkError
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.rpc.federation_pb2_grpc import FederationStub
from secure_fl.transport.base import CoordinatorLink
from secure_fl.transport.channel import dial_pinned, received, typed_errors

M = TypeVar("M")


class GrpcLink:
    """One channel: the session stream and, beside it, uploads and downloads.

    Nothing leaves through it once the coordinator has lost its `Standing`: every call then raises `CertificateError`.
    """

    def __init__(self, channel: grpc.aio.Channel, standing: Standing) -> None:
        self._channel = channel
        self._standing = standing
        self._stub = FederationStub(channel)  # type: ignore[no-untyped-call]

    async def session(self, outgoing: AsyncIterator[pb.NodeMessage]) -> AsyncIterator[pb.CoordinatorMessage]:
        """The stream; it has no deadline, heartbeats watch over it."""
        with self._calling():
            async for message in self._stub.Session(self._checked(outgoing)):
                self._standing.require()
                yield received(message)

    async def upload(self, parts: AsyncIterator[pb.UploadPart], *, timeout: float) -> pb.UploadReceipt:  # noqa: ASYNC109
        """One answer."""
        with self._calling():
            receipt: pb.UploadReceipt = received(await self._stub.Upload(self._checked(parts), timeout=timeout))
        return receipt

    async def uploaded(self, query: pb.UploadQuery, *, timeout: float) -> pb.UploadProgress:  # noqa: ASYNC109
        """How much of an answer has arrived."""
        with self._calling():
            progress: pb.UploadProgress = received(await self._stub.Uploaded(query, timeout=timeout))
        return progress

    async def download(self, request: pb.DownloadRequest, *, timeout: float) -> AsyncIterator[pb.Chunk]:  # noqa: ASYNC109
        """One object."""
        with self._calling():
            async for chunk in self._stub.Download(request, timeout=timeout):
                yield received(chunk)

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()

    @contextmanager
    def _calling(self) -> Iterator[None]:
        self._standing.require()
        try:
            with typed_errors():
                yield
        except NetworkError:
            self._standing.require()  # gRPC says of a call that `_checked` broke off only that it was cancelled.
            raise

    async def _checked(self, messages: AsyncIterator[M]) -> AsyncIterator[M]:
        async for message in messages:
            self._standing.require()
            yield message


class GrpcConnector:
    """Dials out; the coordinator's certificate is checked before a single message is sent."""

    def __init__(self, file: NodeFile) -> None:
        self._file = file

    async def connect(self) -> CoordinatorLink:
        """A fresh link."""
        channel, coordinator = await dial_pinned(self._file)
        return GrpcLink(channel, Standing(coordinator, self._file.trust()))
