"""The node's end of the wire: gRPC over mutual TLS to the one coordinator its file names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from urllib.request import getproxies, proxy_bypass

import grpc
import grpc.aio

from node.config import NodeFile
from secure_fl.errors import NetworkError, SettingsError
from secure_fl.identity.pinning import fetch_pinned
from secure_fl.limits import MESSAGE_BYTES
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.rpc.federation_pb2_grpc import FederationStub
from secure_fl.transport.base import CoordinatorLink
from secure_fl.transport.errors import error_from_status

_CONNECT_SECONDS = 20.0


@contextmanager
def _typed_errors() -> Iterator[None]:
    """What gRPC raises, as what the session understands."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_from_status(error) from None
    except asyncio.CancelledError:
        # Closing a channel cancels the calls on it. That is a broken link; only a cancelled task is a cancellation.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise NetworkError("the link was closed in the middle of a call") from None


class GrpcLink:
    """One channel: the session stream and, beside it, uploads and downloads."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._stub = FederationStub(channel)  # type: ignore[no-untyped-call]

    async def session(self, outgoing: AsyncIterator[pb.NodeMessage]) -> AsyncIterator[pb.CoordinatorMessage]:
        """The stream; it has no deadline, heartbeats watch over it."""
        with _typed_errors():
            async for message in self._stub.Session(outgoing):
                yield message

    async def upload(self, parts: AsyncIterator[pb.UploadPart], *, timeout: float) -> pb.UploadReceipt:  # noqa: ASYNC109
        """One answer."""
        with _typed_errors():
            receipt: pb.UploadReceipt = await self._stub.Upload(parts, timeout=timeout)
        return receipt

    async def download(self, request: pb.DownloadRequest, *, timeout: float) -> AsyncIterator[pb.Chunk]:  # noqa: ASYNC109
        """One object."""
        with _typed_errors():
            async for chunk in self._stub.Download(request, timeout=timeout):
                yield chunk

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()


class GrpcConnector:
    """Dials out; checks the coordinator's certificate before a single message is sent."""

    def __init__(self, file: NodeFile) -> None:
        self._file = file
        self._credential = file.credential()
        self._ca = file.ca_pem()
        self._host, self._port = _split(file.node.coordinator)

    async def connect(self) -> CoordinatorLink:
        """Pin, then connect.

        gRPC cannot pin a certificate. So the node fetches it first with Python's own TLS, verifies chain, host name
        and fingerprint, and then gives gRPC exactly that certificate as its only root of trust.
        """
        proxy = self._proxy()
        pinned = await asyncio.to_thread(
            fetch_pinned,
            host=self._host,
            port=self._port,
            ca_pem=self._ca,
            fingerprint=self._file.node.fingerprint,
            timeout=_CONNECT_SECONDS,
            proxy=proxy,
            certfile=self._file.certificate_path,
            keyfile=self._file.key_path,
        )
        credentials = grpc.ssl_channel_credentials(
            root_certificates=pinned,
            private_key=self._credential.tls_key.reveal(),
            certificate_chain=self._credential.certificate.pem,
        )
        channel = grpc.aio.secure_channel(self._file.node.coordinator, credentials, options=_options(proxy))
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await _ready(channel)
        except (TimeoutError, NetworkError):
            await channel.close()
            raise NetworkError(
                f"{self._file.node.coordinator} was reached but does not complete a mutual TLS connection",
                advice="is this site's certificate valid, and issued by the coordinator's consortium?",
            ) from None
        return GrpcLink(channel)

    def _proxy(self) -> str | None:
        """The node file's proxy, or the environment's, as every other program here would use it."""
        if self._file.node.proxy:
            return self._file.node.proxy
        if proxy_bypass(self._host):
            return None
        proxies = getproxies()
        return proxies.get("https") or proxies.get("all")


async def _ready(channel: grpc.aio.Channel) -> None:
    """Wait for the handshake; unlike gRPC's own wait, take the first failure for an answer."""
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise NetworkError("the handshake failed")
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


def _options(proxy: str | None) -> list[tuple[str, str | int]]:
    options: list[tuple[str, str | int]] = [
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # One decision about the proxy, made above: gRPC's own reading of the environment is switched off.
        ("grpc.enable_http_proxy", 1 if proxy else 0),
        # The session reconnects with back-off of its own; a stale subchannel must not be shared with it.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if proxy:
        options.append(("grpc.http_proxy", proxy))
    return options


def _split(address: str) -> tuple[str, int]:
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit():
        raise SettingsError(f"node.coordinator: {address!r} is not host:port")
    return host.strip("[]"), int(port)
