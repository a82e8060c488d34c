"""A coordinator listening with real TLS on loopback, and the files of its sites."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import tomli_w

from coordinator.config import CoordinatorFile
from coordinator.server import start_server
from coordinator.service import Coordinator
from node.config import NodeFile
from node.link import GrpcConnector
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import utc_now
from secure_fl.operations.operator import OperatorFile
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.settings import read_toml
from secure_fl.simulation.workspace import Workspace, prepare
from secure_fl.study.settings import Study
from secure_fl.transport.wire import our_versions

Scenario = Callable[["Edge"], Awaitable[None]]


class Edge:
    """A listening coordinator and the files of its sites."""

    def __init__(self, workspace: Workspace, coordinator: Coordinator, port: int) -> None:
        self.workspace = workspace
        self.coordinator = coordinator
        self.port = port
        self.authority = Authority.open(workspace.folder / "pki")
        workspace.point_nodes_at(port)

    def node_file(self, site: str = "site-01", **changes: Any) -> NodeFile:
        """A site's file, with keys of [node] changed."""
        path = self.workspace.node_file(site)
        table = read_toml(path)
        table["node"].update(changes)
        path.write_bytes(tomli_w.dumps(table).encode())
        return NodeFile.read(path)

    def operator(self, name: str = "lead", *, renew: bool = False) -> OperatorFile:
        """The file of an operator with a certificate of its own; renewed, with a new one under the same name."""
        folder = self.workspace.folder / f"operator-{name}-{utc_now().timestamp()}"
        certificate, _, _ = self.authority.issue("operator", name, renew=renew).save(folder)
        section = {
            "coordinator": f"127.0.0.1:{self.port}",
            "fingerprint": self.node_file().node.fingerprint,
            "certificate": certificate.name,
            "ca": "../ca.pem",
            "crl": "../pki/crl.pem",
        }
        path = folder / "operator.toml"
        path.write_bytes(tomli_w.dumps({"operator": section}).encode())
        return OperatorFile.read(path)

    def enrol(self, authority: Authority, role: str, name: str, **options: Any) -> NodeFile:
        """A file that uses another credential than the roster's."""
        folder = self.workspace.folder / f"other-{role}-{name}-{utc_now().timestamp()}"
        credential = authority.issue(role, name, **options)
        certificate, _, _ = credential.save(folder)
        return self.node_file(certificate=str(certificate), name=name)


def at_the_edge(folder: Path, scenario: Scenario, **limits: Any) -> None:
    """Run a scenario against a real server."""

    async def run() -> None:
        table: dict[str, Any] = {
            "study": {"rounds": 1},
            "simulation": {"nodes": 3},
            "rounds": {"gather": 60},
            "protection": {"kind": "none", "recovery": True},
        }
        workspace = prepare(folder / "run", Study.parse(table), policy={})
        table = read_toml(workspace.coordinator_file)
        workspace.coordinator_file.write_bytes(tomli_w.dumps({**table, "limits": limits}).encode())
        file = CoordinatorFile.read(workspace.coordinator_file)
        coordinator = Coordinator(file.state_folder, heartbeat=0.2)
        coordinator.prepare(workspace.study)
        server, port = await start_server(coordinator, file)
        try:
            await asyncio.wait_for(scenario(Edge(workspace, coordinator, port)), 30)
        finally:
            await coordinator.close()
            await server.stop(grace=0)

    asyncio.run(run())


async def hello(seconds: float = 60.0) -> AsyncIterator[pb.NodeMessage]:
    """Say hello, then keep the stream open."""
    yield pb.NodeMessage(hello=pb.Hello(versions=our_versions(), software="test"))
    for sequence in range(int(seconds / 0.1)):
        yield pb.NodeMessage(heartbeat=pb.Heartbeat(sequence=sequence))
        await asyncio.sleep(0.1)


async def first_messages(file: NodeFile, count: int = 2) -> list[pb.CoordinatorMessage]:
    """Connect and read."""
    link = await GrpcConnector(file).connect()
    received: list[pb.CoordinatorMessage] = []
    try:
        async for message in link.session(hello()):
            received.append(message)
            if len(received) == count:
                break
    finally:
        await link.close()
    return received
