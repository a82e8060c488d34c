"""What the design promises and a reader of one file cannot see: types, stubs, and no `assert` as a check."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONGEST

ROOT = Path(__file__).parents[2]
PRODUCT = [
    path
    for package in ("secure_fl", "node", "coordinator")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "rpc" not in path.parts  # generated
]

STRATEGY = """
from secure_fl.blocks import Blocks
from secure_fl.strategies.base import Aggregate, State
from secure_fl.strategies.fedavg import FedAvg


class {name}(FedAvg):
    name = "temporary"

    def step(self, current: Blocks, aggregate: {type}, state: State) -> tuple[Blocks, State]:
        return current, state
"""


def test_a_strategy_that_wants_every_nodes_update_does_not_type_check(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(STRATEGY.format(name="Greedy", type="list[Blocks]"))
    (tmp_path / "modest.py").write_text(STRATEGY.format(name="Modest", type="Aggregate"))
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", *map(str, sorted(tmp_path.glob("*.py")))],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    errors = [line for line in run.stdout.splitlines() if ": error: " in line]
    assert run.returncode == 1, run.stdout + run.stderr
    assert len(errors) == 1, run.stdout
    assert "greedy.py" in errors[0]
    assert 'Argument 2 of "step" is incompatible with supertype' in errors[0]
    assert "[override]" in errors[0]


def test_the_committed_stubs_are_fresh() -> None:
    run = subprocess.run(
        ["scripts/gen_protos", "--check"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "stubs are fresh" in run.stdout


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: str(path.relative_to(ROOT)))
def test_assert_is_for_tests(path: Path) -> None:
    # `python -O` drops assertions, and with them whatever they were to guard.
    asserts = [n.lineno for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Assert)]
    assert asserts == []


def test_the_files_that_begin_first_exist() -> None:
    # A file under another name would begin last again, and nobody would notice but by the clock.
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []
