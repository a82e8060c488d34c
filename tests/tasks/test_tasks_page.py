"""docs/tasks.md: the runs that it shows work, here with one round and in one process.

Those of the section "A task of your own" are carried out with it (test_own_task_page.py).
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from secure_fl.cli import app
from tests.support.page import fences
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


def write_idx(path: Path, values: npt.NDArray[np.uint8]) -> None:
    """A file as MNIST's publisher has them: what it is, how large, and bytes."""
    sizes = np.array(values.shape, ">u4").tobytes()
    path.write_bytes(bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes())


def write_images(folder: Path) -> None:
    """The four files of MNIST, with few images of noise."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, count in (("train", 300), ("t10k", 100)):
        write_idx(folder / f"{part}-images-idx3-ubyte", rng.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        write_idx(folder / f"{part}-labels-idx1-ubyte", (np.arange(count) % 10).astype(np.uint8))


@pytest.mark.parametrize("words", RUNS, ids=lambda words: words[words.index("--task") + 1])
def test_a_run_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "csv_regression.py").write_bytes((ROOT / "docs" / "examples" / "csv_regression.py").read_bytes())
    (tmp_path / "data.csv").write_text(CSV)
    write_images(tmp_path / "data" / "mnist")
    done = CliRunner().invoke(app, [*words[1:], "--rounds", "1", "--engine", "threads"])
    assert done.exit_code == 0, done.output


def test_none_is_left_out() -> None:
    """Every `secure-fl run` of the page, in whichever fence or line, is one of those above, or names its machine."""
    shown = re.findall(r"secure-fl run [^`]", PAGE)
    with_machines = [line for fence in fences(PAGE) for line in fence.text.splitlines() if "secure-fl run " in line]
    assert len(with_machines) == 1
    assert len(RUNS) + len(with_machines) == len(shown) == 4
