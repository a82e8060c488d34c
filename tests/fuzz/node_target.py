"""A real node, and a coordinator that says whatever the fuzzer makes up.

The path of a message is the node's: bytes, `wire.parse`, the session, the node's handler, its rounds.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from node.config import NodeFile
from node.service import Node
from secure_fl.blocks import BlockShape, Layout, TensorShape
from secure_fl.errors import LateMessageError, NotConnectedError
from secure_fl.messages import parse
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.simulation.workspace import prepare
from secure_fl.study.settings import Study
from secure_fl.transport.base import CoordinatorLink
from secure_fl.transport.wire import layout_to_wire, reference
from tests.fuzz.mutation import Octets, Structured, mutate_json
from tests.support.training import FakeTraining

LAYOUT = Layout((BlockShape(name="features", tensors=(TensorShape(name="w", shape=(3,)),)),))
WEIGHTS = bytes(12)
_MODEL = pb.ModelRef(
    version=0, digest=LAYOUT.digest(LAYOUT.unflatten(WEIGHTS)), blocks=layout_to_wire(LAYOUT), object=reference(WEIGHTS)
)


class Liar:
    """Every link leads to the same liar: sessions of a few messages, then the next one."""

    def __init__(self, folder: Path, rng: random.Random, messages: int) -> None:
        table = {
            "study": {"rounds": 100_000, "initial": _MODEL.digest.hex()},
            "protection": {"kind": "none", "recovery": True},
            "simulation": {"nodes": 4},
            "metrics": {"share": "per-node"},
        }
        self.workspace = prepare(folder / "node-run", Study.parse(table), policy={})
        self.workspace.point_nodes_at(0)
        self.file = NodeFile.read(self.workspace.node_file("site-01"))
        self.folder = self.workspace.node_folder("site-01") / "studies" / self.workspace.study.id
        self.accepted: Callable[[], bool] = lambda: False
        self.read = 0
        self.uploads = 0
        self.answers: dict[str, int] = {}
        self.honest = asyncio.Event()  # from here on nothing but the truth
        self.spent = asyncio.Event()  # everything hostile has been said
        self._messages = messages
        self._rng = rng
        self._structured = Structured(rng)
        self._study_id = self.workspace.study.id
        self._settings = self.workspace.study.canonical()
        self._names = tuple(self.workspace.study.study.roster)
        self._round = 0
        self._octets = Octets(rng, [message.SerializeToString() for message in self._truths()])

    async def connect(self) -> CoordinatorLink:
        """As a connector."""
        return self

    async def close(self) -> None:
        """As a link."""

    # --- what the node calls ----------------------------------------------------------------------------------

    async def session(self, outgoing: AsyncIterator[pb.NodeMessage]) -> AsyncIterator[pb.CoordinatorMessage]:
        """Hello is answered as it should be, mostly; then come lies, or in the end the truth."""
        reader = asyncio.create_task(self._listen(outgoing))
        try:
            if self.honest.is_set() or self._rng.random() < 0.95:
                yield self._truths()[0]
            async for message in self._truth() if self.honest.is_set() else self._lies():
                yield message
        finally:
            reader.cancel()

    async def upload(self, parts: AsyncIterator[pb.UploadPart], *, timeout: float) -> pb.UploadReceipt:  # noqa: ASYNC109
        """Taken, lost, or refused."""
        header, *_ = [part.header async for part in parts]
        self.uploads += 1
        if not self.honest.is_set() and (dice := self._rng.random()) < 0.3:
            raise NotConnectedError("lost") if dice < 0.15 else LateMessageError("too late")
        return pb.UploadReceipt(study_id=header.study_id, upload_id=header.upload_id)

    async def uploaded(self, query: pb.UploadQuery, *, timeout: float) -> pb.UploadProgress:  # noqa: ASYNC109
        """Nothing, or a lie."""
        received = 0 if self.honest.is_set() else self._rng.getrandbits(63)
        return pb.UploadProgress(study_id=query.study_id, received=received)

    async def download(self, request: pb.DownloadRequest, *, timeout: float) -> AsyncIterator[pb.Chunk]:  # noqa: ASYNC109
        """The model, or something like it."""
        chunk = pb.Chunk(study_id=request.study_id, offset=request.offset, data=WEIGHTS[request.offset :])
        if not self.honest.is_set() and self._rng.random() < 0.3:
            self.read += 1
            chunk = parse(pb.Chunk, self._spoilt(chunk))
        yield chunk

    async def _listen(self, outgoing: AsyncIterator[pb.NodeMessage]) -> None:
        async for message in outgoing:
            body = str(message.WhichOneof("body"))
            code = message.sit_out.reason or message.study_answer.refusal
            self.answers[f"{body} {code}"] = self.answers.get(f"{body} {code}", 0) + 1

    # --- what the node is told --------------------------------------------------------------------------------

    async def _lies(self) -> AsyncIterator[pb.CoordinatorMessage]:
        if not self.accepted():
            yield self._truths()[2]  # Only an accepted study lets announcements through to the rounds.
        for _ in range(self._rng.randrange(1, 15)):
            self.read += 1
            yield parse(pb.CoordinatorMessage, self._lie())
            await asyncio.sleep(0)
        if self.read >= self._messages:
            self.spent.set()
            await self.honest.wait()

    async def _truth(self) -> AsyncIterator[pb.CoordinatorMessage]:
        """The study from its start, as often as it takes: earlier lies may still be in the node's queue."""
        while True:
            yield self._truths()[5]
            self.forget_rounds()
            yield self._truths()[2]
            yield self._truths()[3]
            await asyncio.sleep(1.0)

    def forget_rounds(self) -> None:
        """A lie may have moved the node's memory of rounds, and of their models, to the last one; it starts over."""
        for name in ("cursor.json", "base.json"):
            (self.folder / name).unlink(missing_ok=True)

    def _truths(self) -> tuple[pb.CoordinatorMessage, ...]:
        """One of each kind; the announcement is of a round that has not been before."""
        self._round += 1
        mine = self._study_id
        announcement = pb.PhaseAnnouncement(
            round=self._round,
            attempt=1,
            kind=pb.ROUND_KIND_TRAIN,
            phase="upload",
            deadline_ms=5000,
            model=_MODEL,
            invited=self._names,
            payload=pb.Payload(protection="none", phase="upload", version=1),
        )
        return (
            pb.CoordinatorMessage(welcome=pb.Welcome(version=1, software="secure-fl", heartbeat_ms=60_000)),
            pb.CoordinatorMessage(heartbeat=pb.Heartbeat(sequence=3)),
            pb.CoordinatorMessage(study_id=mine, study_offer=pb.StudyOffer(settings=self._settings)),
            pb.CoordinatorMessage(study_id=mine, announcement=announcement),
            pb.CoordinatorMessage(
                study_id=mine, round_closed=pb.RoundClosed(round=self._round, attempt=1, committed=True)
            ),
            pb.CoordinatorMessage(study_id=mine, study_closed=pb.StudyClosed(finished=True)),
        )

    def _lie(self) -> bytes:
        # Closed and offered again, a study costs a hundred times what a message costs.
        truth = self._rng.choices(self._truths(), weights=(1, 1, 4, 11, 2, 1))[0]
        if truth.WhichOneof("body") == "study_offer" and self._rng.random() < 0.5:
            return self._renamed_offer().SerializeToString()
        return self._spoilt(truth)

    def _renamed_offer(self) -> pb.CoordinatorMessage:
        """A hostile study under the id that it really has."""
        changed = json.dumps(mutate_json(self._rng, json.loads(self._settings))).encode()
        try:
            study_id = Study.from_canonical(changed).id
        except Exception:
            study_id = self._study_id
        return pb.CoordinatorMessage(study_id=study_id, study_offer=pb.StudyOffer(settings=changed))

    def _spoilt(self, message: pb.CoordinatorMessage | pb.Chunk) -> bytes:
        if self._rng.random() < 0.7:
            return self._structured.mutate(message).SerializeToString()
        return self._octets.mutate(message.SerializeToString())


async def fuzz_node(liar: Liar, note: Callable[[], None]) -> asyncio.Task[None]:
    """Lie to a node until the messages are spent; then be honest, and wait for one good answer."""
    node = Node(liar.file, liar, FakeTraining())
    liar.accepted = lambda: bool(node._studies)
    task: asyncio.Task[Any] = asyncio.create_task(node.run())
    done = 0.0
    while not liar.spent.is_set() and not task.done():
        await asyncio.sleep(0.05)
        if liar.read / liar._messages >= done + 0.05:
            done = liar.read / liar._messages
            note()
            liar.forget_rounds()
    if not task.done():
        before = liar.uploads
        liar.honest.set()
        for _ in range(400):
            if liar.uploads > before or task.done():
                break
            await asyncio.sleep(0.05)
        assert liar.uploads > before, "the node no longer answers an honest coordinator"
    return task
