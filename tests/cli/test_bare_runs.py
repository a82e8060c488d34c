"""`secure-fl run` with a task, or a strategy and a task, and nothing else said: what is chosen for both works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from secure_fl.cli import app


@pytest.mark.parametrize(
    "words",
    [
        ("--task", "sine"),
        pytest.param(("--strategy", "fedasa", "--task", "bearings"), marks=pytest.mark.slow),  # half a minute
    ],
)
def test_what_is_chosen_for_a_task_and_a_strategy_runs(tmp_path: Path, words: tuple[str, ...]) -> None:
    """As it is typed, but for one round instead of ten and one process instead of many."""
    few = ("--rounds", "1", "--engine", "threads", "--out", str(tmp_path / "run"), "--json")
    done = CliRunner().invoke(app, ["run", *words, *few])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rounds"] == 1
