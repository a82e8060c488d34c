"""The one door every call comes through: who calls, how much at once, does it parse, what may be said of a failure.

gRPC hands over raw bytes. Were it to parse them itself, a malformed message would be answered in gRPC's words before
any of ours is said, and nobody would count it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from coordinator.peers import Peers
from secure_fl.errors import MalformedMessageError, SecureFLError, TooManyRequestsError
from secure_fl.events import CallRefused, Listener, ignore
from secure_fl.identity.certificates import Certificate
from secure_fl.messages import parse
from secure_fl.transport.errors import errors_as_status

Context = grpc.aio.ServicerContext[Any, Any]

_FIRST_SECONDS = 20.0


class Gate:
    """Turns servicers, whose methods take a request and the peer's certificate, into gRPC handlers."""

    def __init__(
        self,
        peers: Peers,
        *,
        calls_per_peer: int,
        messages_per_second: float,
        listener: Listener = ignore,
    ) -> None:
        self._peers = peers
        self._calls_per_peer = calls_per_peer
        self._messages_per_second = messages_per_second
        self._listener = listener
        self._calls: Counter[str] = Counter()  # open calls by certificate
        self._pace: dict[str, Pace] = {}  # by certificate, so that a second connection is no second allowance

    def handlers(
        self, service: ServiceDescriptor, servicer: object, *, roles: frozenset[str], tells: bool = False
    ) -> grpc.GenericRpcHandler:
        """The handlers of every method of `service` that `servicer` has, for peers of the given roles.

        With `tells` they are told why a request is refused, and not only by which kind of error.
        """
        methods = {
            method.name: self._handler(method, getattr(servicer, method.name), roles, tells=tells)
            for method in service.methods
            if hasattr(servicer, method.name)
        }
        return grpc.method_handlers_generic_handler(service.full_name, methods)

    def _handler(
        self, method: MethodDescriptor, serve: Callable[..., Any], roles: frozenset[str], *, tells: bool
    ) -> grpc.RpcMethodHandler[Any, Any]:
        kind = GetMessageClass(method.input_type)

        async def request(raw: Any, peer: Certificate) -> Any:
            if not method.client_streaming:
                return parse(kind, raw)
            return self._messages(kind, raw, peer, roles)

        async def answer_once(raw: Any, context: Context) -> Message:
            async with self._admitted(raw, context, method, roles, tells=tells) as (incoming, peer):
                reply: Message = await serve(await request(incoming, peer), peer)
            return reply

        async def answer_many(raw: Any, context: Context) -> AsyncIterator[Message]:
            async with self._admitted(raw, context, method, roles, tells=tells) as (incoming, peer):
                async for reply in serve(await request(incoming, peer), peer):
                    self._peers.check(peer, roles=roles)  # Revoked while connected: told nothing more.
                    yield reply

        make = getattr(grpc, f"{_shape(method.client_streaming)}_{_shape(method.server_streaming)}_rpc_method_handler")
        handler: grpc.RpcMethodHandler[Any, Any] = make(
            answer_many if method.server_streaming else answer_once,
            request_deserializer=None,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        return handler

    @asynccontextmanager
    async def _admitted(
        self, raw: Any, context: Context, method: MethodDescriptor, roles: frozenset[str], *, tells: bool
    ) -> AsyncIterator[tuple[Any, Certificate]]:
        """Identity first, then the peer's share of the server; what is raised inside leaves as a code."""
        async with errors_as_status(context, tells=tells):
            try:
                if method.client_streaming:
                    # Refused while it still writes, a peer's gRPC would report the failed write and not our reason.
                    raw = await _with_first(raw)
                peer = self._peers.require(context, roles=roles)
                with self._one_more_call(peer):
                    yield raw, peer
            except SecureFLError as error:
                self._listener(CallRefused(method=method.name, code=error.code))
                raise

    @contextmanager
    def _one_more_call(self, peer: Certificate) -> Iterator[None]:
        if self._calls[peer.fingerprint] >= self._calls_per_peer:
            raise TooManyRequestsError(f"{peer.name} has {self._calls_per_peer} calls open already")
        self._calls[peer.fingerprint] += 1
        try:
            yield
        finally:
            self._calls[peer.fingerprint] -= 1
            if not self._calls[peer.fingerprint]:
                del self._calls[peer.fingerprint]

    async def _messages(
        self, kind: type[Message], raw: AsyncIterator[bytes], peer: Certificate, roles: frozenset[str]
    ) -> AsyncIterator[Message]:
        """What a peer streams, parsed, and read no faster than it may send: HTTP/2 then slows the sender down."""
        pace = self._pace.setdefault(peer.fingerprint, Pace(self._messages_per_second))
        async for message in raw:
            self._peers.check(peer, roles=roles)
            await pace.keep()
            yield parse(kind, message)


class Pace:
    """At most `rate` events a second on average, one second's worth at once."""

    def __init__(self, rate: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._due = clock()  # when the next event would fall at an even pace

    def wait(self) -> float:
        """Count one event; how long it has to wait."""
        now = self._clock()
        self._due = max(self._due, now - 1.0) + 1.0 / self._rate
        return max(0.0, self._due - now)

    async def keep(self) -> None:
        """Count one event and wait for its turn."""
        if (seconds := self.wait()) > 0:
            await asyncio.sleep(seconds)


def _shape(streaming: bool) -> str:
    return "stream" if streaming else "unary"


async def _with_first(messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same stream, once its first message is here."""
    rest = aiter(messages)
    try:
        async with asyncio.timeout(_FIRST_SECONDS):
            first = await anext(rest)
    except (TimeoutError, StopAsyncIteration):
        raise MalformedMessageError("a stream began with nothing") from None

    async def whole() -> AsyncIterator[bytes]:
        yield first
        async for message in rest:
            yield message

    return whole()
