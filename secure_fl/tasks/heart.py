"""Heart disease, present or not, in four hospitals (UCI heart disease: Cleveland, Hungarian, Switzerland, VA).

The hospitals measured different things: some columns are nearly complete in one and absent in another. What is
missing becomes a typical value and is marked as missing. Typical values and scales are those of medicine, not of any
site's rows: each patient's inputs follow from that patient's record alone.
"""

from __future__ import annotations

import csv
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from torch import nn

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks.base import Arrays, LocalData, Source, Task, TaskSettings, open_npz, require_path
from secure_fl.tasks.cutting import divide
from secure_fl.tasks.metrics import Auc, Metric, Sensitivity

COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal"),
)
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
# Codes without an order, each value a column of its own. What is missing has none of them.
_CODES: dict[str, tuple[int, ...]] = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}
# Of the other columns: the lowest and highest value that counts, a typical one for adults examined for heart disease,
# and how far people usually differ from it. From clinical experience, in round numbers, and not from these data.
_NUMBERS: dict[str, tuple[float, float, float, float]] = {
    "age": (18, 100, 55, 10),  # years
    "sex": (0, 1, 0.5, 0.5),
    "trestbps": (60, 240, 130, 20),  # systolic blood pressure at rest, mmHg
    "chol": (80, 500, 230, 50),  # serum cholesterol, mg/dl
    "fbs": (0, 1, 0.5, 0.5),
    "thalach": (50, 220, 145, 25),  # highest heart rate, beats a minute
    "exang": (0, 1, 0.5, 0.5),
    "oldpeak": (-4, 8, 1, 1),  # ST depression by exercise, mm
    "ca": (0, 3, 1, 1),  # vessels coloured by fluoroscopy
}
# Nobody alive has a blood pressure or a cholesterol of 0; some hospitals wrote it for "not measured".
_ZERO_IS_MISSING = ("trestbps", "chol")
INPUTS = len(_NUMBERS) + sum(len(codes) for codes in _CODES.values()) + len(COLUMNS)

_EXPECTED = (
    "a folder with processed.cleveland.data, processed.hungarian.data, processed.switzerland.data, processed.va.data; "
    "one such file (.data or .csv, 13 columns and the diagnosis 0 to 4, '?' where missing); or a .npz file with "
    "x (n, 13), y (n,) of 0 and 1 and optionally site (n,)"
)

_Table = npt.NDArray[np.float32]


class HeartSettings(TaskSettings):
    """Size of the network."""

    hidden: int = Field(default=16, ge=1, le=4096)


class Heart(Task):
    """A small network on 13 columns of a patient's record, each with a mark for "missing"."""

    kind = "classification"
    preprocessing = "public"
    metrics: ClassVar[tuple[Metric, ...]] = (Auc(), Sensitivity(at_specificity=0.9))
    Settings = HeartSettings
    may_have_groups = False
    public_files = ("heart_disease",)
    public_source = "UCI Machine Learning Repository, data set 45 (Heart Disease), the four processed.*.data files"
    defaults: ClassVar[Mapping[str, Any]] = {"simulation.partition": "natural", "simulation.nodes": len(HOSPITALS)}
    # Sites are not compared by models of fewer numbers (docs/guard.md).
    defaults_with: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fedamp": {"task.hidden": 32},
        "fedcca": {"task.hidden": 32},
    }
    settings: HeartSettings

    def model(self) -> nn.Module:
        """Blocks `features` and `head`."""
        hidden = self.settings.hidden
        return nn.Sequential(
            OrderedDict(
                features=nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU()),
                head=nn.Linear(hidden, 2),
            )
        )

    def load(self, source: Source) -> LocalData:
        """Rows on a common scale and their class: 0 healthy, 1 any stage of disease. `natural` divides by hospital."""
        if source.share is not None and source.share.partition.rotated:
            raise SettingsError(
                f"partition {source.share.partition.kind!r} turns images and this task has none",
                advice="use natural, iid, dirichlet or pathological",
            )
        arrays = _read(source)
        train, test = divide(source, arrays.x, arrays.y, classification=True, sites=arrays.sites)
        return LocalData.cut(prepare(arrays.x), arrays.y, train, test)


def prepare(x: _Table) -> _Table:
    """Rows (n, 13), NaN where missing, as inputs (n, 35): numbers, codes, and marks for what is missing.

    Each row by itself: no row has a part in how another is scaled or filled in.
    """
    x = x.copy()
    for name in _ZERO_IS_MISSING:
        column = x[:, COLUMNS.index(name)]
        column[column == 0] = np.nan
    low, high, centre, spread = np.array(list(_NUMBERS.values()), np.float32).T
    numbers = x[:, [COLUMNS.index(name) for name in _NUMBERS]]
    # What is missing becomes the typical value, which is zero on this scale.
    scaled = np.nan_to_num((numbers.clip(low, high) - centre) / spread)
    codes = [x[:, COLUMNS.index(name)] == code for name, values in _CODES.items() for code in values]
    return np.concatenate([scaled, np.stack(codes, axis=1), np.isnan(x)], axis=1).astype(np.float32)


# --- files ------------------------------------------------------------------------------------------------


def _read(source: Source) -> Arrays:
    path = require_path(source, _EXPECTED, formats=("data", "csv", "npz"))
    if path.is_dir():
        return _read_folder(path)
    return _read_npz(path) if path.suffix == ".npz" else _arrays(path, _read_table(path))


def _read_folder(folder: Path) -> Arrays:
    tables = []
    for hospital in HOSPITALS:
        file = folder / f"processed.{hospital}.data"
        if not file.is_file():
            raise DataError(f"{folder}: no {file.name}; expected {_EXPECTED}")
        tables.append(_read_table(file))
    sites = np.repeat(np.array(HOSPITALS), [len(table) for table in tables])
    return _arrays(folder, np.concatenate(tables), sites)


def _read_table(path: Path) -> _Table:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [[np.nan if cell.strip() == "?" else float(cell) for cell in row] for row in csv.reader(file) if row]
        return np.array(rows, np.float32).reshape(-1, len(COLUMNS) + 1)
    except (OSError, ValueError, csv.Error):
        # Without the value that did not fit: it is a patient's.
        raise DataError(f"{path}: cannot be read; expected {_EXPECTED}") from None


def _arrays(path: Path, table: _Table, sites: npt.NDArray[Any] | None = None) -> Arrays:
    diagnosis = table[:, -1]
    if not np.isin(diagnosis, range(5)).all():
        raise DataError(f"{path}: a diagnosis is missing or not 0 to 4; expected {_EXPECTED}")
    return _checked(path, table[:, :-1], (diagnosis > 0).astype(np.int64), sites)


def _read_npz(path: Path) -> Arrays:
    found = open_npz(path, _EXPECTED)
    try:
        x = found["x"].astype(np.float32, casting="same_kind")
        y = found["y"].astype(np.int64, casting="safe")
    except (KeyError, TypeError):
        raise DataError(f"{path}: an array is missing or not numeric; expected {_EXPECTED}") from None
    # `sites` may also be the list of the hospitals' names that `site` counts.
    per_row = found.get("site", found.get("sites"))
    if x.shape[1:] != (len(COLUMNS),) or y.shape != x.shape[:1] or (per_row is not None and per_row.shape != y.shape):
        raise DataError(f"{path}: x is {list(x.shape)} and y is {list(y.shape)}; expected {_EXPECTED}")
    if not np.isin(y, (0, 1)).all():
        raise DataError(f"{path}: y has values other than 0 and 1; expected {_EXPECTED}")
    return _checked(path, x, y, per_row)


def _checked(path: Path, x: _Table, y: npt.NDArray[np.int64], sites: npt.NDArray[Any] | None) -> Arrays:
    if np.isinf(x).any():
        raise DataError(f"{path}: infinite values; expected {_EXPECTED}")
    for name, codes in _CODES.items():
        column = x[:, COLUMNS.index(name)]
        # Otherwise it would silently be none of the codes and yet not missing.
        if not (np.isin(column, codes) | np.isnan(column)).all():
            raise DataError(f"{path}: column {name} has values other than {codes}; expected {_EXPECTED}")
    return Arrays(x=x, y=y, sites=sites)
