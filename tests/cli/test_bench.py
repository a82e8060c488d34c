"""`secure-fl bench`: the fields of the contract, and figures that mean what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from secure_fl.cli import app
from secure_fl.errors import SettingsError, UsageError

FIELDS = {
    "seconds_total", "seconds_node_max", "seconds_coordinator", "bytes_up_per_node", "bytes_per_parameter", "max_error",
    "exact", "peak_memory_bytes",
}  # fmt: skip


def bench(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["bench", "aggregation", *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_the_contract() -> None:
    told = bench("--nodes", "5", "--parameters", "20000", "--dropouts", "1", "--repeat", "2")
    assert (told["nodes"], told["parameters"], told["dropouts"]) == (5, 20000, 1)
    assert told["protections"].keys() == {"none", "masked"}
    for figures in told["protections"].values():
        assert figures.keys() == FIELDS
        assert figures["exact"] is True
        # Stochastic rounding to 16 bits is off by less than one step; a step is the clip over 2¹⁵ − 1.
        assert 0 < figures["max_error"] < 1 / 32767
        assert figures["seconds_total"] >= figures["seconds_coordinator"] + figures["seconds_node_max"]


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


def compare(folder: Path, *arguments: str) -> dict[str, Any]:
    common = ["--task", "breast-cancer", "--partition", "iid", "--nodes", "3", "--out", str(folder), "--json"]
    done = CliRunner().invoke(app, ["bench", "strategies", *common, *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


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
    runs = {path.parent.name: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}
    assert set(runs) == {"local-masked-0", "local-masked-1", "fedavg-masked-0", "fedavg-masked-1"}
    assert compare(tmp_path, *arguments) == told  # repeated from what is there
    assert {path.parent.name: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")} == runs
    with pytest.raises(SettingsError, match="other settings"):
        compare(tmp_path, *arguments[:-3], "3")


def test_a_target_nobody_reached_is_unknown(tmp_path: Path) -> None:
    told = compare(tmp_path, "--strategies", "fedavg", "--seeds", "0", "--rounds", "1", "--target", "1.0")
    assert (told["results"][0]["rounds_to_target"], told["results"][0]["bytes_to_target"]) == (None, None)
