"""A network that cuts, repeats, holds back, swaps and damages messages, exactly where a test wants it to.

It stands where production has a wire: between a node's `CoordinatorLink` and the coordinator's service. A message
passes a named point:

    say:<body>        the node says something in its session
    tell:<body>       the coordinator says something in the session; an announcement is `tell:<phase>`
    send:<phase>      an upload on its way to the coordinator
    receipt:<phase>   its receipt on the way back; the coordinator has taken the upload
    fetch:<phase>     an object announced in that phase, on its way to the node
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from google.protobuf.message import Message as ProtoMessage

from secure_fl.errors import NetworkError, SecureFLError
from secure_fl.messages import parse
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.base import CoordinatorLink

P = TypeVar("P", bound=ProtoMessage)

CUT, DUPLICATE, DELAY, REORDER, CORRUPT, HANG, DEAF = FAULTS = (
    "cut", "duplicate", "delay", "reorder", "corrupt", "hang", "deaf",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LinkFault:
    """What happens to the n-th message that passes a point in a round; with `ever_after` to it and all that follow."""

    what: str
    point: str
    round: int = 0  # 0: whatever round it belongs to
    occurrence: int = 1
    ever_after: bool = False
    seconds: float = 0.0  # of a delay
    part: int = 0  # of an upload or download: the part that is damaged, or after which the line is cut
    byte: int = 0  # of that part's serialised form, counted from the end where negative
    late: bool = False  # of an upload: it, or its second copy, arrives right after the next upload


@dataclass(kw_only=True)
class Sent:
    """One upload as the node gave it to its link."""

    header: pb.UploadHeader
    octets: bytes


@dataclass
class Network:
    """One node's network: the faults it has, and what passed."""

    faults: tuple[LinkFault, ...] = ()
    seen: dict[tuple[str, int], int] = field(default_factory=dict)
    struck: list[LinkFault] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    late: list[list[pb.UploadPart]] = field(default_factory=list)  # uploads that arrive again after the next one
    committed: set[tuple[int, int]] = field(default_factory=set)  # rounds and attempts this node was told to be facts
    echoes: list[pb.UploadReceipt | SecureFLError] = field(default_factory=list)  # how those, and delayed ones, fared
    tasks: list[asyncio.Task[pb.UploadReceipt]] = field(default_factory=list)

    def passes(self, point: str, number: int = 0) -> LinkFault | None:
        """Count a message of round `number`, and say what befalls it."""
        for key in {(point, 0), (point, number)}:
            self.seen[key] = self.seen.get(key, 0) + 1
        for fault in self.faults:
            if fault.point == point and self._is_due(fault, number):
                self.struck.append(fault)
                return fault
        return None

    def _is_due(self, fault: LinkFault, number: int) -> bool:
        if fault.ever_after:
            return number >= fault.round and self.seen[fault.point, 0] >= fault.occurrence
        if fault.round not in (0, number):
            return False
        return self.seen[fault.point, fault.round] == fault.occurrence

    async def close(self) -> None:
        """What is still under way is lost."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


_Down: TypeAlias = asyncio.Queue[tuple[pb.CoordinatorMessage, LinkFault | None] | SecureFLError | None]


class RoughLink:
    """A link through a `Network`."""

    def __init__(self, inner: CoordinatorLink, network: Network) -> None:
        self._inner = inner
        self._network = network
        self._objects: dict[bytes, tuple[str, int]] = {}  # SHA-256 → the phase and round it was announced in
        self._pump: asyncio.Task[None] | None = None

    # --- the session ------------------------------------------------------------------------------------------

    async def session(self, outgoing: AsyncIterator[pb.NodeMessage]) -> AsyncIterator[pb.CoordinatorMessage]:
        """Forward both directions; a cut in either ends both."""
        queue: _Down = asyncio.Queue()
        self._pump = asyncio.create_task(self._listen(outgoing, queue))
        held: list[pb.CoordinatorMessage] = []
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, SecureFLError):
                    raise item
                async for message in self._tell(*item, queue, held):
                    yield message
        finally:
            self._pump.cancel()

    async def _listen(self, outgoing: AsyncIterator[pb.NodeMessage], queue: _Down) -> None:
        try:
            async for message in self._inner.session(self._say(outgoing, queue)):
                fault = self._network.passes(self._point(message), message.announcement.round)
                if message.round_closed.committed:
                    self._network.committed.add((message.round_closed.round, message.round_closed.attempt))
                if fault is not None and fault.what == DEAF:
                    await asyncio.Event().wait()  # Nobody reads any more; what the node says still goes out.
                queue.put_nowait((message, fault))
        except SecureFLError as error:
            queue.put_nowait(error)
        queue.put_nowait(None)

    async def _tell(
        self, message: pb.CoordinatorMessage, fault: LinkFault | None, queue: _Down, held: list[pb.CoordinatorMessage]
    ) -> AsyncIterator[pb.CoordinatorMessage]:
        if fault is None:
            yield message
            while held and message.WhichOneof("body") != "heartbeat":
                yield held.pop()
        elif fault.what == DUPLICATE:
            yield message
            yield message
        elif fault.what == DELAY:
            asyncio.get_running_loop().call_later(fault.seconds, queue.put_nowait, (message, None))
        elif fault.what == REORDER:
            held.append(message)  # until another one has gone by
        elif fault.what == CORRUPT:
            yield _damaged(message, fault.byte)
        elif fault.what == CUT:
            raise NetworkError("the line was cut")
        else:
            await asyncio.Event().wait()

    async def _say(self, outgoing: AsyncIterator[pb.NodeMessage], queue: _Down) -> AsyncIterator[pb.NodeMessage]:
        held: list[pb.NodeMessage] = []
        async for message in outgoing:
            fault = self._network.passes(f"say:{message.WhichOneof('body')}")
            if fault is None:
                yield message
                while held:
                    yield held.pop()
            elif fault.what == DUPLICATE:
                yield message
                yield message
            elif fault.what == DELAY:
                await asyncio.sleep(fault.seconds)
                yield message
            elif fault.what == REORDER:
                held.append(message)
            elif fault.what == CORRUPT:
                yield _damaged(message, fault.byte)
            elif fault.what == CUT:
                queue.put_nowait(NetworkError("the line was cut"))
                await asyncio.Event().wait()
            else:
                await asyncio.Event().wait()

    def _point(self, message: pb.CoordinatorMessage) -> str:
        body = str(message.WhichOneof("body"))
        if body != "announcement":
            return f"tell:{body}"
        announcement = message.announcement
        if announcement.HasField("bulk"):
            self._objects[announcement.bulk.sha256] = (announcement.phase, announcement.round)
        model = announcement.model.object.sha256
        if self._objects.get(model, ("", 0))[1] != announcement.round:  # Later phases name it too.
            self._objects[model] = (announcement.phase, announcement.round)
        return f"tell:{announcement.phase}"

    # --- uploads ----------------------------------------------------------------------------------------------

    async def upload(self, parts: AsyncIterator[pb.UploadPart], *, timeout: float) -> pb.UploadReceipt:  # noqa: ASYNC109
        """Forward one upload, whole, broken, twice, later or never."""
        whole = [part async for part in parts]
        header = whole[0].header
        octets = b"".join(part.SerializeToString(deterministic=True) for part in whole)
        self._network.sent.append(Sent(header=header, octets=octets))
        fault = self._network.passes(f"send:{header.phase}", header.round)
        if fault is None:
            receipt = await self._inner.upload(_iterate(whole), timeout=timeout)
        else:
            receipt = await self._troubled(fault, whole, timeout)
        late, self._network.late = self._network.late, []
        if fault is not None and fault.late:
            self._network.late.append(whole)  # It arrives once more, after the next one.
        for old in late:
            await self._echo(old)
        back = self._network.passes(f"receipt:{header.phase}", header.round)
        if back is not None and back.what == CUT:
            raise NetworkError("the line was cut")
        if back is not None and back.what == DELAY:
            await asyncio.sleep(back.seconds)
        if back is not None and back.what == CORRUPT:
            receipt = _damaged(receipt, back.byte)
        return receipt

    async def _troubled(self, fault: LinkFault, whole: list[pb.UploadPart], timeout: float) -> pb.UploadReceipt:  # noqa: ASYNC109
        async def forward(parts: list[pb.UploadPart]) -> pb.UploadReceipt:
            return await self._inner.upload(_iterate(parts), timeout=timeout)

        if fault.late and fault.what == DELAY:
            self._network.late.append(whole)
            await asyncio.Event().wait()
        if fault.late:
            return await forward(whole)
        if fault.what == HANG:
            await asyncio.Event().wait()
        if fault.what == CUT:
            await self._break_off(whole[: fault.part])
            raise NetworkError("the line was cut")
        if fault.what == DUPLICATE:
            both = await asyncio.gather(forward(whole), forward(whole), return_exceptions=True)
            answers = [answer for answer in both if isinstance(answer, pb.UploadReceipt)]
            if not answers:
                raise NetworkError("both copies were lost")
            return answers[0]
        if fault.what == DELAY:
            # The bytes are on their way, whether or not the node still waits for the receipt.
            return await asyncio.shield(self._later(fault.seconds, whole))
        if fault.what == REORDER:
            swapped = [whole[0], *whole[2:], whole[1]] if len(whole) > 2 else whole[::-1]
            return await forward(swapped)
        damaged = list(whole)
        damaged[fault.part % len(whole)] = _damaged(whole[fault.part % len(whole)], fault.byte)
        return await forward(damaged)

    async def _break_off(self, parts: list[pb.UploadPart]) -> None:
        """The coordinator gets some parts; then its call is cancelled, as gRPC does when a peer is gone."""
        arrived = asyncio.Event()

        async def some() -> AsyncIterator[pb.UploadPart]:
            for part in parts:
                yield part
            arrived.set()
            await asyncio.Event().wait()

        call = asyncio.ensure_future(self._inner.upload(some(), timeout=60))
        reached = asyncio.ensure_future(arrived.wait())
        await asyncio.wait((call, reached), return_when=asyncio.FIRST_COMPLETED)
        call.cancel()
        reached.cancel()
        await asyncio.gather(call, reached, return_exceptions=True)

    def _later(self, seconds: float, whole: list[pb.UploadPart]) -> asyncio.Task[pb.UploadReceipt]:
        async def travel() -> pb.UploadReceipt:
            await asyncio.sleep(seconds)
            try:
                receipt = await self._inner.upload(_iterate(whole), timeout=60)
            except SecureFLError as error:
                self._network.echoes.append(error)
                raise
            self._network.echoes.append(receipt)
            return receipt

        task = asyncio.create_task(travel())
        self._network.tasks.append(task)
        return task

    async def _echo(self, whole: list[pb.UploadPart]) -> None:
        try:
            self._network.echoes.append(await self._inner.upload(_iterate(whole), timeout=60))
        except SecureFLError as error:
            self._network.echoes.append(error)

    async def uploaded(self, query: pb.UploadQuery, *, timeout: float) -> pb.UploadProgress:  # noqa: ASYNC109
        """Forward."""
        return await self._inner.uploaded(query, timeout=timeout)

    # --- downloads --------------------------------------------------------------------------------------------

    async def download(self, request: pb.DownloadRequest, *, timeout: float) -> AsyncIterator[pb.Chunk]:  # noqa: ASYNC109
        """Forward one object, whole or not."""
        phase, number = self._objects.get(request.sha256, ("", 0))
        fault = self._network.passes(f"fetch:{phase}", number)
        if fault is None:
            async for chunk in self._inner.download(request, timeout=timeout):
                yield chunk
            return
        whole = [chunk async for chunk in self._inner.download(request, timeout=timeout)]
        if fault.what == HANG:
            await asyncio.Event().wait()
        if fault.what == DELAY:
            await asyncio.sleep(fault.seconds)
        if fault.what == REORDER:
            whole = whole[1:] + whole[:1]
        for number, chunk in enumerate(whole):
            if fault.what == CUT and number == fault.part:
                raise NetworkError("the line was cut")
            hit = number == fault.part
            yield _damaged(chunk, fault.byte) if hit and fault.what == CORRUPT else chunk
            if hit and fault.what == DUPLICATE:
                yield chunk

    async def close(self) -> None:
        """Hang up."""
        if self._pump is not None:
            self._pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._pump
        await self._inner.close()


def _damaged(message: P, byte: int) -> P:
    """The message with one byte flipped; raises `MalformedMessageError` when it does not decode any more."""
    raw = bytearray(message.SerializeToString(deterministic=True))
    raw[byte % len(raw)] ^= 0x55
    return parse(type(message), bytes(raw))


async def _iterate(parts: list[pb.UploadPart]) -> AsyncIterator[pb.UploadPart]:
    for part in parts:
        yield part
