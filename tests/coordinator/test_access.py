"""What one peer may have of the server, and what it hears when it asks for more, over real TLS."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st

from coordinator.access import Pace
from node.link import GrpcConnector
from secure_fl.errors import (
    CertificateError,
    DuplicateSessionError,
    MalformedMessageError,
    SecureFLError,
    TooManyRequestsError,
)
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.rpc.federation_pb2_grpc import ReceptionStub
from secure_fl.transport.channel import dial
from secure_fl.transport.errors import DETAIL_KEY, error_from_status
from tests.support.edge import Edge, at_the_edge, hello

GARBAGE = (b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x0f", b"\x12\x07\x0a\x05ab", b"\x0b" * 300)


async def raw_call(channel: grpc.aio.Channel, shape: str, method: str, request: bytes) -> None:
    """Send bytes that no stub would."""

    async def once() -> AsyncIterator[bytes]:
        yield request

    call: Any = getattr(channel, shape)(method)(once() if shape.startswith("stream") else request, timeout=10)
    if shape.endswith("stream"):
        async for _ in call:
            pass
    else:
        await call


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize(
    ("shape", "method"),
    [("stream_stream", "Session"), ("stream_unary", "Upload"), ("unary_stream", "Download")],
)
def test_bytes_that_do_not_parse_get_our_code_and_nothing_else(
    tmp_path: Path, shape: str, method: str, garbage: bytes
) -> None:
    async def scenario(edge: Edge) -> None:
        channel = await dial(edge.node_file())
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await raw_call(channel, shape, f"/secure_fl.v1.Federation/{method}", garbage)
        assert isinstance(error_from_status(failed.value), MalformedMessageError)
        assert failed.value.details() == "MalformedMessage"
        assert dict(failed.value.trailing_metadata() or ())[DETAIL_KEY]
        await channel.close()

    at_the_edge(tmp_path, scenario)


def test_a_peer_has_so_many_calls_at_once_and_no_second_share_on_another_connection(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        first, second = [await GrpcConnector(edge.node_file()).connect() for _ in range(2)]

        async def hold() -> AsyncIterator[pb.UploadPart]:
            yield pb.UploadPart(chunk=pb.Chunk(data=b"x"))
            await asyncio.sleep(30)

        held = [first.session(hello()), second.session(hello())]
        for session in held:
            await anext(session)
        with pytest.raises(DuplicateSessionError):  # The second session ends the first, which frees its place.
            _ = [message async for message in held[0]]
        held_open: list[object] = []

        async def never(peer: object, _parts: object) -> None:
            held_open.append(peer)
            try:
                await asyncio.sleep(60)
            finally:
                held_open.pop()

        edge.coordinator.hub.upload = never  # type: ignore[method-assign, assignment]
        waiting = [asyncio.create_task(first.upload(hold(), timeout=30)) for _ in range(2)]
        await _until(lambda: len(held_open) == 2)
        with pytest.raises(TooManyRequestsError):
            await second.upload(hold(), timeout=10)
        # Another site has a share of its own.
        other = await GrpcConnector(edge.node_file("site-02")).connect()
        assert (await anext(other.session(hello()))).WhichOneof("body") == "welcome"
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await _until(lambda: not held_open)
        # A place that was given up can be had again.
        again = asyncio.create_task(second.upload(hold(), timeout=30))
        await _until(lambda: len(held_open) == 1)
        assert not again.done()
        again.cancel()
        for link in (first, second, other):
            await link.close()

    at_the_edge(tmp_path, scenario, calls_per_peer=3)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def test_a_fast_sender_is_read_at_its_pace(tmp_path: Path) -> None:
    async def flood() -> AsyncIterator[pb.NodeMessage]:
        async for first in hello(0.1):
            yield first
        for sequence in range(100_000):
            yield pb.NodeMessage(heartbeat=pb.Heartbeat(sequence=sequence))

    async def scenario(edge: Edge) -> None:
        link = await GrpcConnector(edge.node_file()).connect()
        echoes = 0
        begun = time.monotonic()
        async for message in link.session(flood()):
            echoes += message.WhichOneof("body") == "heartbeat"
            if time.monotonic() - begun > 3:
                break
        assert 50 <= echoes <= 50 * (3 + 1 + 1)
        await link.close()

    at_the_edge(tmp_path, scenario, messages_per_second=50)


@given(st.lists(st.floats(0, 3), max_size=200), st.floats(1, 100))
def test_no_second_has_more_than_its_rate_and_one_burst(pauses: list[float], rate: float) -> None:
    now = 0.0
    pace = Pace(rate, clock=lambda: now)
    served = []
    for pause in pauses:
        now += pause
        now += pace.wait()
        served.append(now)
    for index, moment in enumerate(served):
        within = [other for other in served[index:] if other < moment + 1]
        assert len(within) <= 2 * rate + 2


def test_connections_are_counted(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        sockets = [socket.create_connection(("127.0.0.1", edge.port)) for _ in range(6)]
        await asyncio.sleep(0.5)
        closed = 0
        for link in sockets:
            link.settimeout(0.2)
            try:
                closed += link.recv(1) == b""
            except TimeoutError:
                pass
            except OSError:
                closed += 1
        assert closed == 3
        for link in sockets:
            link.close()
        await asyncio.sleep(0.5)
        # Who comes after the crowd has gone is served.
        assert await GrpcConnector(edge.node_file()).connect()

    at_the_edge(tmp_path, scenario, connections=3)


def test_health_and_greeting_are_for_the_consortium(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        channel = await dial(edge.node_file())
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "secure_fl.v1.Federation"):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        reply = await health.Check(health_pb2.HealthCheckRequest(service="other"), timeout=10)
        assert reply.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        greeting = await ReceptionStub(channel).Greet(pb.GreetRequest(), timeout=10)  # type: ignore[no-untyped-call]
        assert abs(greeting.clock_ms / 1000 - time.time()) < 5
        edge.authority.revoke("site-01")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await health.Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert isinstance(error_from_status(failed.value), CertificateError)
        await channel.close()

    at_the_edge(tmp_path, scenario)


def test_a_session_that_breaks_the_contract_is_told_so(tmp_path: Path) -> None:
    async def rude() -> AsyncIterator[pb.NodeMessage]:
        async for message in hello(0.2):
            yield message
        yield pb.NodeMessage(study_id="../../etc", sit_out=pb.SitOut())
        await asyncio.sleep(10)

    async def scenario(edge: Edge) -> None:
        link = await GrpcConnector(edge.node_file()).connect()
        with pytest.raises(SecureFLError) as told:
            async for _ in link.session(rude()):
                pass
        assert told.value.code == "MalformedMessage"
        await link.close()

    at_the_edge(tmp_path, scenario)
