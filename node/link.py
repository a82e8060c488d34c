"""The node's end of the wire: gRPC over mutual TLS to the one coordinator its file names."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio

from node.config import NodeFile
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.rpc.federation_pb2_grpc import FederationStub
from secure_fl.transport.base import CoordinatorLink
from secure_fl.transport.channel import dial, received, typed_errors


class GrpcLink:
    """One channel: the session stream and, beside it, uploads and downloads."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._stub = FederationStub(channel)  # type: ignore[no-untyped-call]

    async def session(self, outgoing: AsyncIterator[pb.NodeMessage]) -> AsyncIterator[pb.CoordinatorMessage]:
        """The stream; it has no deadline, heartbeats watch over it."""
        with typed_errors():
            async for message in self._stub.Session(outgoing):
                yield received(message)

    async def upload(self, parts: AsyncIterator[pb.UploadPart], *, timeout: float) -> pb.UploadReceipt:  # noqa: ASYNC109
        """One answer."""
        with typed_errors():
            receipt: pb.UploadReceipt = received(await self._stub.Upload(parts, timeout=timeout))
        return receipt

    async def uploaded(self, query: pb.UploadQuery, *, timeout: float) -> pb.UploadProgress:  # noqa: ASYNC109
        """How much of an answer has arrived."""
        with typed_errors():
            progress: pb.UploadProgress = received(await self._stub.Uploaded(query, timeout=timeout))
        return progress

    async def download(self, request: pb.DownloadRequest, *, timeout: float) -> AsyncIterator[pb.Chunk]:  # noqa: ASYNC109
        """One object."""
        with typed_errors():
            async for chunk in self._stub.Download(request, timeout=timeout):
                yield received(chunk)

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()


class GrpcConnector:
    """Dials out; the coordinator's certificate is checked before a single message is sent."""

    def __init__(self, file: NodeFile) -> None:
        self._file = file

    async def connect(self) -> CoordinatorLink:
        """A fresh link."""
        return GrpcLink(await dial(self._file))
