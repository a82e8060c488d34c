"""A pinned mutual-TLS channel to the one coordinator a party's file names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar
from urllib.request import getproxies, proxy_bypass

import grpc
import grpc.aio

from secure_fl.addresses import split_address
from secure_fl.errors import MalformedMessageError, NetworkError
from secure_fl.identity.certificates import Certificate, utc_now
from secure_fl.identity.party_file import DialingFile
from secure_fl.identity.pinning import fetch_pinned
from secure_fl.limits import MESSAGE_BYTES
from secure_fl.transport.errors import error_from_status

M = TypeVar("M")

_CONNECT_SECONDS = 20.0


async def dial(file: DialingFile) -> grpc.aio.Channel:
    """A channel for a call or two. Raises as `dial_pinned` does."""
    channel, _ = await dial_pinned(file)
    return channel


async def dial_pinned(file: DialingFile) -> tuple[grpc.aio.Channel, Certificate]:
    """Pin, then connect; returns also whom to. Raises `NetworkError` (try again) or `IdentityError` (do not).

    gRPC cannot pin a certificate. So the coordinator's is fetched first with Python's own TLS, its chain, host name and
    fingerprint are verified, and gRPC is then given exactly that certificate as its only root of trust.
    """
    section = file.dialing
    host, port = split_address(section.coordinator)
    proxy = section.proxy or _environment_proxy(host)
    credential = file.credential()
    pinned = await asyncio.to_thread(
        fetch_pinned,
        host=host,
        port=port,
        ca_pem=file.ca_pem(),
        fingerprint=section.fingerprint,
        timeout=_CONNECT_SECONDS,
        proxy=proxy,
        certfile=file.certificate_path,
        keyfile=file.key_path,
    )
    # The node's own revocation list and the role count too: a node's or an old coordinator's certificate is not enough.
    coordinator = Certificate.from_pem(pinned)
    file.trust().check(coordinator, role="coordinator", now=utc_now())
    credentials = grpc.ssl_channel_credentials(
        root_certificates=pinned,
        private_key=credential.tls_key.reveal(),
        certificate_chain=credential.certificate.pem,
    )
    channel = grpc.aio.secure_channel(section.coordinator, credentials, options=_options(proxy))
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            await _ready(channel)
    except (TimeoutError, NetworkError):
        await channel.close()
        raise NetworkError(
            f"{section.coordinator} was reached but does not complete a mutual TLS connection",
            advice="is this party's certificate valid, and issued by the coordinator's consortium?",
        ) from None
    return channel, coordinator


@contextmanager
def typed_errors() -> Iterator[None]:
    """What a gRPC call raises, as an error of ours."""
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


def received(message: M | None) -> M:
    """What a call returned; gRPC hands out None for bytes that do not decode."""
    if message is None:
        raise MalformedMessageError("a message of the coordinator does not decode")
    return message


async def _ready(channel: grpc.aio.Channel) -> None:
    """Wait for the handshake; unlike gRPC's own wait, take the first failure for an answer."""
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise NetworkError("the handshake failed")
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


def _environment_proxy(host: str) -> str | None:
    """The proxy that every other program here would use."""
    if proxy_bypass(host):
        return None
    proxies = getproxies()
    return proxies.get("https") or proxies.get("all")


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
        # Whoever reconnects does so with back-off of its own; a stale subchannel must not be shared with it.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if proxy:
        options.append(("grpc.http_proxy", proxy))
    return options
