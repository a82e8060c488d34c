"""Two ends of one seam. Faults are injected here in tests, through the same calls production uses.

A node holds a `CoordinatorLink`, which a `Connector` gave it; behind it, over gRPC or in the same process, is a
`FederationService`. One conversation::

    link = await connector.connect()
    async for message in link.session(outgoing):       # hello and heartbeats out; offers and announcements in
        ...
    async for chunk in link.download(request, timeout=60.0):
        incoming.write(chunk)
    receipt = await link.upload(parts, timeout=60.0)   # a header, then chunks
    await link.close()

Only codes of errors cross it: what a service raises arrives at the link as an error of the same class without its text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from secure_fl.identity.certificates import Certificate
from secure_fl.rpc import federation_pb2 as pb


class FederationService(Protocol):
    """What the coordinator offers to an authenticated peer."""

    def session(
        self, peer: Certificate, incoming: AsyncIterator[pb.NodeMessage]
    ) -> AsyncIterator[pb.CoordinatorMessage]:
        """Serve one node's stream until either side ends it.

        `peer` was authenticated by the transport; `incoming` begins with hello. Yields a welcome, then what the node
        should know. Raises `MalformedMessageError` for a node that breaks the contract, `VersionMismatchError`.
        """
        ...

    async def upload(self, peer: Certificate, parts: AsyncIterator[pb.UploadPart]) -> pb.UploadReceipt:
        """Take one answer to one phase: `parts` is a header and then the chunks of its bulk, from any offset.

        Returns once the answer is durable; the same answer again is a duplicate, not an error. Raises
        `LateMessageError` for one that nobody waits for, `ConflictingUploadError` for a second, different one,
        `NotConnectedError` where the sender should try again, `NotEnrolledError`, `SignatureError`, `ProtectionError`.
        """
        ...

    async def uploaded(self, peer: Certificate, query: pb.UploadQuery) -> pb.UploadProgress:
        """Say how many bytes of an upload's bulk are here: 0 for one that is unknown. Raises `LateMessageError`."""
        ...

    def download(self, peer: Certificate, request: pb.DownloadRequest) -> AsyncIterator[pb.Chunk]:
        """Send one object of a study from an offset on; `MalformedMessageError` for one that is not there."""
        ...


class CoordinatorLink(Protocol):
    """What a node holds while it is connected. Every call raises a typed error; `NetworkError` means: retry."""

    def session(self, outgoing: AsyncIterator[pb.NodeMessage]) -> AsyncIterator[pb.CoordinatorMessage]:
        """Open the stream: `outgoing` is read as long as the stream lasts. It ends, or raises, with the link."""
        ...

    async def upload(self, parts: AsyncIterator[pb.UploadPart], *, timeout: float) -> pb.UploadReceipt:  # noqa: ASYNC109
        """Send one answer; returns the coordinator's receipt. `timeout` is in seconds, for all of it."""
        ...

    async def uploaded(self, query: pb.UploadQuery, *, timeout: float) -> pb.UploadProgress:  # noqa: ASYNC109
        """Ask how much of an answer has arrived, before it is sent again."""
        ...

    def download(self, request: pb.DownloadRequest, *, timeout: float) -> AsyncIterator[pb.Chunk]:
        """Fetch one object from `request.offset` on, in chunks in order. Its digest is for the caller to compare."""
        ...

    async def close(self) -> None:
        """Hang up."""
        ...


class Connector(Protocol):
    """Dials the one coordinator a node knows."""

    async def connect(self) -> CoordinatorLink:
        """A fresh link. Raises `NetworkError` (try again) or `IdentityError` (do not)."""
        ...
