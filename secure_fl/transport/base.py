"""Two ends of one seam. Faults are injected here in tests, through the same calls production uses."""

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
        """Serve one node's stream until either side ends it."""
        ...

    async def upload(self, peer: Certificate, parts: AsyncIterator[pb.UploadPart]) -> pb.UploadReceipt:
        """Take one answer to one phase."""
        ...

    def download(self, peer: Certificate, request: pb.DownloadRequest) -> AsyncIterator[pb.Chunk]:
        """Send one object."""
        ...


class CoordinatorLink(Protocol):
    """What a node holds while it is connected. Every call raises a typed error; `NetworkError` means: retry."""

    def session(self, outgoing: AsyncIterator[pb.NodeMessage]) -> AsyncIterator[pb.CoordinatorMessage]:
        """Open the stream."""
        ...

    async def upload(self, parts: AsyncIterator[pb.UploadPart], *, timeout: float) -> pb.UploadReceipt:  # noqa: ASYNC109
        """Send one answer."""
        ...

    def download(self, request: pb.DownloadRequest, *, timeout: float) -> AsyncIterator[pb.Chunk]:
        """Fetch one object."""
        ...

    async def close(self) -> None:
        """Hang up."""
        ...


class Connector(Protocol):
    """Dials the one coordinator a node knows."""

    async def connect(self) -> CoordinatorLink:
        """A fresh link. Raises `NetworkError` (try again) or `IdentityError` (do not)."""
        ...
