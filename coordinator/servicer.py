"""gRPC in front of the hub: mutual TLS, identity from the certificate, typed errors as statuses."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import grpc
import grpc.aio

from coordinator.config import CoordinatorFile
from coordinator.hub import Hub
from secure_fl.errors import CertificateError, PortInUseError
from secure_fl.identity.certificates import Certificate, TrustStore, utc_now
from secure_fl.limits import MESSAGE_BYTES
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.rpc.federation_pb2_grpc import FederationServicer, add_FederationServicer_to_server
from secure_fl.transport.errors import errors_as_status

log = logging.getLogger(__name__)

_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # Otherwise two coordinators would share a port in silence.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class Servicer(FederationServicer):
    """Authenticates every call and passes it to the hub."""

    def __init__(self, hub: Hub, trust: TrustStore, *, now: Callable[[], datetime] = utc_now) -> None:
        self._hub = hub
        self._trust = trust
        self._now = now

    async def Session(
        self, request_iterator: AsyncIterator[pb.NodeMessage], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.CoordinatorMessage]:
        """The stream a node keeps."""
        async with errors_as_status(context):
            peer = self._peer(context)
            async for message in self._hub.session(peer, aiter(request_iterator)):
                self._trust.check(peer, role="node", now=self._now())  # Revoked while connected: told nothing more.
                yield message

    async def Upload(
        self, request_iterator: AsyncIterator[pb.UploadPart], context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.UploadReceipt:
        """One answer to one phase."""
        async with errors_as_status(context):
            return await self._hub.upload(self._peer(context), aiter(request_iterator))

    async def Download(
        self, request: pb.DownloadRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.Chunk]:
        """One object."""
        async with errors_as_status(context):
            async for chunk in self._hub.download(self._peer(context), request):
                yield chunk

    def _peer(self, context: grpc.aio.ServicerContext[Any, Any]) -> Certificate:
        """The node behind a call. TLS has checked its chain; role, dates and revocation are checked on every call."""
        leaf = next(iter(context.auth_context().get("x509_pem_cert", ())), None)
        if leaf is None:
            raise CertificateError("a call without a client certificate")
        peer = Certificate.from_pem(leaf)
        self._trust.check(peer, role="node", now=self._now())
        return peer


async def start_server(hub: Hub, file: CoordinatorFile) -> tuple[grpc.aio.Server, int]:
    """Listen with mutual TLS; returns the server and its port. Raises `PortInUseError`."""
    credential = file.credential()
    trust = file.trust()
    trust.check(credential.certificate, role="coordinator", now=utc_now())
    server = grpc.aio.server(options=_OPTIONS)
    add_FederationServicer_to_server(Servicer(hub, trust), server)  # type: ignore[no-untyped-call]
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
