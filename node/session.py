"""The node's conversation with its coordinator: one stream, kept alive, re-dialled with back-off.

What the coordinator announces is handed to the rounds; what the rounds want to send goes through here and survives a
broken link: an upload is resent byte for byte until it is acknowledged or refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import secure_fl
from secure_fl.errors import (
    DuplicateSessionError,
    MalformedMessageError,
    NetworkError,
    NotConnectedError,
    SecureFLError,
    StorageError,
    TooManyRequestsError,
)
from secure_fl.limits import CHUNK_BYTES, SESSION_QUEUE
from secure_fl.messages import require
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.threads import in_thread_whole
from secure_fl.transport.base import Connector, CoordinatorLink
from secure_fl.transport.objects import IncomingObject
from secure_fl.transport.pace import Backoff, transfer_seconds
from secure_fl.transport.wire import check_coordinator_message, chunks, negotiate, our_versions

log = logging.getLogger(__name__)

_WELCOME_SECONDS = 20.0
_GOODBYE_SECONDS = 1.0
_QUESTION_SECONDS = 20.0
_CORRUPT_TRANSFERS = 3
_CROWDED_SECONDS, _CROWDED_LONGEST = 10.0, 600.0  # before a node takes the place of another one with its certificate

# Worth another try: the link broke, or the coordinator was busy with us.
_TRANSIENT = (NetworkError, NotConnectedError, TooManyRequestsError)

T = TypeVar("T")
Handler = Callable[[pb.CoordinatorMessage], Awaitable[None]]


class Session:
    """Stays connected until told to stop."""

    def __init__(self, connector: Connector, *, handler: Handler, jitter: Callable[[], float] = random.random) -> None:
        self._connector = connector
        self._handler = handler
        self._jitter = jitter
        self._backoff = Backoff(jitter=jitter)
        self._crowded = Backoff(first=_CROWDED_SECONDS, longest=_CROWDED_LONGEST, jitter=jitter)
        self._outgoing: asyncio.Queue[pb.NodeMessage | None] = asyncio.Queue()
        self._link: CoordinatorLink | None = None
        self._connected = asyncio.Event()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Connect, converse, and on a broken link begin again, until `stop`.

        What this node itself finds wrong with the coordinator's identity ends it. What the other side says never does:
        a coordinator in trouble, or one that lies, costs a pause.
        """
        while not self._stop.is_set():
            try:
                self._link = await self._connector.connect()
            except NetworkError as error:
                await self._rest(error)
                continue
            conversation = asyncio.create_task(self._converse(self._link))
            stopped = asyncio.create_task(self._stop.wait())
            try:
                await asyncio.wait((conversation, stopped), return_when=asyncio.FIRST_COMPLETED)
                if self._stop.is_set():
                    await asyncio.wait((conversation,), timeout=_GOODBYE_SECONDS)
            finally:
                stopped.cancel()
                conversation.cancel()
                outcome = (await asyncio.gather(conversation, return_exceptions=True))[0]
                await self._hang_up()
            if isinstance(outcome, SecureFLError):
                await self._rest(outcome)
            elif isinstance(outcome, Exception):
                raise outcome

    async def _rest(self, error: SecureFLError) -> None:
        """Pause before the next try, longer every time."""
        backoff, reason = self._backoff, error.message
        if isinstance(error, DuplicateSessionError):
            # Both nodes are welcomed every time, so the usual pauses would never grow, and neither would get to work.
            backoff, reason = self._crowded, f"another process connected with this site's certificate → {error.hint}"
        if not self._stop.is_set():
            # What every network advises would only lengthen a line that is written again and again.
            known = "→" in reason or error.hint in ("", NetworkError.advice)
            advice = "" if known else f" → {error.hint}"
            log.warning("%s; next try in about %.1f s%s", reason, backoff.pause, advice)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), backoff.next())

    @property
    def connected(self) -> bool:
        """Whether the coordinator has welcomed this node."""
        return self._connected.is_set()

    def stop(self) -> None:
        """Hang up and let `run` return."""
        self._stop.set()
        self._outgoing.put_nowait(None)

    def say(self, message: pb.NodeMessage) -> None:
        """Queue a message for the stream. One that is lost with the link is lost: the coordinator asks again."""
        if self._outgoing.qsize() < SESSION_QUEUE:  # A coordinator that does not listen is not talked to.
            self._outgoing.put_nowait(message)

    async def upload(self, header: pb.UploadHeader, bulk: bytes | memoryview) -> pb.UploadReceipt:
        """Send one answer until it is acknowledged or refused: always the same bytes, after a cut from there on."""
        query = pb.UploadQuery(
            study_id=header.study_id, round=header.round, attempt=header.attempt, upload_id=header.upload_id
        )
        again = False

        async def transfer(link: CoordinatorLink) -> pb.UploadReceipt:
            nonlocal again
            offset = 0
            try:
                if again and len(bulk) > CHUNK_BYTES:
                    offset = (await link.uploaded(query, timeout=_QUESTION_SECONDS)).received
                again = True
                return await link.upload(_parts(header, bulk, offset), timeout=transfer_seconds(len(bulk)))
            except StorageError as error:
                # The coordinator's disk, not ours: it may have room again before the deadline.
                raise NotConnectedError(error.message) from error

        return await self._persist(transfer)

    async def download(self, study_id: str, incoming: IncomingObject, *, durable: bool = False) -> None:
        """Fetch one object, after a broken link from where it broke. It is whole, and what was announced, or raises."""
        reference = incoming.reference

        async def transfer(link: CoordinatorLink) -> None:
            request = pb.DownloadRequest(study_id=study_id, sha256=reference.sha256, offset=incoming.position)
            try:
                if incoming.position < reference.size:
                    async for chunk in link.download(request, timeout=transfer_seconds(reference.size)):
                        require(chunk.study_id == study_id, "a chunk belongs to another study")
                        await in_thread_whole(incoming.write, chunk)
                await in_thread_whole(incoming.finish, durable=durable)
            except MalformedMessageError:
                await in_thread_whole(incoming.discard)  # Nothing of it can be trusted: from the start.
                raise

        try:
            await self._persist(transfer)
        finally:
            await in_thread_whole(incoming.discard)

    async def _persist(self, transfer: Callable[[CoordinatorLink], Awaitable[T]]) -> T:
        """Try a transfer on every link there is, until it succeeds or fails for good."""
        corrupt = 0
        backoff = Backoff(jitter=self._jitter)
        while True:
            link = await self._live_link()
            try:
                return await transfer(link)
            except MalformedMessageError:
                corrupt += 1
                if corrupt == _CORRUPT_TRANSFERS:
                    raise
            except NetworkError as error:
                if type(error) not in _TRANSIENT:
                    raise
                log.warning("a transfer failed (%s); it will be tried again", error.code)
            await asyncio.sleep(backoff.next())

    async def _live_link(self) -> CoordinatorLink:
        while self._link is None or not self._connected.is_set():
            await self._connected.wait()
        return self._link

    async def _converse(self, link: CoordinatorLink) -> None:
        """One stream from hello to hang-up."""
        self._outgoing = asyncio.Queue()
        software = f"secure-fl {secure_fl.__version__}"
        self.say(pb.NodeMessage(hello=pb.Hello(versions=our_versions(), software=software)))
        messages = aiter(link.session(self._drain()))
        try:
            async with asyncio.timeout(_WELCOME_SECONDS):
                welcome = await anext(messages)
        except (TimeoutError, StopAsyncIteration):
            raise NetworkError("the coordinator does not answer hello") from None
        check_coordinator_message(welcome)
        require(welcome.WhichOneof("body") == "welcome", "a session starts with welcome")
        negotiate(pb.VersionRange(lowest=welcome.welcome.version, highest=welcome.welcome.version))
        beat = max(0.1, welcome.welcome.heartbeat_ms / 1000)
        log.info("connected to the coordinator (%s)", welcome.welcome.software)
        self._connected.set()
        self._backoff.reset()
        heart = asyncio.create_task(self._heartbeat(beat))
        try:
            while True:
                async with asyncio.timeout(3 * beat):
                    message = await anext(messages)
                check_coordinator_message(message)
                if message.WhichOneof("body") not in ("heartbeat", "welcome"):
                    await self._handler(message)
        except TimeoutError:
            raise NetworkError("the coordinator fell silent") from None
        except StopAsyncIteration:
            if not self._stop.is_set():
                raise NetworkError("the coordinator ended the session") from None
        finally:
            heart.cancel()

    async def _heartbeat(self, seconds: float) -> None:
        sequence = 0
        while True:
            self.say(pb.NodeMessage(heartbeat=pb.Heartbeat(sequence=sequence)))
            sequence += 1
            await asyncio.sleep(seconds)

    async def _drain(self) -> AsyncIterator[pb.NodeMessage]:
        queue = self._outgoing
        while (message := await queue.get()) is not None:
            yield message

    async def _hang_up(self) -> None:
        self._connected.clear()
        link, self._link = self._link, None
        self._outgoing.put_nowait(None)
        if link is not None:
            await link.close()


async def _parts(header: pb.UploadHeader, bulk: bytes | memoryview, offset: int) -> AsyncIterator[pb.UploadPart]:
    yield pb.UploadPart(header=header)
    for chunk in chunks(bulk, study_id=header.study_id, offset=offset):
        yield pb.UploadPart(chunk=chunk)
