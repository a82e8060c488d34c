"""`secure-fl bench`: the fields of the contract, and figures that mean what they say."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from secure_fl.bench import strategies
from secure_fl.cli import app
from secure_fl.errors import SecureFLError, SettingsError, UsageError
from secure_fl.study.settings import Study

FIELDS = {
    "seconds_total", "seconds_node_max", "seconds_coordinator", "bytes_up_per_node", "bytes_per_parameter", "max_error",
    "exact", "peak_memory_bytes", "seconds_opening", "combinations_opened", "seconds_until_upload",
    "bytes_upload_per_node", "bytes_down_per_node", "phases",
}  # fmt: skip


def bench(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["bench", "aggregation", *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_the_contract() -> None:
    told = bench("--nodes", "9", "--parameters", "20000", "--dropouts", "1", "--repeat", "2")
    assert (told["nodes"], told["parameters"], told["dropouts"]) == (9, 20000, 1)
    assert told["protections"].keys() >= {"none", "masked", "sealed", "encrypted"}  # and what other tests registered
    for figures in told["protections"].values():
        assert figures.keys() == FIELDS
        assert figures["exact"] is True
        # Stochastic rounding to 16 bits is off by less than one step; a step is the clip over 2¹⁵ − 1.
        assert 0 < figures["max_error"] < 1 / 32767
        assert figures["seconds_total"] >= figures["seconds_coordinator"] + figures["seconds_node_max"]
        assert figures["seconds_until_upload"] <= figures["seconds_node_max"]
        phases = figures["phases"]
        spent = sum(phase["seconds_nodes"] + phase["seconds_coordinator"] for phase in phases.values())
        assert spent == pytest.approx(figures["seconds_total"])
        assert phases["upload"]["bytes_up_max"] == figures["bytes_upload_per_node"] <= figures["bytes_up_per_node"]
        assert max(phase["bytes_down_max"] for phase in phases.values()) <= figures["bytes_down_per_node"]
        assert (phases["encode"]["nodes"], phases["upload"]["nodes"]) == (9, 8)
    assert "baselines" not in told


def test_sixteen_bits_cost_less_than_three_bytes_a_parameter_and_memory_less_than_three_models() -> None:
    parameters = 1_000_000
    masked = bench("--nodes", "10", "--parameters", str(parameters), "--protections", "masked", "--repeat", "1")
    figures = masked["protections"]["masked"]
    assert figures["bytes_per_parameter"] < 3
    assert figures["peak_memory_bytes"] < 3 * 4 * parameters + 2**21


@pytest.mark.parametrize("arguments", [("--nodes", "4", "--dropouts", "2"), ("--nodes", "3", "--dropouts", "3")])
def test_too_many_dropouts_are_said_so(arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="too few"):
        bench(*arguments, "--parameters", "10")


def test_a_circle_that_lost_somebody_opens_nothing_and_recovery_does() -> None:
    few = ("--nodes", "5", "--dropouts", "1", "--parameters", "10", "--repeat", "1")
    with pytest.raises(UsageError, match="no circle is complete"):
        bench(*few, "--protections", "masked")
    assert bench(*few, "--protections", "masked+recovery")["protections"]["masked+recovery"]["exact"] is True
    with pytest.raises(UsageError, match="recovery"):
        bench(*few, "--protections", "masked+magic")


def compare(folder: Path, *arguments: str) -> dict[str, Any]:
    common = ["--task", "breast-cancer", "--partition", "iid", "--nodes", "3", "--out", str(folder), "--json"]
    done = CliRunner().invoke(app, ["bench", "strategies", *common, *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def _deviations(nodes: list[dict[str, Any]]) -> tuple[float, float]:
    """Across the sites of a run, mean over runs; and over runs, of the mean of a run's sites."""
    by_seed: dict[int, list[float]] = {}
    for node in nodes:
        by_seed.setdefault(node["seed"], []).append(node["accuracy"])
    assert [len(values) for values in by_seed.values()] == [3, 3]
    across = statistics.fmean(statistics.pstdev(values) for values in by_seed.values())
    return across, statistics.pstdev(statistics.fmean(values) for values in by_seed.values())


def test_strategies_are_compared_and_finished_runs_kept(tmp_path: Path) -> None:
    arguments = ("--strategies", "local,fedavg", "--seeds", "0,1", "--rounds", "2", "--target", "0.8")
    told = compare(tmp_path, *arguments)
    assert [(row["strategy"], row["protection"]) for row in told["results"]] == [
        ("local", "masked"),
        ("fedavg", "masked"),
    ]
    for row in told["results"]:
        assert 0 < row["worst_accuracy"] <= row["accuracy"] <= 1
        assert row["rounds_to_target"] in (1, 1.5, 2)
        assert row["bytes_to_target"] > 0
        assert row["mse"] is None
        assert (row["fairness_std"], row["accuracy_std"]) == pytest.approx(_deviations(row["nodes"]))
        assert [moment["round"] for moment in row["curve"]] == [0, 1, 2]
        assert row["curve"][-1]["accuracy"] == pytest.approx(row["accuracy"])
        assert row["bytes_up_per_node"] > 2 * row["bytes_up_per_node_round"]
        assert [(group["samples"][0] >= 100, group["nodes"]) for group in row["groups"]] == [(True, 6)]
    assert json.loads((tmp_path / "results.json").read_text()) == told
    charts = {"rounds.svg", "sites.svg", "bytes.svg", "features-fedavg-masked.svg"}
    assert {path.name for path in tmp_path.glob("*.svg")} == charts
    page = (tmp_path / "report.html").read_bytes()
    runs = {path.parent.name: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}
    assert set(runs) == {"local-masked-0", "local-masked-1", "fedavg-masked-0", "fedavg-masked-1"}
    assert compare(tmp_path, *arguments) == told  # repeated from what is there
    assert {path.parent.name: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")} == runs
    assert (tmp_path / "report.html").read_bytes() == page
    with pytest.raises(SettingsError, match="other settings"):
        compare(tmp_path, *arguments[:-3], "3")


def test_a_target_nobody_reached_is_unknown(tmp_path: Path) -> None:
    told = compare(tmp_path, "--strategies", "fedavg", "--seeds", "0", "--rounds", "1", "--target", "1.0")
    assert (told["results"][0]["rounds_to_target"], told["results"][0]["bytes_to_target"]) == (None, None)


SINE = (
    "--task", "sine", "--partition", "natural", "--nodes", "4", "--seeds", "0", "--rounds", "1",
    "--set", "task.width=8", "--set", "strategy.epochs=1",
)  # fmt: skip


def sine(folder: Path, *arguments: str) -> str:
    command = ["bench", "strategies", *SINE, "--out", str(folder), *arguments]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_poor_sites_are_told_apart_and_one_strategy_may_have_two_names(tmp_path: Path) -> None:
    own = ("--strategies", "pflda,free", "--set", "free.name=pflda", "--set", "free.lam=0", "--set", "pflda.lam=3")
    assert f"report: {tmp_path / 'report.html'}" in sine(tmp_path, *own)
    told = json.loads((tmp_path / "results.json").read_text())
    lams = []
    for row in told["results"]:
        assert [(group["samples"], group["nodes"]) for group in row["groups"]] == [([5, 5], 1), ([100, 100], 3)]
        errors = [node["mse"] for node in row["nodes"]]
        assert [group["mse"] for group in row["groups"]] == pytest.approx([errors[3], statistics.fmean(errors[:3])])
        assert row["mse_std"] is None  # of a single seed
        assert (row["fairness_std_mse"], row["worst_mse"]) == pytest.approx((statistics.pstdev(errors), max(errors)))
        lams.append(Study.read(tmp_path / f"{row['strategy']}-masked-0" / "study.toml").strategy.settings["lam"])
    assert lams == [3, 0]
    sine(tmp_path, *own)  # from what is there: `seconds` would differ
    assert json.loads((tmp_path / "results.json").read_text()) == told


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--strategies", "local,pfldaa"), "pfldaa"),
        (("--strategies", "local,free", "--set", "free.lam=1"), "free"),
        (("--strategies", "local,ditto", "--set", "ditto.lamb=1"), "lamb"),
        (("--strategies", "local", "--set", "ditto.lam=1"), "ditto"),
    ],
)
def test_a_mistake_comes_to_light_before_anything_is_run(tmp_path: Path, wrong: tuple[str, ...], said: str) -> None:
    with pytest.raises(SecureFLError, match=said):
        sine(tmp_path, *wrong)
    assert not list(tmp_path.iterdir())


def test_a_run_counts_once_it_is_finished(tmp_path: Path) -> None:
    seen: list[str] = []
    table = {"study": {"rounds": 1}, "task": {"name": "breast-cancer"}, "simulation": {"nodes": 3}}
    strategies.run(
        table, strategies=["local"], protections=["none"], seeds=[0, 1], target=None, folder=tmp_path,
        started=lambda what: seen.append(f"{what}: {len(list(tmp_path.glob('*/summary.json')))}"),
        finished=lambda: seen.append(f"done: {len(list(tmp_path.glob('*/summary.json')))}"),
    )  # fmt: skip
    assert seen == ["local, none, seed 0: 0", "done: 1", "local, none, seed 1: 1", "done: 2"]
