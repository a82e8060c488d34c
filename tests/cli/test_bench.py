"""`secure-fl bench aggregation`: the fields of the contract, and figures that mean what they say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from secure_fl.cli import app
from secure_fl.errors import UsageError

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
