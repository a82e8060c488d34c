"""A coordinator that is revoked while a node is connected to it: the node hangs up and sends nothing more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from coordinator.sessions import Hub
from node.link import GrpcConnector, GrpcLink
from node.service import Node
from node.standing import Standing
from node.training.jobs import Job, Result
from secure_fl.errors import CertificateError
from secure_fl.identity.certificates import Certificate
from secure_fl.rpc import federation_pb2 as pb
from tests.support.edge import Edge, at_the_edge
from tests.support.training import FakeTraining


class Held(FakeTraining):
    """Trains once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.leave = asyncio.Event(), asyncio.Event()

    async def run(self, job: Job) -> Result:
        self.entered.set()
        await self.leave.wait()
        return await super().run(job)


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whose uploads reached the coordinator."""
    seen: list[str] = []
    upload = Hub.upload

    async def noting(self: Hub, peer: Certificate, parts: AsyncIterator[pb.UploadPart]) -> pb.UploadReceipt:
        seen.append(peer.name)
        return await upload(self, peer, parts)

    monkeypatch.setattr(Hub, "upload", noting)
    return seen


def revoked_while_training(folder: Path, then: Callable[[list[Held]], None]) -> list[Any]:
    """Three sites train, the coordinator is revoked, `then` happens; how the nodes ended, None for those that serve."""
    outcomes: list[Any] = []

    async def scenario(edge: Edge) -> None:
        trainers = [Held() for _ in edge.workspace.study.study.roster]
        files = [edge.node_file(name) for name in edge.workspace.study.study.roster]
        nodes = [
            asyncio.create_task(Node(file, GrpcConnector(file), trainer, until_done=True).run())
            for file, trainer in zip(files, trainers, strict=True)
        ]
        edge.coordinator.start(edge.coordinator.runners[edge.workspace.study.id])
        await asyncio.gather(*(trainer.entered.wait() for trainer in trainers))
        edge.authority.revoke("coordinator")
        then(trainers)
        await asyncio.wait(nodes, timeout=10)
        outcomes.extend(node.exception() if node.done() and not node.cancelled() else None for node in nodes)
        for node in nodes:
            node.cancel()
        await asyncio.gather(*nodes, return_exceptions=True)

    at_the_edge(folder, scenario)
    return outcomes


def go_on(trainers: list[Held]) -> None:
    """Training ends in the same moment: no heartbeat comes between it and the upload."""
    for trainer in trainers:
        trainer.leave.set()


def test_nothing_is_uploaded_to_a_coordinator_that_was_revoked_meanwhile(
    tmp_path: Path, uploads: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="node.standing"):
        ended = revoked_while_training(tmp_path, go_on)
    assert uploads == []
    assert [type(outcome) for outcome in ended] == [CertificateError] * 3
    assert all("revoked by the consortium" in str(outcome) for outcome in ended)
    why = "coordinator 'coordinator': revoked by the consortium"
    said = f"hanging up on the coordinator, and sending it nothing more: {why}"
    assert [record.message for record in caplog.records] == [said] * 3


def test_without_the_check_the_updates_are_uploaded(
    tmp_path: Path, uploads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The attack that the check is for, with everything else as it is.
    monkeypatch.setattr(Standing, "require", lambda _: None)
    revoked_while_training(tmp_path, go_on)
    assert {"site-01", "site-02", "site-03"} <= set(uploads)


def test_a_node_that_has_nothing_to_say_leaves_too(tmp_path: Path, uploads: list[str]) -> None:
    ended = revoked_while_training(tmp_path, lambda _: None)
    assert [type(outcome) for outcome in ended] == [CertificateError] * 3
    assert uploads == []


class Fickle:
    """A trust store that vouches so many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def check(self, _: Certificate, *, role: str, now: datetime) -> None:
        assert (role, now is not None) == ("coordinator", True)
        self.times -= 1
        if self.times < 0:
            raise CertificateError("revoked")


def test_an_upload_under_way_breaks_off_between_two_parts(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        link = await GrpcConnector(edge.node_file()).connect()
        assert isinstance(link, GrpcLink)
        link._standing = Standing(edge.node_file().credential().certificate, Fickle(3))  # type: ignore[arg-type]
        taken: list[int] = []

        async def parts() -> AsyncIterator[pb.UploadPart]:
            for number in range(5):
                taken.append(number)
                yield pb.UploadPart(header=pb.UploadHeader(study_id=edge.workspace.study.id))

        with pytest.raises(CertificateError):
            await link.upload(parts(), timeout=10)
        assert taken == [0, 1, 2]  # one look before the call, two parts that left, and one that did not
        with pytest.raises(CertificateError, match="lost this node's trust"):
            await link.uploaded(pb.UploadQuery(), timeout=10)
        await link.close()

    at_the_edge(tmp_path, scenario)
