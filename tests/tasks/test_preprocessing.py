"""A record that changes or goes changes neither the inputs nor the side of any other record.

Checked for every built-in task, on files that a site could have. The same check finds out a task that standardises with
the site's own rows.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from torch import nn

from secure_fl.tasks import BUILT_IN, create
from secure_fl.tasks.base import LocalData, Source, Split, Task, TaskSettings, read_npz
from secure_fl.tasks.cutting import divide
from tests.tasks.test_heart import patients

Rows = npt.NDArray[Any]
RNG = np.random.default_rng(0)
N = 60


def npz(folder: Path, x: Rows, y: Rows, **others: Any) -> Path:
    np.savez(folder / "own.npz", x=x, y=y, **others)
    return folder / "own.npz"


def labels(rows: Rows) -> Rows:
    """The class of each row, from the row itself, so that it stays with the row."""
    found: Rows = (rows.reshape(len(rows), -1).astype(np.float64).sum(axis=1) * 1000).astype(np.int64) % 2
    return found


def simple(folder: Path, rows: Rows) -> Path:
    return npz(folder, rows, labels(rows))


def table(folder: Path, rows: Rows) -> Path:
    lines = [",".join("?" if np.isnan(value) else f"{value:g}" for value in row) for row in rows]
    (folder / "own.csv").write_text("\n".join(lines) + "\n")
    return folder / "own.csv"


def news(folder: Path, rows: Rows) -> Path:
    with (folder / "own.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[row[0] % 4 + 1, "title", " ".join(f"word{word}" for word in row)] for row in rows])
    return folder / "own.csv"


def prints(folder: Path, rows: Rows) -> Path:
    np.savez(folder / "own.npz", data=rows[:, :3], speed_setting=rows[:, 3])
    return folder / "own.npz"


def visits(folder: Path, rows: Rows) -> Path:
    return npz(folder, rows[:, 1:], labels(rows[:, 1:]), groups=rows[:, 0].astype(np.int64))


# Task and settings → rows, and how to write them to a file.
SITES: dict[str, tuple[dict[str, Any], Rows, Callable[[Path, Rows], Path]]] = {
    "digits": ({}, RNG.random((N, 8, 8)), simple),
    "breast-cancer": ({}, RNG.random((N, 30)) * 50, simple),
    "mnist": ({}, RNG.integers(0, 256, (N, 28, 28), np.uint8), simple),
    "fashion": ({}, RNG.integers(0, 256, (N, 28, 28), np.uint8), simple),
    "cifar10": ({}, RNG.integers(0, 256, (N, 32, 32, 3), np.uint8), simple),
    "heart": ({}, patients(N), table),
    "printers": ({"test_speed": 0}, RNG.random((N, 4)), prints),
    "bearings": ({}, RNG.normal(size=(N, 1024)), simple),
    "agnews": ({}, RNG.integers(0, 1000, (N, 5)), news),
    "visits": ({}, np.column_stack([np.arange(N) // 2, RNG.random((N, 8)) * 90]), visits),
}
GENERATED = {"sine"}  # It reads no file: there is no record to take out.


def content(split: Split) -> Counter[bytes]:
    """Every row, with how often it occurs."""
    pairs = zip(split.inputs.numpy(), split.targets.numpy(), strict=True)
    return Counter(x.tobytes() + y.tobytes() for x, y in pairs)


def touched(before: LocalData, after: LocalData) -> int:
    """How many rows of `before` are gone from the side they were on."""
    return sum(
        sum((content(a) - content(b)).values()) for a, b in ((before.train, after.train), (before.test, after.test))
    )


def check(task: Task, folder: Path, rows: Rows, write: Callable[[Path, Rows], Path]) -> None:
    before = task.load(Source(path=write(folder, rows)))
    assert len(before.train) + len(before.test) == len(rows)
    for row in (0, 17, len(rows) - 1):
        without = task.load(Source(path=write(folder, np.delete(rows, row, axis=0))))
        assert touched(before, without) == 1
        assert touched(without, before) == 0
        changed = rows.copy()
        changed[row] = rows[row - 1] if row else rows[1]
        other = task.load(Source(path=write(folder, changed)))
        assert touched(before, other) <= 1
        assert touched(other, before) <= 1


def test_every_built_in_task_is_checked_and_says_how_it_prepares_rows() -> None:
    assert set(SITES) | GENERATED == set(BUILT_IN)
    declared = {name: create(name, {}).preprocessing for name in BUILT_IN}
    assert declared == {name: "none" if name == "sine" else "public" for name in BUILT_IN}


@pytest.mark.parametrize("name", sorted(SITES))
def test_one_record_changes_no_other(name: str, tmp_path: Path) -> None:
    settings, rows, write = SITES[name]
    check(create(name, settings), tmp_path, rows, write)


class Standardised(Task):
    """As some built-in tasks used to be: in units of the training rows' mean and deviation."""

    kind = "classification"
    preprocessing = "data-dependent"

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(30, 2))

    def load(self, source: Source) -> LocalData:
        arrays = read_npz(source, shape=(30,), classes=2)
        train, test = divide(source, arrays.x, arrays.y, classification=True)
        scaled = (arrays.x - arrays.x[train].mean(axis=0)) / arrays.x[train].std(axis=0)
        return LocalData.cut(scaled, arrays.y, train, test)


def test_a_task_that_standardises_is_found_out(tmp_path: Path) -> None:
    _, rows, write = SITES["breast-cancer"]
    with pytest.raises(AssertionError):
        check(Standardised(TaskSettings()), tmp_path, rows, write)
    task = Standardised(TaskSettings())
    before = task.load(Source(path=write(tmp_path, rows)))
    # One training row less, and not one of the others is what it was.
    gone = next(
        number
        for number in range(N)
        if len(task.load(Source(path=write(tmp_path, np.delete(rows, number, axis=0)))).train) < len(before.train)
    )
    assert touched(before, task.load(Source(path=write(tmp_path, np.delete(rows, gone, axis=0))))) == N


def test_a_task_that_says_nothing_is_unknown() -> None:
    assert Task.preprocessing == "unknown"
