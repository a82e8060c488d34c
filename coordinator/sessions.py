"""The coordinator's side of the wire: sessions, uploads, downloads. Knows nodes and studies, not gRPC.

The peer of every call is a certificate that the transport has already authenticated; what it may do follows from
the rosters it stands in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import secure_fl
from coordinator.study_runner import StudyRunner
from secure_fl import logs
from secure_fl.errors import (
    DuplicateSessionError,
    MalformedMessageError,
    NotConnectedError,
    NotEnrolledError,
    SecureFLError,
)
from secure_fl.identity.certificates import Certificate
from secure_fl.limits import SESSION_QUEUE
from secure_fl.messages import require
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.pace import transfer_seconds
from secure_fl.transport.wire import (
    check_download,
    check_node_message,
    check_upload_header,
    check_upload_query,
    file_chunks,
    negotiate,
    verify_upload_header,
)

log = logging.getLogger(__name__)

_HELLO_SECONDS = 20.0
_CHUNK_SECONDS = 30.0  # the longest pause within an upload


class _Session:
    """One connected node."""

    def __init__(self, peer: Certificate, forget: Callable[[_Session], None]) -> None:
        self.peer = peer
        self._forget = forget
        self.accepted: set[str] = set()
        self.refused: dict[str, str] = {}  # study → error code
        self.outgoing: asyncio.Queue[pb.CoordinatorMessage | None] = asyncio.Queue(SESSION_QUEUE)
        self.offence: SecureFLError | None = None  # what the node did to lose its session

    def send(self, message: pb.CoordinatorMessage) -> None:
        """Queue a message; a node too slow to read its announcements loses the session and starts over."""
        try:
            self.outgoing.put_nowait(message)
        except asyncio.QueueFull:
            log.warning("%s does not read its announcements; ending its session", self.peer.name)
            self.end()

    def end(self) -> None:
        """Make the stream end after dropping what waits. The stream of a node that does not read may never notice."""
        while not self.outgoing.empty():
            self.outgoing.get_nowait()
        self.outgoing.put_nowait(None)
        self._forget(self)


class Hub:
    """Implements `FederationService` and, for the rounds, `Sessions`."""

    def __init__(self, *, heartbeat: float = 10.0) -> None:
        # Why a certificate counts for nothing now, by its fingerprint: whoever lets peers in knows.
        self.standing: Callable[[str], str] = lambda _fingerprint: ""
        self._heartbeat = heartbeat
        self._sessions: dict[str, _Session] = {}
        self._runners: dict[str, StudyRunner] = {}
        self._uploads: dict[tuple[str, str], asyncio.Task[pb.UploadReceipt]] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, runner: StudyRunner) -> None:
        """Offer a study to its roster."""
        self._runners[runner.id] = runner
        for session in list(self._sessions.values()):
            if _enrolled(session.peer, runner):
                session.send(_offer(runner))

    # --- Sessions ---------------------------------------------------------------------------------------------

    def ready(self, study_id: str) -> frozenset[str]:
        """Nodes that are connected and accepted the study."""
        return frozenset(session.peer.name for session in self._sessions.values() if study_id in session.accepted)

    def send(self, node: str, message: pb.CoordinatorMessage) -> bool:
        """Queue a message if the node is connected and has accepted the study."""
        runner = self._runners[message.study_id]
        session = self._sessions.get(runner.study.study.roster[node])
        if session is None or runner.id not in session.accepted:
            return False
        session.send(message)
        return True

    def sites(self, runner: StudyRunner) -> list[dict[str, Any]]:
        """Per site of a roster: connected, accepted, and by which kind of reason not."""
        set_aside, sat_out = runner.set_aside, runner.sat_out_lately
        rows = []
        for name, fingerprint in runner.study.study.roster.items():
            session = self._sessions.get(fingerprint)
            rows.append(
                {
                    "name": name,
                    "connected": session is not None,
                    "accepted": session is not None and runner.id in session.accepted,
                    "refusal": session.refused.get(runner.id, "") if session else "",
                    "set_aside": self.standing(fingerprint) or set_aside.get(name, ""),
                    "sat_out": sat_out[name][1] if name in sat_out else "",
                    "sat_out_round": sat_out[name][0] if name in sat_out else 0,
                }
            )
        return rows

    async def drain(self, seconds: float) -> None:
        """Give the nodes time to hang up, then end what is left."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            self.hang_up()

    @property
    def connected(self) -> int:
        """How many nodes have a session."""
        return len(self._sessions)

    def hang_up(self) -> None:
        """End every session."""
        for session in list(self._sessions.values()):
            session.end()

    # --- FederationService ------------------------------------------------------------------------------------

    async def session(
        self, peer: Certificate, incoming: AsyncIterator[pb.NodeMessage]
    ) -> AsyncIterator[pb.CoordinatorMessage]:
        """One node's stream: hello, welcome, then announcements until either side hangs up."""
        version = negotiate((await self._hello(incoming)).versions)
        earlier = self._sessions.get(peer.fingerprint)
        session = _Session(peer, self._forget)
        self._sessions[peer.fingerprint] = session
        if earlier is not None:
            log.info("%s connected again; its earlier session ends (a broken line, or two nodes)", peer.name)
            earlier.offence = DuplicateSessionError(f"{peer.name} connected again")
            earlier.end()
        self._idle.clear()
        reader = asyncio.create_task(self._read(session, incoming))
        log.info("%s connected", peer.name)
        try:
            yield pb.CoordinatorMessage(welcome=self._welcome(version))
            for runner in self._runners.values():
                if _enrolled(peer, runner):
                    yield _offer(runner) if runner.outcome == "running" else runner.closing_message()
            while (message := await session.outgoing.get()) is not None:
                yield message
            if session.offence is not None:
                raise session.offence
        finally:
            reader.cancel()
            self._forget(session)

    def _forget(self, session: _Session) -> None:
        """A session is over: its node is neither connected nor ready."""
        if self._sessions.get(session.peer.fingerprint) is session:
            del self._sessions[session.peer.fingerprint]
            log.info("%s disconnected", session.peer.name)
        if not self._sessions:
            self._idle.set()
        for runner in self._runners.values():
            runner.changed()

    async def upload(self, peer: Certificate, parts: AsyncIterator[pb.UploadPart]) -> pb.UploadReceipt:
        """One answer to one phase. A node has one upload at a time: a newer one (a retry) ends the one before."""
        first = await _next_part(parts)
        require(first.WhichOneof("body") == "header", "an upload starts with its header")
        header = first.header
        check_upload_header(header)
        runner = self._runner(peer, header.study_id)
        verify_upload_header(header, peer.signing_public)
        key = (peer.fingerprint, runner.id)
        await self._end_upload(key)
        with logs.about(study=runner.id, round=header.round):
            task = asyncio.create_task(self._receive(runner, peer.name, header, parts))
        self._uploads[key] = task
        try:
            async with asyncio.timeout(transfer_seconds(header.bulk.size)):
                return await task
        except (asyncio.CancelledError, TimeoutError):
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise NotConnectedError("an upload took too long, or a newer one took its place") from None
        finally:
            task.cancel()
            if self._uploads.get(key) is task:
                del self._uploads[key]

    async def _end_upload(self, key: tuple[str, str]) -> None:
        if (earlier := self._uploads.get(key)) is not None:
            earlier.cancel()
            await asyncio.wait((earlier,))

    async def _receive(
        self, runner: StudyRunner, node: str, header: pb.UploadHeader, parts: AsyncIterator[pb.UploadPart]
    ) -> pb.UploadReceipt:
        async def chunks() -> AsyncIterator[pb.Chunk]:
            end = 0
            while end < header.bulk.size:
                part = await _next_part(parts)
                require(part.WhichOneof("body") == "chunk" and len(part.chunk.data) > 0, "an upload breaks off")
                require(part.chunk.study_id == header.study_id, "a chunk belongs to another study")
                end = part.chunk.offset + len(part.chunk.data)
                yield part.chunk

        duplicate = await runner.receive(node, header, chunks())
        return pb.UploadReceipt(study_id=runner.id, upload_id=header.upload_id, duplicate=duplicate)

    async def uploaded(self, peer: Certificate, query: pb.UploadQuery) -> pb.UploadProgress:
        """How much of an upload has arrived."""
        check_upload_query(query)
        runner = self._runner(peer, query.study_id)
        await self._end_upload((peer.fingerprint, runner.id))  # Its line broke, or it would not be asked about.
        return pb.UploadProgress(study_id=runner.id, received=await runner.received(peer.name, query))

    async def download(self, peer: Certificate, request: pb.DownloadRequest) -> AsyncIterator[pb.Chunk]:
        """One object of a study, from an offset on."""
        check_download(request)
        runner = self._runner(peer, request.study_id)
        path = runner.object_path(request.sha256)
        async for chunk in file_chunks(path, study_id=runner.id, offset=request.offset):
            runner.count_download(peer.name, request.sha256, chunk.ByteSize())
            yield chunk

    # --- internals --------------------------------------------------------------------------------------------

    async def _hello(self, incoming: AsyncIterator[pb.NodeMessage]) -> pb.Hello:
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                first = await anext(incoming)
        except (TimeoutError, StopAsyncIteration):
            raise MalformedMessageError("a session did not start with hello") from None
        check_node_message(first)
        require(first.WhichOneof("body") == "hello", "a session starts with hello")
        return first.hello

    def _welcome(self, version: int) -> pb.Welcome:
        software = f"secure-fl {secure_fl.__version__}"
        return pb.Welcome(version=version, software=software, heartbeat_ms=int(self._heartbeat * 1000))

    async def _read(self, session: _Session, incoming: AsyncIterator[pb.NodeMessage]) -> None:
        """Everything a node says in its session; the session ends when it says nothing for three heartbeats."""
        try:
            while True:
                async with asyncio.timeout(3 * self._heartbeat):
                    message = await anext(incoming)
                check_node_message(message)
                self._handle(session, message)
        except (TimeoutError, StopAsyncIteration) as error:
            why = "it fell silent" if isinstance(error, TimeoutError) else "it hung up"
            log.info("the session of %s ends: %s", session.peer.name, why)
        except SecureFLError as error:
            session.offence = error
        finally:
            session.end()

    def _handle(self, session: _Session, message: pb.NodeMessage) -> None:
        body = message.WhichOneof("body")
        if body == "heartbeat":
            # Not the message itself: whatever else a node put into it would be kept here and sent back.
            session.send(pb.CoordinatorMessage(heartbeat=pb.Heartbeat(sequence=message.heartbeat.sequence)))
            return
        if body == "hello":
            raise MalformedMessageError("hello is said once")
        runner = self._runner(session.peer, message.study_id)
        if body == "sit_out":
            runner.sit_out(session.peer.name, message.sit_out)
        elif message.study_answer.accepted:
            if runner.id in session.accepted:
                return  # Said before, and answered with what the node should be doing.
            session.accepted.add(runner.id)
            session.refused.pop(runner.id, None)
            runner.joined(session.peer.name)
        elif session.refused.get(runner.id) != message.study_answer.refusal or runner.id in session.accepted:
            log.warning("%s refuses study %s: %s", session.peer.name, runner.id[:12], message.study_answer.refusal)
            session.accepted.discard(runner.id)
            session.refused[runner.id] = message.study_answer.refusal
            runner.refused(session.peer.name, message.study_answer.refusal)

    def _runner(self, peer: Certificate, study_id: str) -> StudyRunner:
        runner = self._runners.get(study_id)
        # One answer for "no such study" and "not yours": a node learns nothing about other consortia's studies.
        if runner is None or not _enrolled(peer, runner):
            raise NotEnrolledError(f"{peer.name} is not in the roster of study {study_id[:12]}")
        return runner


def _enrolled(peer: Certificate, runner: StudyRunner) -> bool:
    return runner.study.study.roster.get(peer.name) == peer.fingerprint


def _offer(runner: StudyRunner) -> pb.CoordinatorMessage:
    return pb.CoordinatorMessage(study_id=runner.id, study_offer=pb.StudyOffer(settings=runner.resolved.canonical))


async def _next_part(parts: AsyncIterator[pb.UploadPart]) -> pb.UploadPart:
    try:
        async with asyncio.timeout(_CHUNK_SECONDS):
            return await anext(parts)
    except (TimeoutError, StopAsyncIteration):
        raise NotConnectedError("an upload broke off") from None
