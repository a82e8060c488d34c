"""What `secure-fl task new` writes: a small package with a task, and tests that pass."""

from __future__ import annotations

import keyword
import re
from importlib.util import find_spec
from pathlib import Path

from secure_fl import tasks
from secure_fl.errors import StorageError, UsageError
from secure_fl.files import write_atomically

KINDS = ("classification", "regression")

_PROJECT = """\
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
description = "A task for secure-fl."
# secure-fl itself is installed beside it. It is not listed, so that pip looks for nothing elsewhere.
dependencies = []

[project.entry-points."secure_fl.tasks"]
{name} = "{module}:{cls}"

[tool.setuptools]
py-modules = ["{module}"]
"""

_TASK = '''\
"""The task {name}: some columns of a table predict another."""

from collections import OrderedDict

from torch import nn

from secure_fl.tasks.base import LocalData, Source, Task
from secure_fl.tasks.cutting import divide
from secure_fl.tasks.metrics import {metric_name}
from secure_fl.tasks.tables import read_rows

# The columns to learn from, and their usual range. It is known without looking at any site's data.
COLUMNS = {{"age": (20, 90), "bmi": (15, 45)}}
TARGET = "{target}"  # the column to predict: {target_is}


class {cls}(Task):
    kind = "{kind}"
    preprocessing = "public"  # Each row is scaled by itself, with the ranges above.
    metrics = ({metric},)

    def model(self) -> nn.Module:
        features = nn.Sequential(nn.Linear(len(COLUMNS), 16), nn.ReLU())
        return nn.Sequential(OrderedDict(features=features, head=nn.Linear(16, {outputs})))

    def load(self, source: Source) -> LocalData:
        rows = read_rows(source, columns=COLUMNS, target=TARGET{classes})
        train, test = divide(source, rows.inputs, rows.targets, classification={is_classification})
        return LocalData.cut(rows.scaled, rows.targets, train, test)
'''

_TESTS = '''\
"""Tests of the task {name}, on made-up rows."""

import csv
import random
from pathlib import Path

import torch
from {module} import COLUMNS, TARGET, {cls}

from secure_fl.tasks.base import LocalData, Source
from secure_fl.tasks.model_blocks import seeded


def made_up(path: Path, rows: int = 400) -> Path:
    """A table in which the target follows from the columns. `python test_{module}.py FILE` writes one, too."""
    numbers = random.Random(1)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*COLUMNS, TARGET])
        for _ in range(rows):
            values = [numbers.uniform(low, high) for low, high in COLUMNS.values()]
            parts = [(value - low) / (high - low) for value, (low, high) in zip(values, COLUMNS.values())]
            table.writerow([*values, {made_up}])
    return path


def loaded(folder: Path) -> LocalData:
    return {cls}().load(Source(path=made_up(folder / "rows.csv")))


def test_rows_are_cut_into_training_and_test(tmp_path):
    data = loaded(tmp_path)
    assert len(data.train) + len(data.test) == 400
    assert data.train.inputs.abs().max() <= 1


def test_it_learns(tmp_path):
    task, data = {cls}(), loaded(tmp_path)
    with seeded(1):
        model = task.model()
    before = task.evaluate(model, data.test).loss
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        task.loss(model(data.train.inputs), data.train.targets).backward()
        optimizer.step()
    assert task.evaluate(model, data.test).loss < before / 2


if __name__ == "__main__":
    import sys

    made_up(Path(sys.argv[1]))
'''

_OWN = {
    "classification": {
        "metric": "Auc()", "metric_name": "Auc", "target": "outcome", "target_is": "0 or 1", "outputs": "2",
        "classes": ", classes=2", "made_up": "int(sum(parts) > len(parts) / 2)",
    },
    "regression": {
        "metric": "Mae(ceiling=10)", "metric_name": "Mae", "target": "outcome",
        "target_is": "a number of about unit size", "outputs": "1", "classes": "", "made_up": "sum(parts)",
    },
}  # fmt: skip


def write_task(name: str, folder: Path, *, kind: str) -> tuple[Path, ...]:
    """Write the package of a new task into `folder`; returns its files. Raises `UsageError`, `StorageError`."""
    if kind not in KINDS:
        raise UsageError(f"unknown kind {kind!r}", advice=f"known: {', '.join(KINDS)}")
    module = _module(name)
    words = {
        "name": name, "module": module, "cls": task_class(name), "kind": kind,
        "is_classification": str(kind == "classification"), **_OWN[kind],
    }  # fmt: skip
    contents = {
        "pyproject.toml": _PROJECT.format(**words),
        f"{module}.py": _TASK.format(**words),
        f"test_{module}.py": _TESTS.format(**words),
    }
    if there := [file for file in contents if (folder / file).exists()]:
        raise StorageError(f"{folder / there[0]}: exists already", advice="choose another --out")
    _require_free(name, module)
    for file, text in contents.items():
        write_atomically(folder / file, text.encode())
    return tuple(folder / file for file in contents)


def task_class(name: str) -> str:
    """What the class of a task is called."""
    return "".join(part.capitalize() for part in re.split("[-_]", name))


def _module(name: str) -> str:
    """The module that has a task of this name. Raises `UsageError` for a name that no task can have."""
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise UsageError(f"{name!r} is no name for a task", advice="use lower-case letters, digits and dashes")
    return name.replace("-", "_")


def _require_free(name: str, module: str) -> None:
    """Raise `UsageError` for a name that means something else here."""
    if name in tasks.known():
        raise UsageError(f"there is a task {name!r} already", advice="choose another name")
    if keyword.iskeyword(module) or find_spec(module) is not None:
        raise UsageError(f"{module!r} is the name of something else in Python here", advice="choose another name")
