"""`secure-fl bench privacy`: the same study under several ε."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from secure_fl.cli import app
from secure_fl.errors import UsageError


def test_noise_and_price_go_the_other_way(tmp_path: Path) -> None:
    arguments = [
        "bench", "privacy", "--epsilons", "2,20,none", "--nodes", "3", "--rounds", "2", "--seeds", "0",
        "--set", "strategy.batch_size=64", "--out", str(tmp_path / "out"), "--json",
    ]  # fmt: skip
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    strict, loose, free = result["results"]
    assert strict["spent"] <= 2
    assert 2 < loose["spent"] <= 20
    assert strict["noise"][0] > loose["noise"][1]
    assert (free["epsilon"], free["spent"], free["noise"]) == (None, None, None)
    assert free["accuracy"] > strict["accuracy"]
    again = CliRunner().invoke(app, arguments, catch_exceptions=False)  # finished runs are not repeated
    assert json.loads(again.stdout) == result


def test_what_is_no_number_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--epsilons"):
        CliRunner().invoke(app, ["bench", "privacy", "--epsilons", "much"], catch_exceptions=False)
