"""gRPC in front of the hub: mutual TLS, identity from the certificate, typed errors as statuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from coordinator.config import CoordinatorFile
from coordinator.hub import Hub
from coordinator.operations import Operations
from coordinator.peers import Peers
from coordinator.service import Coordinator
from secure_fl.errors import MalformedMessageError, PortInUseError
from secure_fl.identity.certificates import Certificate, utc_now
from secure_fl.limits import MESSAGE_BYTES
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.rpc.federation_pb2_grpc import FederationServicer, add_FederationServicer_to_server
from secure_fl.rpc.operations_pb2_grpc import add_OperationsServicer_to_server
from secure_fl.transport.errors import errors_as_status

log = logging.getLogger(__name__)

_FIRST_SECONDS = 20.0
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", 32),  # per connection: a session, and a few transfers
    ("grpc.so_reuseport", 0),  # Otherwise two coordinators would share a port in silence.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class Servicer(FederationServicer):
    """Authenticates every call and passes it to the hub."""

    def __init__(self, hub: Hub, peers: Peers) -> None:
        self._hub = hub
        self._peers = peers

    async def Session(
        self, request_iterator: AsyncIterator[pb.NodeMessage], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.CoordinatorMessage]:
        """The stream a node keeps."""
        async with errors_as_status(context):
            # Refused while it still sends its hello, a peer's gRPC would report the failed write instead of our reason.
            incoming = await _with_first(request_iterator)
            peer = self._peers.require(context, role="node")
            async for message in self._hub.session(peer, incoming):
                self._peers.check(peer, role="node")  # Revoked while connected: told nothing more.
                yield message

    async def Upload(
        self, request_iterator: AsyncIterator[pb.UploadPart], context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.UploadReceipt:
        """One answer to one phase."""
        async with errors_as_status(context):
            peer = self._peers.require(context, role="node")
            return await self._hub.upload(peer, self._while_valid(peer, request_iterator))

    async def _while_valid(
        self, peer: Certificate, parts: AsyncIterator[pb.UploadPart]
    ) -> AsyncIterator[pb.UploadPart]:
        async for part in parts:
            self._peers.check(peer, role="node")
            yield part

    async def Download(
        self, request: pb.DownloadRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.Chunk]:
        """One object."""
        async with errors_as_status(context):
            peer = self._peers.require(context, role="node")
            async for chunk in self._hub.download(peer, request):
                yield chunk


async def _with_first(messages: AsyncIterator[pb.NodeMessage]) -> AsyncIterator[pb.NodeMessage]:
    """The same stream, once its first message is here."""
    rest = aiter(messages)
    try:
        async with asyncio.timeout(_FIRST_SECONDS):
            first = await anext(rest)
    except (TimeoutError, StopAsyncIteration):
        raise MalformedMessageError("a session did not start with hello") from None

    async def whole() -> AsyncIterator[pb.NodeMessage]:
        yield first
        async for message in rest:
            yield message

    return whole()


async def start_server(coordinator: Coordinator, file: CoordinatorFile) -> tuple[grpc.aio.Server, int]:
    """Listen with mutual TLS; returns the server and its port. Raises `PortInUseError`."""
    credential = file.credential()
    trust = file.trust()
    trust.check(credential.certificate, role="coordinator", now=utc_now())
    server = grpc.aio.server(options=_OPTIONS)
    peers = Peers(trust)
    add_FederationServicer_to_server(Servicer(coordinator.hub, peers), server)  # type: ignore[no-untyped-call]
    add_OperationsServicer_to_server(Operations(coordinator, peers), server)  # type: ignore[no-untyped-call]
    tls = grpc.ssl_server_credentials(
        [(credential.tls_key.reveal(), credential.certificate.pem)],
        root_certificates=file.ca_pem(),
        require_client_auth=True,
    )
    try:
        port = server.add_secure_port(file.coordinator.address, tls)
    except RuntimeError:
        port = 0
    if port == 0:
        raise PortInUseError(f"cannot listen on {file.coordinator.address}")
    await server.start()
    log.info("listening on port %d", port)
    return server, port
