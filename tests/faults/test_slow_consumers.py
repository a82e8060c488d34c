"""A node that does not read: it loses its session, nothing grows for it, and the others' rounds go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from coordinator.sessions import Hub
from node.config import NodeFile
from secure_fl.limits import SESSION_QUEUE
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.wire import our_versions
from tests.support.federation import Federation

SETTINGS = {
    "task": {"name": "tests.support.task:Line"},
    "rounds": {"deadline": 1.0, "phase_deadline": 1.0, "gather": 1},
}


class DeafNode:
    """Says hello, accepts the study, then only talks: it never reads another word."""

    def __init__(self, fed: Federation, name: str) -> None:
        self._study = fed.study.id
        self._certificate = NodeFile.read(fed.workspace.node_file(name)).credential().certificate
        self.beats = 0
        self.fingerprint = self._certificate.fingerprint

    async def run(self, hub: Hub, *, pause: float) -> None:
        """Until cancelled."""
        stream = aiter(hub.session(self._certificate, self._talk(pause)))
        assert (await anext(stream)).WhichOneof("body") == "welcome"
        assert (await anext(stream)).WhichOneof("body") == "study_offer"
        await asyncio.Event().wait()

    async def _talk(self, pause: float) -> AsyncIterator[pb.NodeMessage]:
        yield pb.NodeMessage(hello=pb.Hello(versions=our_versions()))
        yield pb.NodeMessage(study_id=self._study, study_answer=pb.StudyAnswer(accepted=True))
        while True:
            yield pb.NodeMessage(heartbeat=pb.Heartbeat(sequence=self.beats))
            self.beats += 1
            await asyncio.sleep(pause)


def test_a_node_that_reads_nothing_loses_its_session_and_only_that(tmp_path: Path) -> None:
    async def run() -> None:
        fed = Federation(tmp_path / "run", SETTINGS)
        study = asyncio.create_task(fed.coordinate(heartbeat=5.0))
        while fed.services[0] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        hub = fed.services[0]
        assert isinstance(hub, Hub)
        deaf = DeafNode(fed, fed.names[0])
        listening = asyncio.create_task(deaf.run(hub, pause=0.01))
        while fed.names[0] not in hub.ready(fed.study.id):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        queue = hub._sessions[deaf.fingerprint].outgoing
        for name in fed.names[1:]:
            fed.start_node(name)
        longest = 0
        while not study.done():
            longest = max(longest, queue.qsize())
            await asyncio.sleep(0.005)
        record = await study
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await fed.close()
        assert record is not None
        assert [round_.cohort for round_ in record.rounds] == [fed.names[1:]] * 3
        assert deaf.beats > SESSION_QUEUE
        assert longest <= SESSION_QUEUE
        # It was waited for once. Whoever does not read is not connected, and not invited again.
        outcomes = [next(n.outcome for n in round_.nodes if n.name == fed.names[0]) for round_ in record.rounds]
        assert outcomes == ["dropped", "absent", "absent"]

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_session_that_has_ended_takes_no_more_messages(tmp_path: Path) -> None:
    async def run() -> None:
        fed = Federation(tmp_path / "run", SETTINGS)
        study = asyncio.create_task(fed.coordinate(heartbeat=5.0))
        while fed.services[0] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        hub = fed.services[0]
        assert isinstance(hub, Hub)
        deaf = DeafNode(fed, fed.names[0])
        listening = asyncio.create_task(deaf.run(hub, pause=0.0))
        while deaf.beats < 5 * SESSION_QUEUE:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert fed.names[0] not in hub.ready(fed.study.id)
        rows = {row["name"]: row for row in hub.sites(hub._runners[fed.study.id])}
        assert not rows[fed.names[0]]["connected"]
        for task in (listening, study):
            task.cancel()
        await asyncio.gather(listening, study, return_exceptions=True)
        await fed.close()

    asyncio.run(asyncio.wait_for(run(), 30))
