"""A coordinator with a study under way among honest sites, and every call of its services under attack.

The path of a message is the server's: bytes, `wire.parse`, the hub or the operations. `_decoded` and `_operate` are the
only places that know how bytes get there.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import Message

from coordinator.attempt import AttemptRunner
from coordinator.operations import Operations
from coordinator.service import Coordinator
from node.config import NodeFile
from node.service import Node
from node.training.jobs import Job, Result
from secure_fl.errors import SecureFLError
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import Certificate
from secure_fl.messages import parse
from secure_fl.operations.submission import chunks_of, request_of
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.rpc import operations_pb2 as ops
from secure_fl.rpc.protect_none_pb2 import PlainUpload
from secure_fl.simulation.workspace import Workspace, prepare
from secure_fl.study.settings import Study
from secure_fl.study.submission import start_of_study
from secure_fl.transport.local import LocalConnector
from secure_fl.transport.wire import our_versions, reference, sign_upload_header
from tests.fuzz.mutation import Octets, Structured
from tests.support.training import FakeTraining

P = TypeVar("P", bound=Message)

HONEST = ("site-01", "site-02", "site-03", "site-04")
UPLOADING = ("site-05", "site-06", "site-07", "site-08")
TALKING = ("site-09", "site-10")
MOST_STUDIES = 100


class CrashError(AssertionError):
    """Something left the coordinator that is no typed error."""


class Gate:
    """Holds the honest sites' training back until the fuzzer is done with a round."""

    def __init__(self) -> None:
        self._open = 0
        self._changed = asyncio.Condition()

    async def open(self, number: int) -> None:
        """Let everybody train up to this round."""
        async with self._changed:
            self._open = number
            self._changed.notify_all()

    async def passes(self, number: int) -> None:
        """Wait for it."""
        async with self._changed:
            await self._changed.wait_for(lambda: number <= self._open)


class _Held(FakeTraining):
    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    async def run(self, job: Job) -> Result:
        await self._gate.passes(job.round)
        return await super().run(job)


class Held:
    """An enrolled peer with a session that behaves, so that it is invited, and with uploads that do not."""

    def __init__(self, world: World, name: str) -> None:
        self.file = NodeFile.read(world.workspace.node_file(name))
        self.certificate = self.file.credential().certificate
        self.key = self.file.credential().signing_key
        self.announced: pb.PhaseAnnouncement | None = None
        self.answered = False
        self._say: asyncio.Queue[pb.NodeMessage | None] = asyncio.Queue()
        self._world = world
        self.task = asyncio.create_task(self._converse())

    async def _outgoing(self) -> AsyncIterator[pb.NodeMessage]:
        yield pb.NodeMessage(hello=pb.Hello(versions=our_versions()))
        yield pb.NodeMessage(study_id=self._world.study_id, study_answer=pb.StudyAnswer(accepted=True))
        while (message := await self._say.get()) is not None:
            yield message

    async def _converse(self) -> None:
        async for message in self._world.coordinator.hub.session(self.certificate, self._outgoing()):
            if message.WhichOneof("body") == "announcement":
                self.announced = message.announcement
                self.answered = False

    def sit_out(self) -> None:
        """Let the round go on without this peer."""
        if self.announced is not None:
            body = pb.SitOut(round=self.announced.round, attempt=self.announced.attempt, reason="Refused")
            self._say.put_nowait(pb.NodeMessage(study_id=self._world.study_id, sit_out=body))

    def hang_up(self) -> None:
        """End the session."""
        self._say.put_nowait(None)


class World:
    """The coordinator, four honest sites, six hostile ones."""

    def __init__(self, folder: Path, *, rounds: int) -> None:
        table = {
            "study": {"rounds": rounds},
            "task": {"name": "tests.support.task:Line"},
            "protection": {"kind": "none", "recovery": True},
            "rounds": {"deadline": 900, "gather": 0},
            "simulation": {"nodes": len(HONEST + UPLOADING + TALKING)},
        }
        self.workspace: Workspace = prepare(folder / "run", Study.parse(table), policy={})
        self.workspace.point_nodes_at(0)
        self.study = self.workspace.study
        self.study_id = self.study.id  # a hash: computed once
        self.coordinator = Coordinator(
            self.workspace.coordinator_state, heartbeat=120.0, grace=0.05, tasks=[self.study.task.name]
        )
        self.runner = self.coordinator.prepare(self.study)
        self.gate = Gate()
        authority = Authority.open(self.workspace.folder / "pki")
        self.operator = authority.issue("operator", "lead").certificate
        self.stranger = authority.issue("node", "site-99").certificate
        self._operations = Operations(self.coordinator)
        self._tasks: list[asyncio.Task[Any]] = []
        self.held: tuple[Held, ...] = ()
        self.talking = tuple(NodeFile.read(self.workspace.node_file(name)).credential().certificate for name in TALKING)
        # What another consortium might submit: a good study, of sites that never connect.
        roster = {f"other-{index:02d}": f"{index:064x}" for index in range(4)}
        section = self.study.study.model_copy(update={"roster": roster, "rounds": 1})
        other = self.study.model_copy(update={"study": section})
        start, self._other_id = start_of_study(other), other.id
        self.submission: list[Message] = [request_of(other, start.first_model()), *chunks_of(other.id, start)]
        self._uploads: dict[tuple[str, int], list[pb.UploadPart]] = {}

    async def start(self) -> None:
        """Get everybody connected and the first round announced."""
        for name in HONEST:
            file = NodeFile.read(self.workspace.node_file(name))
            connector = LocalConnector(file.credential().certificate)
            connector.service = self.coordinator.hub
            self._tasks.append(asyncio.create_task(Node(file, connector, _Held(self.gate), until_done=True).run()))
        self.held = tuple(Held(self, name) for name in UPLOADING)
        # The talkers are there for the first round and then come and go: nobody waits for them again.
        greeting = [
            pb.NodeMessage(hello=pb.Hello(versions=our_versions())).SerializeToString(),
            pb.NodeMessage(study_id=self.study_id, study_answer=pb.StudyAnswer(accepted=True)).SerializeToString(),
        ]
        for certificate in self.talking:
            self._tasks.append(asyncio.create_task(self._greet(certificate, greeting)))
        while len(self.coordinator.hub.ready(self.study_id)) < len(self.study.study.roster):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        self._tasks.append(asyncio.create_task(self.coordinator.run()))
        await self.round_announced(1)

    async def _greet(self, certificate: Certificate, greeting: list[bytes]) -> None:
        async def messages() -> AsyncIterator[pb.NodeMessage]:
            for raw in greeting:
                yield parse(pb.NodeMessage, raw)
            await self.round_announced(1)

        async for _ in self.coordinator.hub.session(certificate, messages()):
            pass

    async def round_announced(self, number: int) -> None:
        """Wait until a round collects."""
        while self._number < number:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    @property
    def attempt(self) -> AttemptRunner | None:
        """The one that is open."""
        return next(iter(self.runner._attempts), None)

    @property
    def _number(self) -> int:
        return 0 if self.attempt is None else self.attempt.plan.number

    async def next_round(self, number: int) -> None:
        """Let round `number` end, with whatever the fuzzer got into it."""
        for peer in self.held:
            peer.sit_out()
        await self.gate.open(number)

    async def finish(self) -> None:
        """Run the rest of the study with the honest sites alone."""
        await self.gate.open(self.study.study.rounds + 1)
        while self.runner.outcome == "running":
            for peer in self.held:
                peer.sit_out()
            await asyncio.sleep(0.02)
        for peer in self.held:
            peer.hang_up()
        await self.coordinator.hub.drain(5.0)

    async def close(self) -> None:
        """Stop everything."""
        await self.coordinator.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *(peer.task for peer in self.held), return_exceptions=True)

    # --- what a good peer would send --------------------------------------------------------------------------

    def upload(self, peer: Held) -> list[pb.UploadPart]:
        """The answer that would be taken from this peer now. Not to be changed: it is made once a round."""
        key = (peer.certificate.name, self._number)
        if key not in self._uploads:
            self._uploads[key] = self._upload(peer)
        return self._uploads[key]

    def _upload(self, peer: Held) -> list[pb.UploadPart]:
        number, tried, names, size = 1, 1, ["a"], 4
        if (attempt := self.attempt) is not None:
            number, tried = attempt.key
            names, size = list(attempt._context.layout.names), 2 * attempt._context.layout.size
        bulk = bytes(size)
        body = PlainUpload(blocks=names, weight=64).SerializeToString()
        header = pb.UploadHeader(
            study_id=self.study_id,
            round=number,
            attempt=tried,
            phase="upload",
            payload=pb.Payload(protection="none", phase="upload", version=1, body=body),
            bulk=reference(bulk),
        )
        sign_upload_header(header, peer.key)
        half = size // 2
        first = pb.Chunk(study_id=self.study_id, offset=0, data=bulk[:half])
        second = pb.Chunk(study_id=self.study_id, offset=half, data=bulk[half:])
        return [pb.UploadPart(header=header), pb.UploadPart(chunk=first), pb.UploadPart(chunk=second)]

    def node_messages(self) -> list[pb.NodeMessage]:
        """Everything a node says in a session."""
        number = max(1, self._number)
        mine = self.study_id
        return [
            pb.NodeMessage(hello=pb.Hello(versions=our_versions(), software="secure-fl")),
            pb.NodeMessage(heartbeat=pb.Heartbeat(sequence=7)),
            pb.NodeMessage(study_id=mine, study_answer=pb.StudyAnswer(accepted=True)),
            pb.NodeMessage(study_id=mine, study_answer=pb.StudyAnswer(refusal="Refused")),
            pb.NodeMessage(study_id=mine, sit_out=pb.SitOut(round=number, attempt=1, reason="Refused")),
        ]

    def download(self) -> pb.DownloadRequest:
        """The current model."""
        return pb.DownloadRequest(study_id=self.study_id, sha256=self.runner._model.current.object)

    def operations(self) -> list[Message]:
        """Everything an operator asks."""
        return [
            self.submission[0],
            ops.StatusRequest(study_id=self.study_id),
            ops.StatusRequest(),
            ops.StopRequest(study_id=self._other_id),
            ops.ExportRequest(study_id=self.study_id),
        ]


class Fuzzer:
    """Sends hostile streams and counts what was read of them."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._structured = Structured(rng)
        corpus = [message.SerializeToString() for message in (*world.node_messages(), *world.operations())]
        corpus += [part.SerializeToString() for part in world.upload(world.held[0])]
        self._octets = Octets(rng, [*corpus, world.download().SerializeToString()])
        self.read = 0
        self.outcomes: dict[str, int] = {}

    async def tick(self) -> None:
        """A few calls at once, by different peers."""
        # Whoever has been accepted in this round gets no further than that; there are others.
        fresh = [peer for peer in self._world.held if not peer.answered] or list(self._world.held)
        await asyncio.gather(
            *(self._guarded("upload", self._upload(peer)) for peer in fresh[:2]),
            *(self._guarded("session", self._session(peer)) for peer in self._world.talking),
            self._guarded("session", self._session(self._world.stranger)),
            self._guarded("download", self._download()),
            self._guarded("operations", self._operation()),
        )

    async def _guarded(self, call: str, work: Awaitable[str]) -> None:
        try:
            outcome = await work
        except SecureFLError as error:
            outcome = error.code
        except asyncio.CancelledError:
            outcome = "cancelled"
        except Exception as error:
            raise CrashError(f"{call}: {type(error).__name__}: {error}") from error
        key = f"{call}: {outcome}"
        self.outcomes[key] = self.outcomes.get(key, 0) + 1

    # --- calls ------------------------------------------------------------------------------------------------

    async def _session(self, peer: Certificate) -> str:
        good = self._world.node_messages()
        raws = [] if self._rng.random() < 0.1 else [good[0].SerializeToString(), good[2].SerializeToString()]
        raws += [self._spoilt(self._rng.choice(good)) for _ in range(self._rng.randrange(1, 8))]
        async for _ in self._world.coordinator.hub.session(peer, self._decoded(pb.NodeMessage, raws)):
            pass
        return "ended"

    async def _upload(self, peer: Held) -> str:
        parts = self._world.upload(peer)
        raws = [part.SerializeToString() for part in parts]
        spoil = self._rng.randrange(4)
        if spoil == 3:
            raws[0] = self._spoilt(parts[0])
        elif spoil and self._rng.random() < 0.997:
            raws[spoil] = self._spoilt(parts[spoil])
        elif not spoil:
            changed = self._structured.mutate(parts[0])
            if changed.WhichOneof("body") == "header":
                sign_upload_header(changed.header, peer.key)  # Signed by its sender, and hostile all the same.
            raws[0] = changed.SerializeToString()
        hub = self._world.coordinator.hub
        call = asyncio.ensure_future(hub.upload(peer.certificate, self._decoded(pb.UploadPart, raws)))
        if self._rng.random() < 0.02:
            await asyncio.sleep(0)
            call.cancel()  # What a broken connection looks like from here.
        receipt = await call
        peer.answered = True
        return "duplicate" if receipt.duplicate else "accepted"

    async def _download(self) -> str:
        raw = self._spoilt(self._world.download())
        peer = self._rng.choice((*self._world.talking, self._world.stranger))
        async for request in self._decoded(pb.DownloadRequest, [raw]):
            async for _ in self._world.coordinator.hub.download(peer, request):
                pass
        return "ended"

    async def _operation(self) -> str:
        # A study that is taken up costs a model and a transaction, and is remembered: submit seldom, and not for ever.
        good = self._world.operations()
        if self._rng.random() < 0.03 and len(self._world.coordinator.runners) < MOST_STUDIES:
            return await self._submit()
        message = self._rng.choice(good[1:])
        async for request in self._decoded(type(message), [self._spoilt(message)]):
            await self._operate(request)
        return "ended"

    async def _operate(self, request: Message) -> None:
        operations, operator = self._world._operations, self._world.operator
        handler: Callable[..., Any] = getattr(operations, type(request).__name__.removesuffix("Request"))
        if isinstance(request, ops.StopRequest) and request.study_id == self._world.study_id:
            return  # A valid order to end the study that has to be finished.
        if isinstance(request, ops.ExportRequest):
            async for _ in handler(request, operator):
                pass
            return
        await handler(request, operator)

    async def _submit(self) -> str:
        """A submission of which one part is spoilt: the study, what its model looks like, or a chunk."""
        operations, operator = self._world._operations, self._world.operator
        parts = self._world.submission
        raws = [part.SerializeToString() for part in parts]
        place = self._rng.randrange(len(parts))
        raws[place] = self._spoilt(parts[place])
        async for reply in operations.Submit(self._decoded(ops.SubmitPart, raws), operator):
            if reply.HasField("status"):
                await operations.Stop(ops.StopRequest(study_id=reply.status.study_id), operator)
        return "ended"

    # --- bytes ------------------------------------------------------------------------------------------------

    def _spoilt(self, message: Message) -> bytes:
        if self._rng.random() < 0.6:
            return self._structured.mutate(message).SerializeToString()
        return self._octets.mutate(message.SerializeToString())

    async def _decoded(self, kind: type[P], raws: list[bytes]) -> AsyncIterator[P]:
        """What the server makes of the bytes on the wire, and the one place where messages are counted."""
        for raw in raws:
            self.read += 1
            yield parse(kind, raw)


async def fuzz_coordinator(world: World, rng: random.Random, messages: int, note: Callable[[], None]) -> Fuzzer:
    """Spread `messages` over the study's rounds; afterwards the honest sites finish it."""
    await world.start()
    fuzzer = Fuzzer(world, rng)
    rounds = world.study.study.rounds
    for number in range(1, rounds + 1):
        await world.round_announced(number)
        while fuzzer.read < messages * number / rounds:
            await fuzzer.tick()
        note()
        await world.next_round(number)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            await world.finish()
    return fuzzer
