"""docs/tasks.md: the runs that it shows work, here with one round and in one process."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from secure_fl.cli import app
from tests.support.processes import ROOT

PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
_FENCES = re.findall(r"^```\n((?:.*\n)*?)^```$", PAGE, re.MULTILINE)
RUNS = [
    shlex.split(line)
    for fence in _FENCES
    for line in fence.replace("\\\n", " ").splitlines()
    if line.startswith("secure-fl run ")
]
CSV = "age,bmi,bp\n" + "".join(f"{20 + n % 60},{18 + n % 20},{0.5 + n % 3}\n" for n in range(90))


@pytest.mark.parametrize("words", RUNS, ids=lambda words: words[words.index("--task") + 1])
def test_a_run_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    if "mnist" in words and "SECURE_FL_DATA" not in os.environ:
        pytest.skip("MNIST is not in the repository; SECURE_FL_DATA says where it is")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "csv_regression.py").write_bytes((ROOT / "docs" / "examples" / "csv_regression.py").read_bytes())
    (tmp_path / "data.csv").write_text(CSV)
    real = f"simulation.path={os.environ.get('SECURE_FL_DATA', '')}/mnist.npz"
    arguments = [real if word == "simulation.path=data/mnist" else word for word in words[1:]]
    done = CliRunner().invoke(app, [*arguments, "--rounds", "1", "--engine", "threads"])
    assert done.exit_code == 0, done.output


def test_all_of_them_were_found() -> None:
    assert len(RUNS) == 3
