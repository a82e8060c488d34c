"""`secure-fl run` as a person uses it: the JSON contract, the folder, interruption, orphans."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from node.config import NodeFile
from node.policy import Policy
from secure_fl.bench import features
from secure_fl.cli import app
from secure_fl.errors import RefusedError
from secure_fl.identity.certificates import Certificate, TrustStore, utc_now
from secure_fl.privacy.ledger import read_ledger
from secure_fl.results import traces
from secure_fl.study.settings import Study
from tests.faults.test_kill import alive, children_of
from tests.support.processes import ROOT

SUMMARY = {
    "study", "strategy", "protection", "engine", "rounds", "seconds", "mean_accuracy", "std_accuracy",
    "global_accuracy", "mean_mse", "metrics", "bytes_up_per_node_round", "bytes_down_per_node_round",
    "combinations_opened", "combinations_possible", "blocks_never_opened", "blocks_missing", "circles", "nodes",
    "report", "seeded",
}  # fmt: skip
NODE = {
    "name", "samples", "accuracy", "loss", "metrics", "epsilon", "delta", "budget_used", "bytes_up", "bytes_down",
    "rounds_taken", "dropped",
}  # fmt: skip


def command(*arguments: str) -> list[str]:
    """The console script."""
    return [str(Path(sys.executable).parent / "secure-fl"), "run", *arguments]


def summary_of(*arguments: str) -> dict[str, object]:
    """Run to the end and parse the one object on standard output."""
    done = subprocess.run(command(*arguments, "--json"), capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def summary_here(*arguments: str) -> dict[str, object]:
    """The same in this process, without the seconds it takes to import torch in a new one."""
    done = CliRunner().invoke(app, ["run", *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("strategy", "has_global"),
    [
        ("aifed", True),
        ("ditto", True),
        ("fedala", True),
        ("fedavg", True),
        ("fedopt", True),
        ("fedper", False),
        ("fedprox", True),
        ("fedrep", False),
        ("local", False),
        ("pfedme", True),
        ("pflda", False),
        ("pflsensing", True),
        ("tp", True),
    ],
)
def test_every_strategy_keeps_the_contract(tmp_path: Path, strategy: str, has_global: bool) -> None:
    out = tmp_path / "out"
    engine = "threads"
    summary = summary_here(
        "--strategy", strategy, "--engine", engine, "--nodes", "3", "--rounds", "3", "--task", "breast-cancer",
        "--out", str(out),
    )  # fmt: skip
    assert summary.keys() == SUMMARY
    assert summary == json.loads((out / "summary.json").read_text())
    assert (summary["strategy"], summary["protection"], summary["engine"]) == (strategy, "masked", engine)
    assert summary["rounds"] == 3
    assert isinstance(summary["mean_accuracy"], float)
    assert summary["mean_accuracy"] > 0.8
    assert (summary["global_accuracy"] is not None) == has_global
    assert summary["mean_mse"] is None
    assert (out / "model.safetensors").exists() == has_global
    nodes = summary["nodes"]
    assert isinstance(nodes, list)
    for node in nodes:
        assert node.keys() == NODE
        assert node["epsilon"] is None
        assert node["rounds_taken"] == 3
        folder = out / "nodes" / node["name"]
        assert (folder / "model.safetensors").exists()
        ledger = list(read_ledger(folder / "ledger.jsonl"))
        assert [entry.kind for entry in ledger] == ["opened", "approved", *["planned", "sent"] * 4]
        certificate = Certificate.from_pem(ledger[0].facts["certificate"].encode())
        TrustStore((out / "ca.pem").read_bytes()).check(certificate, role="node", now=utc_now())
    assert Path(str(summary["report"])).read_text().lower().startswith("<!doctype html>")
    check_that_none_gives_the_same(summary, out, tmp_path / "plain")


def check_that_none_gives_the_same(masked: dict[str, object], out: Path, folder: Path) -> None:
    """Masks change what the coordinator sees and nothing else: the models are the same, bit for bit."""
    plain = summary_here(
        "--strategy", str(masked["strategy"]), "--engine", "threads", "--nodes", "3", "--rounds", "3",
        "--task", "breast-cancer", "--protection", "none", "--out", str(folder),
    )  # fmt: skip
    for figure in ("mean_accuracy", "std_accuracy", "global_accuracy"):
        assert plain[figure] == masked[figure]
    for model in (*folder.glob("model.safetensors"), *folder.glob("nodes/*/model.safetensors")):
        assert model.read_bytes() == (out / model.relative_to(folder)).read_bytes()
    up = plain["bytes_up_per_node_round"]
    assert isinstance(up, float)
    assert (up < 1000) == (masked["strategy"] in {"local", "pflda"})  # nothing, and a head of few parameters


@pytest.mark.parametrize("engine", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_what_a_site_notes_stays_in_its_folder_and_is_drawn(tmp_path: Path, engine: str) -> None:
    out = tmp_path / "out"
    summary = (summary_here if engine == "threads" else summary_of)(
        "--task", "digits", "--strategy", "pflsensing", "--engine", engine, "--nodes", "3", "--rounds", "2",
        "--set", "strategy.epochs=1", "--out", str(out),
    )  # fmt: skip
    assert summary.keys() == SUMMARY
    assert not list((out / "coordinator").rglob("traces*"))
    for site in ("site-01", "site-02", "site-03"):
        noted = traces.read(out / "nodes" / site / "traces.jsonl")
        assert list(noted) == [1, 2]
        for number in noted:
            assert list(noted[number]["alpha"]) == ["features", "hidden", "head"]
            assert all(0 <= value <= 1 for value in noted[number]["alpha"].values())
    # Two drawings, for a screen and a phone, with a line for each block.
    chart = (out / "report.html").read_text().split("<figcaption>alpha", 1)[1].split("</figure>", 1)[0]
    assert [chart.count(f"<title>{block}: ") for block in ("features", "hidden", "head")] == [2, 2, 2]


def test_sites_select_their_own_domain_and_the_report_shows_whom(tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = summary_here(
        "--task", "digits", "--strategy", "fedcca", "--protection", "none", "--engine", "threads", "--nodes", "8",
        "--rounds", "2", "--set", "simulation.partition=rotated", "--set", "simulation.domains=2",
        "--set", "strategy.criterion=1.0", "--set", "strategy.epochs=1", "--out", str(out),
    )  # fmt: skip
    opened = summary["combinations_opened"]
    assert isinstance(opened, int)
    assert opened >= 8
    assert not list((out / "coordinator").rglob("rows*"))
    asked = {}
    for index in range(1, 9):
        rows = traces.read(out / "nodes" / f"site-0{index}" / "rows.jsonl")
        assert list(rows) == [1, 2]
        asked[index] = rows[1]["asked"]
        assert sum(asked[index].values()) == 64
    # Sites take turns at the domains.
    foreign = [peer for index, row in asked.items() for peer in row if (int(peer[-1]) - index) % 2]
    assert len(foreign) <= 4
    page = (out / "report.html").read_text()
    assert f"combined, {opened} in all" in page
    assert page.count("asked for site-01 in ") == 2 * 8


def test_sites_share_as_deep_as_they_choose_and_protections_change_nothing(tmp_path: Path) -> None:
    summaries = {}
    for protection in ("none", "masked", "sealed", "encrypted"):
        summaries[protection] = summary_here(
            "--task", "bearings", "--strategy", "fedasa", "--protection", protection, "--engine", "threads",
            "--nodes", "4", "--rounds", "2", "--set", "simulation.partition=natural", "--set", "task.network=cells",
            "--set", "task.windows=2", "--set", "strategy.epochs=1", "--set", "strategy.optimizer=adam",
            "--set", "strategy.learning_rate=0.001", "--set", "strategy.auxiliary_epochs=1",
            "--set", "strategy.depths=[0,2,4]", "--set", "policy.upload_parameters=50000",
            "--set", "protection.bits=16",
            "--out", str(tmp_path / protection),
        )  # fmt: skip
    sizes = {0: 10_464, 2: 35_168}  # 4 cells are more than the sites' policy lets go
    nodes = summaries["none"]["nodes"]
    assert isinstance(nodes, list)
    for node in nodes:
        folder = tmp_path / "none" / "nodes" / node["name"]
        noted = traces.read(folder / "traces.jsonl")
        assert ["distance" in noted[at] for at in (1, 2)] == [True, False]
        (depth,) = {int(noted[at]["depth"]["m*"]) for at in (1, 2)}
        # Two bytes a value, in two rounds and with little around them.
        assert 0 <= node["bytes_up"] - 2 * 2 * sizes[depth] < 1500
        model = (folder / "model.safetensors").read_bytes()
        # The noise of `sealed`, with 16 bits and four sites, is rounded away; the others have none.
        for protection in ("masked", "sealed", "encrypted"):
            assert model == (tmp_path / protection / "nodes" / node["name"] / "model.safetensors").read_bytes()
    assert len({summary["mean_accuracy"] for summary in summaries.values()}) == 1
    page = Path(str(summaries["masked"]["report"])).read_text()
    assert "how many cells a site shares" in page
    assert "59,872 of 323,434" in page
    assert "@auxiliary" not in page
    points = features.shared_features(tmp_path / "masked")
    assert points is not None
    assert set(points.sites) == {node["name"] for node in nodes}
    assert np.isfinite(points.places).all()
    assert 0 < points.explained <= 1
    assert features.depths(tmp_path / "masked").keys() == {node["name"] for node in nodes}


def test_hidden_membership_looks_the_same_at_every_depth_and_needs_the_sites_word(tmp_path: Path) -> None:
    arguments = (
        "--task", "bearings", "--strategy", "fedasa", "--protection", "masked", "--engine", "threads",
        "--nodes", "4", "--rounds", "2", "--set", "simulation.partition=natural", "--set", "task.network=cells",
        "--set", "task.windows=2", "--set", "strategy.epochs=1", "--set", "strategy.learning_rate=0.001",
        "--set", "strategy.auxiliary_epochs=1", "--set", "strategy.membership=hidden",
    )  # fmt: skip
    summary = summary_here(*arguments, "--out", str(tmp_path / "agreed"))
    nodes = summary["nodes"]
    assert isinstance(nodes, list)
    depths = features.depths(tmp_path / "agreed")
    assert set(depths.values()) - {4}  # somebody sent zeros
    sent = [node["bytes_up"] for node in nodes]
    assert max(sent) - min(sent) < 16  # of 327 kB, where a cell has 33 kB: reports of accuracy differ in length
    file = NodeFile.read(tmp_path / "agreed" / "nodes" / "site-01" / "node.toml")
    study = Study.read(tmp_path / "agreed" / "study.toml")
    me = file.credential().certificate
    Policy(file, me).check_terms(study)
    silent = file.model_copy(update={"policy": file.policy.model_copy(update={"exceptions": ()})})
    with pytest.raises(RefusedError, match="hidden-membership"):
        Policy(silent, me).check_terms(study)


def test_a_run_in_which_nothing_was_combined_says_so_loudly(tmp_path: Path) -> None:
    """A criterion that nobody meets. It is no error: the sites have trained."""
    arguments = [
        "run", "--task", "digits", "--strategy", "fedcca", "--protection", "none", "--engine", "threads",
        "--nodes", "4", "--rounds", "1", "--set", "strategy.criterion=1e-9", "--set", "strategy.epochs=1",
    ]  # fmt: skip
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")], catch_exceptions=False)
    assert done.exit_code == 0
    assert "0 of 4 combinations were opened" in done.output
    assert "No combination was opened: every site has trained alone" in done.output
    assert "No combination was opened" in (tmp_path / "out" / "report.html").read_text()


def test_regression_reports_a_mean_squared_error(tmp_path: Path) -> None:
    summary = summary_here(
        "--task", "tests.support.task:Line", "--engine", "threads", "--nodes", "3", "--rounds", "2",
        "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert summary["mean_accuracy"] is None
    assert isinstance(summary["mean_mse"], float)


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_users_own_task_on_a_users_own_file(tmp_path: Path, engine: str) -> None:
    """The example of docs/tasks.md as a newcomer would run it: from the folder it lies in."""
    shutil.copy(ROOT / "docs" / "examples" / "csv_regression.py", tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    rows = np.column_stack([x, x @ [0.5, -0.25] + 0.1])
    np.savetxt(tmp_path / "data.csv", rows, delimiter=",", header="age,bmi,bp", comments="")
    done = subprocess.run(
        command(
            "--task", "csv_regression:CsvRegression", "--set", 'task.features=["age","bmi"]', "--set", "task.target=bp",
            "--set", "simulation.path=data.csv", "--nodes", "3", "--rounds", "3", "--engine", engine, "--json",
        ),
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mean_mse"] < 0.1


def test_an_interrupted_run_leaves_nobody_behind_and_is_resumed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["--nodes", "3", "--rounds", "150", "--out", str(out), "--task", "breast-cancer"]
    child = subprocess.Popen(command(*arguments), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    record = out / "coordinator" / "state" / "studies"
    _wait(lambda: any(record.glob("*/record.json")), 60)
    family = _descendants(child.pid)
    assert len(family) >= 4
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=90)
    assert child.returncode == 130
    assert f"--out {out} goes on" in said.decode()
    _wait(lambda: not any(alive(pid) for pid in family), 15)
    committed = len(json.loads(next(record.glob("*/record.json")).read_text())["rounds"])
    assert 0 < committed < 150
    # A shorter study is another study: it is refused rather than mixed up with this one.
    other = subprocess.run(
        command("--nodes", "3", "--rounds", "5", "--out", str(out)), capture_output=True, text=True, check=False
    )
    assert other.returncode == 3
    assert "another study" in other.stderr
    summary = summary_of(*arguments)
    assert summary["rounds"] == 150


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    arguments = ["--nodes", "3", "--rounds", "1000", "--out", str(tmp_path / "out"), "--task", "breast-cancer"]
    child = subprocess.Popen(command(*arguments), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _wait(lambda: len(_descendants(child.pid)) >= 7, 60)  # the coordinator, three nodes, three training processes
    family = _descendants(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    _wait(lambda: not any(alive(pid) for pid in family), 15)


def _descendants(pid: int) -> list[int]:
    found = children_of(pid)
    return found + [grandchild for child in found for grandchild in _descendants(child)]


def _wait(condition: object, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)
