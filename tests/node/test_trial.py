"""`secure-fl node try`: a site sees what a study would do there, and nothing has happened afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import select
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest
import tomli_w

import node.trial
from node import trial
from node.config import NodeFile
from node.local import InlineExecutor
from node.store import NodeStore
from secure_fl import tasks
from secure_fl.privacy.ledger import SENT, read_ledger
from secure_fl.settings import read_toml
from secure_fl.study.given import continued
from secure_fl.tasks.model_blocks import initial_blocks
from secure_fl.tasks.state_dict import save_model
from tests.support.federation import Federation

NOISE = {"privacy": {"mode": "dp-sgd", "epsilon": 3.0, "delta": 1e-5}, "metrics": {"share": "none"}}


def federation(folder: Path, settings: dict[str, Any] | None = None) -> tuple[Federation, Path, Path]:
    """Three sites with data files of their own; the first one's file, and the study."""
    fed = Federation(
        folder / "run",
        {
            "study": {"rounds": 1},
            "task": {"name": "breast-cancer"},
            "protection": {"kind": "masked", "recovery": False},
            **(settings or {}),
        },
        nodes=3,
    )
    for place, name in enumerate(fed.names):
        path = fed.workspace.node_file(name)
        table = read_toml(path)
        del table["simulation"]
        table["datasets"] = {"breast-cancer": {"path": "data.npz", "units": 48}}
        path.write_bytes(tomli_w.dumps(table).encode())
        give(path, place)
    return fed, fed.workspace.node_file(fed.names[0]), fed.workspace.folder / "study.toml"


def give(path: Path, seed: int = 0, trouble: str = "") -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(60, 30)).astype(np.float32), rng.integers(0, 2, 60)
    if trouble == "NaN":
        x[3, 4] = np.nan
    np.savez(path.parent / "data.npz", x=x[:, :29] if trouble == "shape" else x, y=y)


def edit(path: Path, section: str, **changes: Any) -> None:
    table = read_toml(path)
    table[section].update(changes)
    path.write_bytes(tomli_w.dumps(table).encode())


def tried(file: Path, study: Path, *more: str) -> tuple[int, dict[str, Any]]:
    with contextlib.redirect_stdout(io.StringIO()) as told:
        code = trial.main([str(file), str(study), "--json", *more])
    found = json.loads(told.getvalue())
    assert found["ok"] == (code == 0)
    return code, found


def everything(folder: Path) -> dict[str, str]:
    """Every file below a folder, with its content."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Python can make no connection, and scratch files lie where one can look."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))

    def refuse(*_: Any) -> None:
        raise AssertionError("a rehearsal wanted to connect")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    return scratch


@pytest.fixture
def coordinator() -> Iterator[socket.socket]:
    """Where the node's coordinator would be. gRPC connects below Python's sockets: only who listens can tell."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def knocked(listening: socket.socket, *, within: float = 0) -> bool:
    """Whether anybody has connected, also if it has hung up since."""
    return bool(select.select([listening], [], [], within)[0])


def test_a_call_that_grpc_makes_would_be_noticed(nowhere: Path, coordinator: socket.socket) -> None:
    async def call() -> bool:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{coordinator.getsockname()[1]}") as channel:
            assert not knocked(coordinator)
            channel.get_state(try_to_connect=True)
            return await asyncio.to_thread(knocked, coordinator, within=10)

    assert asyncio.run(call())


@pytest.mark.parametrize("settings", [{}, NOISE], ids=["plain", "noise"])
def test_nothing_is_sent_charged_or_kept(
    tmp_path: Path, nowhere: Path, coordinator: socket.socket, settings: dict[str, Any]
) -> None:
    fed, file, study = federation(tmp_path, settings)
    edit(file, "node", coordinator=f"127.0.0.1:{coordinator.getsockname()[1]}")
    before = everything(fed.workspace.folder)
    code, found = tried(file, study)
    assert code == 0, found
    assert found["leaves"]["blocks"]
    assert not knocked(coordinator)
    assert everything(fed.workspace.folder) == before
    assert list(nowhere.glob("secure-fl-*")) == []
    assert [path for path in nowhere.rglob("*") if path.is_file()] == []  # torch itself makes an empty folder.


def test_a_node_that_has_run_keeps_its_ledger_and_secret_as_they_are(tmp_path: Path) -> None:
    """And what would leave, as told, is what then leaves."""
    fed, file, study = federation(tmp_path)
    told = tried(file, study)[1]["leaves"]

    async def run() -> None:
        for name in fed.names:
            fed.start_node(name, executor=InlineExecutor())
        record = await asyncio.wait_for(fed.coordinate(), 60)
        assert record is not None
        await fed.close()

    asyncio.run(run())
    sent = [entry for entry in read_ledger(file.parent / "ledger.jsonl") if entry.kind == SENT]
    first = sent[0].facts["release"]
    assert first["protection"] == told["protection"]
    # The ledger also counts the body of the message, with its signatures.
    assert told["upload_bytes"] <= first["bytes"] <= told["upload_bytes"] + 4096
    assert sum(block["parameters"] for block in told["blocks"]) == 530
    assert {block["name"]: block["tensors"] for block in told["blocks"]} == {
        "features": {"0.weight": [16, 30], "0.bias": [16]},
        "head": {"weight": [2, 16], "bias": [2]},
    }
    before = everything(file.parent)
    assert tried(file, study)[0] == 0
    assert everything(file.parent) == before


def test_what_stays_is_not_among_what_leaves(tmp_path: Path) -> None:
    _, file, study = federation(tmp_path, {"strategy": {"name": "fedper"}, "metrics": {"share": "per-node"}})
    _, found = tried(file, study)
    assert [block["name"] for block in found["leaves"]["blocks"]] == ["features"]
    assert found["leaves"]["stay"] == ["head"]
    assert 0 < found["leaves"]["metrics"]["samples"] < 60  # In the clear, and so it is shown.
    assert any("circle" in sentence for sentence in found["learned"])


def test_samples_and_metrics_are_shown_only_where_they_leave(tmp_path: Path) -> None:
    _, file, study = federation(tmp_path)
    assert set(tried(file, study)[1]["leaves"]["metrics"]) == {"accuracy", "loss", "global_accuracy"}
    assert tried(*federation(tmp_path / "noise", NOISE)[1:])[1]["leaves"]["metrics"] == {}


@pytest.mark.parametrize(
    ("trouble", "step", "says", "code"),
    [
        ("NaN", "training", "missing or infinite", 3),
        ("shape", "training", "29", 3),
        ("missing", "training", "no such file", 3),
        ("no data set", "policy", "there is no [datasets.breast-cancer]", 7),
        ("protection", "policy", "[policy] protections", 7),
        ("upload", "training", "[policy] upload_parameters", 7),
        ("foreign", "study", "[policy] tasks", 7),
    ],
)
def test_what_would_stop_a_site_is_found_with_its_exit_code(
    tmp_path: Path, trouble: str, step: str, says: str, code: int
) -> None:
    fed, file, study = federation(tmp_path)
    mark = tmp_path / "imported"
    match trouble:
        case "NaN" | "shape":
            give(file, trouble=trouble)
        case "missing":
            (file.parent / "data.npz").unlink()
        case "no data set":
            table = read_toml(file)
            table["datasets"] = {}
            file.write_bytes(tomli_w.dumps(table).encode())
        case "protection":
            edit(file, "policy", protections=["sealed"])
        case "upload":
            edit(file, "policy", upload_parameters=100)
        case "foreign":
            (tmp_path / "evil_task.py").write_text(f"open({str(mark)!r}, 'w')")
            study = tmp_path / "study.toml"
            table = fed.study.to_table()
            table["task"] = {"name": "evil_task:Task"}
            study.write_bytes(tomli_w.dumps(table).encode())
    before = everything(fed.workspace.folder)
    found_code, found = tried(file, study)
    assert found_code == code, found
    steps = {one["check"]: one for one in found["steps"]}
    assert steps[step]["state"] == "failed"
    assert says in steps[step]["message"]
    assert not mark.exists()
    assert everything(fed.workspace.folder) == before


def test_a_budget_that_is_too_small_is_found_and_data_are_still_tried(tmp_path: Path) -> None:
    _, file, study = federation(tmp_path, {**NOISE, "study": {"rounds": 20}})
    edit(file, "policy", epsilon=1.0, delta=1e-5)
    code, found = tried(file, study)
    assert code == 7
    steps = {one["check"]: one["state"] for one in found["steps"]}
    assert (steps["budget"], steps["training"]) == ("failed", "ok")
    edit(file, "policy", epsilon=9.0)
    code, found = tried(file, study)
    assert code == 0
    assert "cost here: epsilon" in found["cost"][0]
    assert "after this study" in found["cost"][1]


def test_a_study_that_is_not_approved_yet_is_rehearsed_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, file, study = federation(tmp_path)
    edit(file, "policy", approve="ask", approved=[])
    assert trial.main([str(file), str(study)]) == 0
    said = capsys.readouterr().out
    assert "to do    approval" in said
    assert "Nothing was sent, charged or kept." in said
    assert f"secure-fl node approve {file} {study}" in said


def test_a_study_that_brings_its_model_is_played_with_it_or_says_that_it_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fed, file, plain = federation(tmp_path)
    written = fed.study
    task = tasks.create(written.task.name, written.task.settings)
    values = {name: value + 1 for name, value in initial_blocks(task, seed=77)[1].items()}
    model, other = tmp_path / "given.safetensors", tmp_path / "other.safetensors"
    save_model(model, task, values, seed=0)
    save_model(other, task, {name: value + 1 for name, value in values.items()}, seed=0)
    named, _ = continued(written, model)
    study = tmp_path / "given.toml"
    study.write_bytes(tomli_w.dumps(named.to_table()).encode())
    edit(file, "policy", approved=[named.id], exceptions=sorted(named.exceptions))
    NodeStore(NodeFile.read(file).state_folder).secret()  # As if it had run: it divides its rows in one way.

    assert trial.main([str(file), str(study)]) == 0
    said = capsys.readouterr().out
    assert "to do    first model: the study brings a model of its own" in said
    assert "measurements, here of a model that the study's seed makes, NOT of the one" in said
    seeds = tried(file, study)[1]["leaves"]["metrics"]
    assert seeds == tried(file, plain)[1]["leaves"]["metrics"]

    assert trial.main([str(file), str(study), "--from", str(model)]) == 0
    said = capsys.readouterr().out
    assert "given.safetensors is the one that the study names" in said
    assert "measurements, here of the study's first model" in said
    assert tried(file, study, "--from", str(model))[1]["leaves"]["metrics"] != seeds

    code, found = tried(file, study, "--from", str(other))
    assert (code, found["steps"][-2]["state"]) == (3, "failed")
    assert "is not the model that the study names" in found["steps"][-2]["message"]
    assert "NOT" in found["model"]
    code, found = tried(file, plain, "--from", str(model))
    assert (code, found["steps"][-2]["fix"]) == (2, "leave --from out")


def test_the_time_of_a_round_is_estimated_from_a_few_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, file, study = federation(tmp_path, {"strategy": {"name": "fedavg", "batch_size": 4}})
    timed: list[int] = []
    real = node.trial._Play._timed

    def measured(self: Any, batches: int, mechanism: Any) -> float:
        timed.append(batches)
        real(self, batches, mechanism)
        return 2.0 + batches  # Two seconds to begin with, and one for each batch.

    monkeypatch.setattr(node.trial._Play, "_timed", measured)
    _, found = tried(file, study)
    rows = int(next(one["message"] for one in found["steps"] if one["check"] == "training").split()[0])
    assert timed == [1, 4]
    assert found["seconds"] == pytest.approx(2.0 + -(-rows // 4))


def test_one_reason_is_said_once(tmp_path: Path) -> None:
    """That units are not declared stops three steps."""
    _, file, study = federation(tmp_path, NOISE)
    table = read_toml(file)
    del table["datasets"]["breast-cancer"]["units"]
    file.write_bytes(tomli_w.dumps(table).encode())
    code, found = tried(file, study)
    failed = {step["check"]: step for step in found["steps"] if step["state"] == "failed"}
    assert code == 7
    assert "has not said about how many records" in failed["policy"]["message"]
    assert "units = N" in failed["policy"]["fix"]
    for other in ("budget", "training"):
        assert (failed[other]["message"], failed[other]["fix"]) == ("for the same reason as policy", "")
