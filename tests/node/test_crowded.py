"""Two nodes with one certificate: each is told so, and they do not chase each other from the coordinator for ever."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import node.session
from coordinator.sessions import Hub
from node.config import NodeFile
from node.link import GrpcConnector
from node.service import Node
from secure_fl.errors import DuplicateSessionError
from secure_fl.transport.base import Connector
from secure_fl.transport.local import LocalConnector
from tests.support.edge import Edge, at_the_edge, hello
from tests.support.training import FakeTraining


def in_this_process(file: NodeFile, edge: Edge) -> Connector:
    connector = LocalConnector(file.credential().certificate)
    connector.service = edge.coordinator.hub
    return connector


def over_tls(file: NodeFile, _edge: Edge) -> Connector:
    return GrpcConnector(file)


def sessions_of_two(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    seconds: float,
    until: Callable[[], bool] = lambda: False,
    connect: Callable[[NodeFile, Edge], Connector] = in_this_process,
) -> int:
    """How often two nodes with one certificate are welcomed in a while, or until enough has happened."""
    welcomed = 0

    async def scenario(edge: Edge) -> None:
        nonlocal welcomed
        greet = Hub._welcome

        def counting(self: Hub, version: int) -> object:
            nonlocal welcomed
            welcomed += 1
            return greet(self, version)

        monkeypatch.setattr(Hub, "_welcome", counting)
        file = edge.node_file()
        tasks = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            copy = file.model_copy(update={"state": file.state.model_copy(update={"folder": str(folder / name)})})
            copy._folder = file._folder
            tasks.append(asyncio.create_task(Node(copy, connect(copy, edge), FakeTraining()).run()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not until():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    at_the_edge(folder, scenario)
    return welcomed


def test_they_are_told_and_leave_each_other_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="node.session"):
        assert sessions_of_two(tmp_path, monkeypatch, seconds=3.0) == 2
    (said,) = [record.message for record in caplog.records if "certificate" in record.message]
    assert said.startswith("another process connected with this site's certificate → stop the other node; ")
    assert said.endswith("next try in about 10.0 s")


def test_over_tls_both_are_told_and_wait_longer_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def pauses() -> list[str]:
        said = [record.message for record in caplog.records if record.name == "node.session"]
        told = [line for line in said if line.startswith("another process connected with this site's certificate")]
        return [line.rpartition("next try in about ")[2] for line in told]

    def both_twice() -> bool:
        return pauses().count("1.0 s") == 2

    monkeypatch.setattr(node.session, "_CROWDED_SECONDS", 0.5)
    with caplog.at_level(logging.WARNING, logger="node.session"):
        sessions_of_two(tmp_path, monkeypatch, seconds=20, until=both_twice, connect=over_tls)
    # A pause doubles each time its own node is told: no node has the same one twice.
    assert both_twice()
    assert pauses().count("0.5 s") == 2


def test_without_a_pause_of_its_own_they_would_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The usual pauses begin anew with every welcome.
    monkeypatch.setattr(node.session, "DuplicateSessionError", ())
    assert sessions_of_two(tmp_path, monkeypatch, seconds=3.0) > 6


def test_each_next_pause_is_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.session, "_CROWDED_SECONDS", 1.0)
    session = node.session.Session(None, handler=None, jitter=lambda: 1.0)  # type: ignore[arg-type]
    session._backoff.reset()
    assert [session._crowded.next() for _ in range(4)] == [1.0, 2.0, 4.0, 8.0]


def test_a_node_whose_line_broke_takes_the_place_that_is_still_its_own(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        hub, peer = edge.coordinator.hub, edge.node_file().credential().certificate
        # What a broken line leaves at the coordinator: a session that nobody reads, and that has not ended yet.
        stale = aiter(hub.session(peer, hello()))
        assert (await anext(stale)).WhichOneof("body") == "welcome"
        connector = LocalConnector(peer)
        connector.service = hub
        served = Node(edge.node_file(), connector, FakeTraining())
        task = asyncio.create_task(served.run())
        with pytest.raises(DuplicateSessionError):
            _ = [message async for message in stale]
        async with asyncio.timeout(10):
            while not served.connected:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert served.connected
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    at_the_edge(tmp_path, scenario)
