"""The coordinator's gRPC server: mutual TLS, limits, and the services behind the gate."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

import secure_fl
from coordinator.access import Gate
from coordinator.config import CoordinatorFile
from coordinator.operations import Operations
from coordinator.peers import Peers
from coordinator.service import Coordinator
from coordinator.sessions import Hub
from secure_fl.errors import PortInUseError
from secure_fl.events import Listener, ignore
from secure_fl.identity.certificates import Certificate, utc_now
from secure_fl.limits import MESSAGE_BYTES, METADATA_BYTES
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.rpc import operations_pb2
from secure_fl.transport.wire import our_versions

log = logging.getLogger(__name__)

_FEDERATION = pb.DESCRIPTOR.services_by_name["Federation"]
_RECEPTION = pb.DESCRIPTOR.services_by_name["Reception"]
_OPERATIONS = operations_pb2.DESCRIPTOR.services_by_name["Operations"]
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.max_concurrent_streams", 32),  # per connection: a session, and a few transfers
    ("grpc.server_handshake_timeout_ms", 10_000),  # A socket that never speaks TLS is no connection for long.
    ("grpc.max_connection_idle_ms", 60_000),  # nor is one without calls; a node always has its session
    ("grpc.so_reuseport", 0),  # Otherwise two coordinators would share a port in silence.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class Federation:
    """What nodes call."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def Session(
        self, incoming: AsyncIterator[pb.NodeMessage], peer: Certificate
    ) -> AsyncIterator[pb.CoordinatorMessage]:
        """The stream a node keeps."""
        return self._hub.session(peer, incoming)

    async def Upload(self, parts: AsyncIterator[pb.UploadPart], peer: Certificate) -> pb.UploadReceipt:
        """One answer to one phase."""
        return await self._hub.upload(peer, parts)

    async def Uploaded(self, query: pb.UploadQuery, peer: Certificate) -> pb.UploadProgress:
        """How much of an answer has arrived."""
        return await self._hub.uploaded(peer, query)

    def Download(self, request: pb.DownloadRequest, peer: Certificate) -> AsyncIterator[pb.Chunk]:
        """One object."""
        return self._hub.download(peer, request)


class Reception:
    """Who we are and what time it is here, for `secure-fl doctor`."""

    async def Greet(self, _request: pb.GreetRequest, _peer: Certificate) -> pb.Greeting:
        """Say so."""
        software = f"secure-fl {secure_fl.__version__}"
        return pb.Greeting(versions=our_versions(), software=software, clock_ms=int(time.time() * 1000))


class Health:
    """gRPC's standard health checking. A coordinator that answers is serving."""

    async def Check(self, request: health_pb2.HealthCheckRequest, _peer: Certificate) -> health_pb2.HealthCheckResponse:
        """SERVING, for the server as a whole and for each service by name."""
        replies = health_pb2.HealthCheckResponse
        known = request.service in ("", _FEDERATION.full_name, _OPERATIONS.full_name)
        return replies(status=replies.SERVING if known else replies.SERVICE_UNKNOWN)


async def start_server(
    coordinator: Coordinator, file: CoordinatorFile, *, listener: Listener = ignore
) -> tuple[grpc.aio.Server, int]:
    """Listen with mutual TLS; returns the server and its port. Raises `PortInUseError`."""
    credential = file.check_identity("coordinator", now=utc_now())
    peers = Peers(file.trust())
    coordinator.hub.standing = peers.standing
    gate = Gate(
        peers,
        calls_per_peer=file.limits.calls_per_peer,
        messages_per_second=file.limits.messages_per_second,
        listener=listener,
    )
    server = grpc.aio.server(
        handlers=[
            gate.handlers(_FEDERATION, Federation(coordinator.hub), roles=frozenset({"node"})),
            gate.handlers(_OPERATIONS, Operations(coordinator), roles=frozenset({"operator"}), tells=True),
            gate.handlers(_RECEPTION, Reception(), roles=frozenset({"node", "operator"})),
            gate.handlers(_HEALTH, Health(), roles=frozenset({"node", "operator"})),
        ],
        options=(*_OPTIONS, ("grpc.max_allowed_incoming_connections", file.limits.connections)),
    )
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
