"""A site's rows from a table: some columns are learnt from, and one is predicted. CSV with a header, or .npz."""

from __future__ import annotations

import csv
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from secure_fl.errors import DataError
from secure_fl.tasks.base import Source, open_npz, require_path

Range: TypeAlias = tuple[float, float]
Groups: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Rows:
    """What a table holds, row by row."""

    inputs: npt.NDArray[np.float32]  # (rows, columns), as recorded
    scaled: npt.NDArray[np.float32]  # the same, each column's range as -1 to 1
    targets: npt.NDArray[Any]  # (rows,) class numbers, or (rows, 1) numbers
    groups: Groups | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    columns: tuple[str, ...]
    target: str
    groups: str

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.columns, self.target, *([self.groups] if self.groups else []))


def read_rows(
    source: Source, *, columns: Mapping[str, Range], target: str, classes: int | None = None, groups: str = ""
) -> Rows:
    """Read `columns`, each with its usual range, and the column `target`: a class below `classes`, or any number.

    In CSV these are names in the first line. In .npz the arrays have the same names or, together, `x` (rows, columns),
    `y` and perhaps `groups`. The column `groups`, if any, says whose row it is. Ranges are known without looking at the
    data: a mean of the site's own rows would carry every row into every other. Raises `DataError`, which quotes no row.
    """
    names = _Names(columns=tuple(columns), target=target, groups=groups)
    expected = f"CSV or .npz with numbers in {', '.join((*columns, target))}"
    path = require_path(source, expected, formats=("csv", "npz"))
    try:
        table = _npz(path, expected, names) if _is_npz(source, path) else _csv(path, names)
        if len({len(values) for values in table.values()}) != 1:
            raise ValueError
    except (OSError, KeyError, TypeError, ValueError):
        raise DataError(f"{path}: cannot be read as a table; expected {expected}") from None
    inputs = np.stack([_numbers(path, name, table[name], np.float32) for name in columns], axis=1)
    values = _numbers(path, target, table[target], np.float64)
    if not (np.isfinite(inputs).all() and np.isfinite(values).all()):
        raise DataError(f"{path}: values are missing or infinite", advice="fill in or leave out those rows")
    low, high = np.array(list(columns.values()), np.float32).T
    return Rows(
        inputs=inputs,
        scaled=2 * (inputs - low) / (high - low) - 1,
        targets=values.astype(np.float32)[:, None] if classes is None else _classes(path, target, values, classes),
        groups=table[groups] if groups else None,
    )


def _is_npz(source: Source, path: Path) -> bool:
    return (source.format or path.suffix.removeprefix(".")) == "npz"


def _csv(path: Path, names: _Names) -> dict[str, npt.NDArray[Any]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file)
        rows = list(table)
    _require_columns(path, names, table.fieldnames or (), advice="columns are separated by commas, and named in line 1")
    return {name: np.array([row[name] for row in rows]) for name in names.all}


def _npz(path: Path, expected: str, names: _Names) -> dict[str, npt.NDArray[Any]]:
    found = open_npz(path, expected)
    if "x" in found and "x" not in names.all:
        if found["x"].ndim != 2 or found["x"].shape[1] != len(names.columns):
            raise ValueError
        groups = {names.groups: found["groups"]} if names.groups else {}
        return {**dict(zip(names.columns, found["x"].T, strict=True)), names.target: found["y"], **groups}
    _require_columns(path, names, found, advice="an array of the .npz file for each column, or x and y")
    return {name: found[name] for name in names.all}


def _require_columns(path: Path, names: _Names, found: Container[str], *, advice: str) -> None:
    """Says what the task wants, never what the file has: without a header its first line is a record."""
    if missing := [name for name in names.all if name not in found]:
        raise DataError(f"{path}: has no column {', '.join(missing)}", advice=advice)


def _numbers(path: Path, name: str, values: npt.NDArray[Any], kind: type[Any]) -> npt.NDArray[Any]:
    try:
        return values.astype(kind)
    except (TypeError, ValueError):
        raise DataError(
            f"{path}: column {name} has more than numbers in it",
            advice="fill in or leave out rows with text or nothing there; decimals have a point",
        ) from None


def _classes(path: Path, target: str, values: npt.NDArray[np.float64], classes: int) -> npt.NDArray[np.int64]:
    numbers = values.astype(np.int64)
    if (numbers != values).any() or (numbers < 0).any() or (numbers >= classes).any():
        raise DataError(f"{path}: {target} has values that are not classes from 0 to {classes - 1}")
    return numbers
