"""A coordinator that has real nodes go through one attempt of `masked` twice, to subtract the two sums."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.machine import RoundMachine
from node.config import NodeFile
from node.service import Node
from secure_fl.blocks import BlockShape, Layout, TensorShape
from secure_fl.protect.contract import Message, OpenedSums
from secure_fl.protect.recovery.protection import MaskedWithRecovery as Masked
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.context import round_context
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.transport.local import LocalLink
from secure_fl.transport.wire import layout_to_wire, reference
from tests.protect.cohorts import InMemory
from tests.support.federation import Federation
from tests.support.training import FakeTraining

LAYOUT = Layout((BlockShape(name="features", tensors=(TensorShape(name="w", shape=(3,)),)),))
WEIGHTS = bytes(12)
DIGEST = LAYOUT.digest(LAYOUT.unflatten(WEIGHTS))


class Rerunning:
    """Runs an honest machine as often as it likes, and drops whom it likes."""

    def __init__(self, fed: Federation) -> None:
        self.fed = fed
        self.outboxes: dict[str, asyncio.Queue[pb.CoordinatorMessage]] = {name: asyncio.Queue() for name in fed.names}
        self.ready: asyncio.Queue[str] = asyncio.Queue()
        self.heard: asyncio.Queue[tuple[str, pb.UploadHeader | pb.SitOut, bytes]] = asyncio.Queue()

    async def session(self, peer: Any, incoming: AsyncIterator[pb.NodeMessage]) -> AsyncIterator[pb.CoordinatorMessage]:
        reader = asyncio.create_task(self._read(peer.name, incoming))
        yield pb.CoordinatorMessage(welcome=pb.Welcome(version=1, heartbeat_ms=60_000))
        try:
            while True:
                yield await self.outboxes[peer.name].get()
        finally:
            reader.cancel()

    async def _read(self, name: str, incoming: AsyncIterator[pb.NodeMessage]) -> None:
        async for message in incoming:
            if message.WhichOneof("body") == "study_answer":
                assert message.study_answer.accepted
                self.ready.put_nowait(name)
            elif message.WhichOneof("body") == "sit_out":
                self.heard.put_nowait((name, message.sit_out, b""))

    async def upload(self, peer: Any, parts: AsyncIterator[pb.UploadPart]) -> pb.UploadReceipt:
        collected = [part async for part in parts]
        header = collected[0].header
        self.heard.put_nowait((peer.name, header, b"".join(part.chunk.data for part in collected[1:])))
        return pb.UploadReceipt(study_id=self.fed.study.id, upload_id=header.upload_id)

    async def download(self, _peer: Any, request: pb.DownloadRequest) -> AsyncIterator[pb.Chunk]:
        yield pb.Chunk(study_id=request.study_id, offset=0, data=WEIGHTS)

    async def offer(self) -> None:
        """Close the study, whether or not it runs, and offer it as if for the first time."""
        for outbox in self.outboxes.values():
            closed = pb.StudyClosed(finished=False, reason="")
            outbox.put_nowait(pb.CoordinatorMessage(study_id=self.fed.study.id, study_closed=closed))
            offer = pb.StudyOffer(settings=self.fed.study.canonical())
            outbox.put_nowait(pb.CoordinatorMessage(study_id=self.fed.study.id, study_offer=offer))
        for _ in self.outboxes:
            await asyncio.wait_for(self.ready.get(), 5)

    async def attempt(self, *, last: str = "unmask", silent: str = "") -> OpenedSums | set[str]:
        """Play round 1, attempt 1 up to and including phase `last`; what was opened, or why nodes sat out."""
        context = round_context(
            ResolvedStudy.of(self.fed.study), number=1, attempt=1, kind=RoundKind.TRAIN, base_model=DIGEST,
            invited=self.fed.names, shared=LAYOUT,
        )  # fmt: skip
        machine = RoundMachine(Masked(), context)
        machine.begin()
        while True:
            now = machine.phase
            if now == "upload" and silent:
                machine.leave(silent, "NotConnected")
            for name in machine.waiting:
                self._announce(name, now, machine.asked[name])
            reasons: set[str] = set()
            while machine.waiting:
                name, said, bulk = await asyncio.wait_for(self.heard.get(), 10)
                if isinstance(said, pb.SitOut):
                    machine.leave(name, said.reason)
                    reasons.add(said.reason)
                    continue
                machine.accept(name, said.phase, Message(body=said.payload.body), InMemory(bulk))
            if reasons or now == last:
                opened = None if reasons else machine.close()
                return opened if isinstance(opened, OpenedSums) else reasons
            machine.close()

    def _announce(self, name: str, phase: str, message: Message) -> None:
        model = pb.ModelRef(digest=DIGEST, blocks=layout_to_wire(LAYOUT), object=reference(WEIGHTS))
        body = pb.PhaseAnnouncement(
            round=1, attempt=1, kind=pb.ROUND_KIND_TRAIN, phase=phase, deadline_ms=20_000, model=model,
            invited=self.fed.names, payload=pb.Payload(protection="masked", phase=phase, version=1, body=message.body),
        )  # fmt: skip
        self.outboxes[name].put_nowait(pb.CoordinatorMessage(study_id=self.fed.study.id, announcement=body))


class _Fixed:
    def __init__(self, service: Any, file: NodeFile) -> None:
        self._service, self._peer = service, file.credential().certificate

    async def connect(self) -> LocalLink:
        return LocalLink(self._service, self._peer)


class _Site:
    """A node that can be restarted from its disk."""

    def __init__(self, evil: Rerunning, name: str) -> None:
        self._evil, self._name = evil, name
        self.start()

    def start(self) -> None:
        # Without the simulation's randomness: a deployed node draws other keys and seeds every time.
        file = NodeFile.read(self._evil.fed.workspace.node_file(self._name))
        file = file.model_copy(update={"simulation": None})
        self._task = asyncio.create_task(Node(file, _Fixed(self._evil, file), FakeTraining()).run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def against_nodes(folder: Path, scenario: Any) -> None:
    """Four real nodes, one coordinator that reruns."""

    async def run() -> None:
        study = {"rounds": 2, "initial": DIGEST.hex()}
        fed = Federation(
            folder / "run", {"study": study, "protection": {"kind": "masked"}, "metrics": {"share": "none"}}
        )
        evil = Rerunning(fed)
        sites = [_Site(evil, name) for name in fed.names]
        try:
            await evil.offer()
            await asyncio.wait_for(scenario(evil, sites), 60)
        finally:
            for site in sites:
                await site.stop()

    asyncio.run(run())


async def _offered_again(evil: Rerunning, _sites: list[_Site]) -> None:
    await evil.offer()


async def _restarted(evil: Rerunning, sites: list[_Site]) -> None:
    for site in sites:
        await site.stop()
        site.start()
    await evil.offer()


def _check_rerun(tmp_path: Path, again: Any) -> None:
    async def scenario(evil: Rerunning, sites: list[_Site]) -> None:
        everybody = await evil.attempt()
        assert isinstance(everybody, OpenedSums)
        await again(evil, sites)
        others = await evil.attempt(silent=evil.fed.names[-1])
        if isinstance(others, OpenedSums):
            # The very update of one site, but for the rounding of seven values.
            step = 1 / evil.fed.study.codec().scale
            alone = (everybody.blocks["features"].total - others.blocks["features"].total) * step
            raise AssertionError(f"the update of {evil.fed.names[-1]} is {np.round(alone, 3)}")
        assert others == {"Refused"}

    against_nodes(tmp_path, scenario)


def test_an_attempt_is_not_gone_through_twice_because_the_study_is_offered_again(tmp_path: Path) -> None:
    _check_rerun(tmp_path, _offered_again)


def test_an_attempt_is_not_gone_through_twice_because_the_nodes_restarted(tmp_path: Path) -> None:
    _check_rerun(tmp_path, _restarted)


def test_a_node_that_has_only_advertised_may_begin_again(tmp_path: Path) -> None:
    async def scenario(evil: Rerunning, sites: list[_Site]) -> None:
        assert await evil.attempt(last="advertise") == set()
        await _restarted(evil, sites)
        assert isinstance(await evil.attempt(), OpenedSums)

    against_nodes(tmp_path, scenario)
