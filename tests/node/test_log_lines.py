"""What a node's log says of a coordinator that repeats itself, and of one that turns the node away."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from node.config import NodeFile
from node.link import GrpcConnector
from node.service import Node
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.simulation.workspace import prepare
from secure_fl.study.settings import Study
from tests.support.edge import Edge, at_the_edge
from tests.support.training import FakeTraining


def test_what_a_coordinator_says_again_after_each_reconnect_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = prepare(tmp_path / "run", Study.parse({"simulation": {"nodes": 3}}), policy={"approved": []})
    made.point_nodes_at(1)
    node = Node(NodeFile.read(made.node_file("site-01")), None, FakeTraining())  # type: ignore[arg-type]
    offer = pb.CoordinatorMessage(study_id=made.study.id, study_offer=pb.StudyOffer(settings=made.study.canonical()))
    closed = [
        pb.CoordinatorMessage(study_id=study, study_closed=pb.StudyClosed(finished=finished, reason=reason))
        for study, finished, reason in (("aa" * 32, True, ""), ("bb" * 32, False, "StudyStopped"))
    ]

    async def connected_anew() -> None:
        for _ in range(3):
            for message in (offer, *closed, offer):
                await node._handle(message)
        await node._handle(pb.CoordinatorMessage(study_id=made.study.id, study_closed=pb.StudyClosed(finished=True)))

    with caplog.at_level(logging.INFO, logger="node.service"):
        asyncio.run(connected_anew())
    first, *others = [record.getMessage() for record in caplog.records]
    assert first.startswith(f"refusing study {made.study.id[:12]}: study {made.study.id} is not approved here → ")
    assert others == [
        f"study {'aa' * 6} is finished",
        f"study {'bb' * 6} is aborted (StudyStopped)",
        f"study {made.study.id[:12]} is finished",
    ]


def test_a_revoked_node_is_told_what_to_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(edge: Edge) -> None:
        # This site has not got the newer list yet.
        shutil.copy(edge.workspace.folder / "pki" / "crl.pem", edge.workspace.node_folder("site-01") / "old.pem")
        edge.authority.revoke("site-01")
        file = edge.node_file(crl="old.pem")
        running = asyncio.create_task(Node(file, GrpcConnector(file), FakeTraining()).run())
        while not caplog.records:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with caplog.at_level(logging.WARNING, logger="node.session"):
        at_the_edge(tmp_path, scenario)
    line = caplog.records[0].getMessage()
    assert line.startswith("the coordinator answered: Certificate; next try in about ")
    assert "→ this certificate was revoked, has expired or is of another role; ask the authority" in line
