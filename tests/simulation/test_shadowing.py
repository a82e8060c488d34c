"""A file in the folder one works in is never taken for a module of ours, and yet one's own task there is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.test_run import command

SHADOWS = ("node", "coordinator", "secure_fl", "torch", "numpy")


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder whose files betray that they were imported."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(
            f"import pathlib\npathlib.Path(__file__).with_name('imported-{name}').touch()\nraise SystemExit(99)\n"
        )
    return tmp_path


def imported(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("imported-*")]


def test_the_trap_works(trap: Path) -> None:
    assert subprocess.run([sys.executable, "-m", "node"], cwd=trap, check=False).returncode == 99
    assert imported(trap) == ["imported-node"]


@pytest.mark.parametrize("engine", ["processes", "threads"])
def test_a_simulation(trap: Path, engine: str) -> None:
    (trap / "own_task.py").write_text(
        "from pathlib import Path\n"
        "from secure_fl.tasks.breast_cancer import BreastCancer\n"
        "class Own(BreastCancer):\n"
        "    def load(self, source):\n"
        "        Path('loaded').touch()\n"
        "        return super().load(source)\n"
    )
    arguments = command(
        "--engine", engine, "--nodes", "3", "--rounds", "1", "--task", "own_task:Own", "--json", "--out", "out"
    )
    done = subprocess.run(arguments, cwd=trap, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 1
    assert (trap / "loaded").exists()
    assert imported(trap) == []


@pytest.mark.parametrize(
    "arguments",
    [("node", "serve"), ("node", "status"), ("coordinator", "serve"), ("doctor",)],
)
def test_a_deployed_party(trap: Path, arguments: tuple[str, ...]) -> None:
    (trap / "party.toml").write_text("[node]\nname = 'x'\n")
    script = Path(sys.executable).parent / "secure-fl"
    done = subprocess.run([script, *arguments, "party.toml"], cwd=trap, capture_output=True, text=True, check=False)
    assert done.returncode not in (0, 99)
    # Said by our package: the file lacks a key, or a whole section.
    assert any(said in done.stdout + done.stderr for said in ("this key is required", "has no ["))
    assert imported(trap) == []


def test_a_nodes_training_process(trap: Path) -> None:
    program = (
        "import asyncio\n"
        "from node.training.worker import WorkerProcess\n"
        "async def run():\n"
        "    process = await WorkerProcess()._started()\n"
        "    process.stdin.close()\n"
        "    return await process.wait()\n"
        "raise SystemExit(asyncio.run(run()))\n"
    )
    environment = {**os.environ, "PYTHONSAFEPATH": ""}
    done = subprocess.run([sys.executable, "-P", "-c", program], cwd=trap, env=environment, check=False)
    assert done.returncode == 3  # it came to life, and left because nobody held its other end
    assert imported(trap) == []
