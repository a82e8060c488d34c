"""At the desk: a budget counts what is approved and not finished, and a limit counts once the node has read it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from node import desk
from node.config import NodeFile
from node.service import Node
from node.store import NodeStore
from secure_fl.files import is_held, only_process
from secure_fl.settings import read_toml
from secure_fl.simulation.workspace import prepare
from secure_fl.study.settings import Study
from tests.support.training import FakeTraining

PRIVACY = {"mode": "dp-sgd", "epsilon": 3.0, "delta": 1e-5}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A node's file with a limit that is enough for one study, and not for two."""
    study = Study.parse({"simulation": {"nodes": 3}, "privacy": PRIVACY, "metrics": {"share": "none"}})
    made = prepare(tmp_path / "run", study, policy={"epsilon": 3.5, "delta": 1e-5, "approve": "ask", "approved": []})
    made.point_nodes_at(1)
    for name, seed in (("first", 1), ("second", 2)):
        table = made.study.to_table()
        table["study"] |= {"name": name, "seed": seed}
        del table["study"]["initial"]
        (tmp_path / f"{name}.toml").write_bytes(tomli_w.dumps(table).encode())
    return made.node_file("site-01")


def approve(site: Path, study: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert desk.main(["approve", str(site), str(study)]) == 0
    return capsys.readouterr().out


def change(site: Path, **policy: Any) -> NodeFile:
    table = read_toml(site)
    table["policy"].update(policy)
    site.write_bytes(tomli_w.dumps(table).encode())
    return NodeFile.read(site)


def test_a_study_that_is_approved_and_not_finished_counts_at_the_next_approval(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = approve(site, tmp_path / "first.toml", capsys)
    assert "also approved" not in said
    said = approve(site, tmp_path / "second.toml", capsys)
    assert "also approved here and not finished: 'first' (10 rounds left); with all of them 1" in said
    assert "WARNING: that is more than there is" in said
    # Approved once more, the first is not counted beside itself.
    assert "'first'" not in approve(site, tmp_path / "first.toml", capsys).partition("also approved")[2]
    change(site, epsilon=9.0)
    said = approve(site, tmp_path / "second.toml", capsys)
    assert "also approved here" in said
    assert "WARNING: that is more than there is" not in said


def test_a_study_whose_last_round_has_come_counts_no_more(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Study.read(tmp_path / "first.toml").completed()
    approve(site, tmp_path / "first.toml", capsys)
    file = NodeFile.read(site)
    Node(file, None, FakeTraining())  # type: ignore[arg-type]  # makes the ledger, without which nothing can have begun
    cursor = NodeStore(file.state_folder).study(study.id).folder / "cursor.json"
    for number, counts in ((study.study.rounds, True), (study.study.rounds + 1, False)):
        cursor.write_text(json.dumps([number, 1, "spent"]))
        assert ("also approved" in approve(site, tmp_path / "second.toml", capsys)) == counts


def test_a_limit_that_was_changed_under_a_running_node_is_said_to_need_a_restart(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = NodeFile.read(site)

    class Unreachable:
        async def connect(self) -> Any:
            await asyncio.Event().wait()

    async def start() -> None:
        task = asyncio.create_task(Node(file, Unreachable(), FakeTraining()).run())
        async with asyncio.timeout(10):
            while not (file.state_folder / "limit.json").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def told() -> str:
        assert desk.main(["status", str(site)]) == 0
        return capsys.readouterr().out

    with only_process(file.state_folder):
        asyncio.run(start())
        assert is_held(file.state_folder)
        assert "WARNING" not in told()
        changed = change(site, epsilon=6.0)
        assert "the running node still keeps epsilon 3.5 (delta 1e-05), and its file now says epsilon 6" in told()
        assert "restart the node" in desk.status(changed, NodeStore(changed.state_folder))["restart_needed"]
        assert "but the running node still keeps epsilon 3.5" in approve(site, tmp_path / "first.toml", capsys)
    assert not is_held(file.state_folder)
    assert "WARNING" not in told()  # Nothing runs: the next start reads the file.
