"""Printing speed from vibration on six 3D printers (Chou and Okwudire, 2021; section 4.3 of the PFL-DA paper).

The printers are of one type, but each was assembled and set up by its owner: the curves of speed over vibration look
alike and are shifted against each other. An encoder of each printer's own aligns them, and the decoder is common.
"""

from __future__ import annotations

import csv
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks.base import LocalData, Source, Task, TaskSettings, open_npz, require_path
from secure_fl.tasks.cutting import cut, held
from secure_fl.tasks.partition import Indices
from secure_fl.tasks.units import unit_names

_EXPECTED = (
    "a .csv file with columns speed_setting, speed, acceleration_1, acceleration_2 and optionally printer, or a .npz "
    "file with data (n, 3) of speed and two accelerations, speed_setting (n,) and optionally printer (n,)"
)
_COLUMNS = ("speed", "acceleration_1", "acceleration_2", "speed_setting")
_SPEED_UNIT = 50.0  # mm/s: brings the targets to about unit size

_Floats = npt.NDArray[np.float64]


class PrintersSettings(TaskSettings):
    """Which family of encoder and decoder (table 4 of the paper), and which experiment is kept for testing."""

    family: Literal["sigmoid", "gaussian", "network"] = "sigmoid"
    # Gaussian basis functions, or the width of the networks.
    size: int = Field(default=16, ge=1, le=4096)
    # The speed setting whose rows are the test set; 0 tests on rows at random instead.
    test_speed: int = Field(default=30, ge=0)


class Gaussians(nn.Module):
    """Σₖ wₖ exp(−(x − μₖ)² / 2σₖ²)."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count) / count**0.5)
        # Over the range of the vibrations, each wide enough to reach its neighbours: a speed that was left out for
        # testing lies between others, and must not fall into a gap.
        self.mean = nn.Parameter(torch.linspace(0, 2.5, count))
        self.log_width = nn.Parameter(torch.full((count,), 5 / count).log())

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1) to (n, 1)."""
        basis = torch.exp(-((x - self.mean) ** 2) / (2 * torch.exp(self.log_width) ** 2))
        return basis @ self.weight[:, None]


class Printers(Task):
    """The speed at a given vibration, √(a₁² + a₂²)."""

    kind = "regression"
    preprocessing = "public"
    Settings = PrintersSettings
    may_have_groups = False
    public_files = ("printer3d_vibration.npz", "printers.csv")
    public_source = "Chou and Okwudire, 2021: vibrations of six 3D printers"
    # As in the code published with the PFL-DA paper: full batches and Adam.
    defaults: ClassVar[Mapping[str, Any]] = {
        "simulation.partition": "natural",
        "simulation.nodes": 6,
        "strategy.epochs": 10,
        "strategy.batch_size": 1024,
        "strategy.optimizer": "adam",
        "strategy.learning_rate": 0.003,
        "strategy.weight_decay": 0.0003,
    }
    defaults_with: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "ditto": {"strategy.personal_epochs": 10, "strategy.lam": 0.9},
        "pflda": {"strategy.lam": 0.9},
        "tp": {"strategy.personal_epochs": 10},
    }
    settings: PrintersSettings

    def model(self) -> nn.Module:
        """Blocks `encoder` and `decoder`."""
        size = self.settings.size
        encoder: nn.Module
        decoder: nn.Module
        if self.settings.family == "network":
            encoder, decoder = _network(size), _network(size)
        else:
            # All printers start from the measured vibration itself.
            encoder = _identity()
            # Speed rises with vibration; from a falling curve, training can end far from the data.
            sigmoid = self.settings.family == "sigmoid"
            decoder = nn.Sequential(nn.Sigmoid(), _identity()) if sigmoid else Gaussians(size)
        return nn.Sequential(OrderedDict(encoder=encoder, decoder=decoder))

    def head(self, names: tuple[str, ...]) -> tuple[str, ...]:  # noqa: ARG002
        """The encoder: here it is the first block that is personal, and the decoder that is common."""
        return ("encoder",)

    def load(self, source: Source) -> LocalData:
        """Vibrations (n, 1) and speeds (n, 1) in units of 50 mm/s. `natural` divides by printer."""
        if source.share is not None and source.share.partition.rotated:
            raise SettingsError(
                f"partition {source.share.partition.kind!r} turns images and this task has none",
                advice="use natural or iid",
            )
        prints = _read(source)
        vibration = np.hypot(prints.data[:, 1], prints.data[:, 2])[:, None]
        speed = prints.data[:, :1] / _SPEED_UNIT
        rows = held(source, speed, classification=False, sites=prints.printer)
        return LocalData.cut(vibration, speed, *self._cut(prints, rows, source))

    def _cut(self, prints: _Prints, rows: Indices, source: Source) -> tuple[Indices, Indices]:
        tested = self.settings.test_speed
        if tested == 0:
            train, test = cut(source, unit_names(prints.data[rows], prints.setting[rows]))
            return rows[train], rows[test]
        is_test = prints.setting[rows] == tested
        if is_test.all() or not is_test.any():
            raise DataError(
                f"{int(is_test.sum())} of this site's {len(rows)} rows were printed at the test speed {tested}",
                advice="set task.test_speed to one of several speeds in the data, or to 0 to test on rows at random",
            )
        return rows[~is_test], rows[is_test]


def _identity() -> nn.Linear:
    linear = nn.Linear(1, 1)
    nn.init.ones_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def _network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1))


# --- files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Prints:
    """Row by row: speed and two accelerations, the speed the operator set, and the printer where known."""

    data: _Floats
    setting: _Floats
    printer: npt.NDArray[Any] | None


def _read(source: Source) -> _Prints:
    path = require_path(source, _EXPECTED, formats=("csv", "npz"))
    prints = _read_npz(path) if path.suffix == ".npz" else _read_csv(path)
    shapes_fit = prints.data.ndim == 2 and prints.data.shape[1] == 3 and prints.setting.shape == (len(prints.data),)
    if not shapes_fit or (prints.printer is not None and prints.printer.shape != prints.setting.shape):
        raise DataError(f"{path}: an array has another shape; expected {_EXPECTED}")
    if not np.isfinite(prints.data).all():
        raise DataError(f"{path}: missing or infinite values; expected {_EXPECTED}")
    return prints


def _read_npz(path: Path) -> _Prints:
    found = open_npz(path, _EXPECTED)
    try:
        return _Prints(
            data=found["data"].astype(np.float64, casting="same_kind"),
            setting=found["speed_setting"].astype(np.float64, casting="same_kind"),
            printer=found.get("printer"),
        )
    except (KeyError, TypeError):
        raise DataError(f"{path}: an array is missing or not numeric; expected {_EXPECTED}") from None


def _read_csv(path: Path) -> _Prints:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        table = np.array([[float(row[name]) for name in _COLUMNS] for row in rows]).reshape(-1, len(_COLUMNS))
        printer = np.array([row["printer"] for row in rows]) if rows and "printer" in rows[0] else None
    except (OSError, KeyError, TypeError, ValueError, csv.Error):
        raise DataError(f"{path}: cannot be read; expected {_EXPECTED}") from None
    return _Prints(data=table[:, :3], setting=table[:, 3], printer=printer)
