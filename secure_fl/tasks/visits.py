"""Will a patient be back in hospital within a month? Generated patients with several visits each, in many hospitals.

The task to try protection of whole patients with: every row is a visit, and says whose. A patient's visits resemble
each other, so what protects one visit does not yet protect the patient.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from torch import nn

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks.base import Arrays, LocalData, Source, Task, TaskSettings, read_npz
from secure_fl.tasks.cutting import cut, divide
from secure_fl.tasks.metrics import Auc, Metric, Sensitivity
from secure_fl.tasks.partition import Share
from secure_fl.tasks.units import unit_names

MOST_VISITS = 8
# Of each column: a typical value, how far patients differ from it, and what one spread more means for the risk. Written
# down, so that scaling a row needs no other row.
COLUMNS: dict[str, tuple[float, float, float]] = {
    "age": (60, 15, 0.8),  # years
    "blood_pressure": (130, 20, 0.4),  # systolic, mmHg
    "heart_rate": (75, 12, 0.5),  # beats a minute
    "glucose": (110, 30, 0.6),  # mg/dl
    "creatinine": (1.0, 0.3, 0.7),  # mg/dl
    "haemoglobin": (13.5, 1.5, -0.6),  # g/dl
    "oxygen": (96, 2, -0.5),  # saturation, %
    "days": (5, 3, 0.9),  # in hospital
}
_CENTRE, _SPREAD, _RISK = np.array(list(COLUMNS.values())).T
_LIMIT = 5.0  # spreads: what lies further out counts as if it lay there


class VisitsSettings(TaskSettings):
    """How many patients each generated hospital has, and the size of the network."""

    patients: int = Field(default=200, ge=2, le=100_000)
    hidden: int = Field(default=16, ge=1, le=4096)


class Visits(Task):
    """A small network on eight measurements of a visit; a patient is a group of one to eight rows."""

    kind = "classification"
    preprocessing = "public"
    metrics: ClassVar[tuple[Metric, ...]] = (Auc(), Sensitivity(at_specificity=0.9))
    Settings = VisitsSettings
    defaults: ClassVar[Mapping[str, Any]] = {"simulation.partition": "natural"}
    # Sites are not compared by models of fewer numbers (docs/guard.md).
    defaults_with: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fedamp": {"task.hidden": 128},
        "fedcca": {"task.hidden": 128},
    }
    settings: VisitsSettings

    def model(self) -> nn.Module:
        """Blocks `features` and `head`."""
        hidden = self.settings.hidden
        return nn.Sequential(
            OrderedDict(
                features=nn.Sequential(nn.Linear(len(COLUMNS), hidden), nn.ReLU()),
                head=nn.Linear(hidden, 2),
            )
        )

    def load(self, source: Source) -> LocalData:
        """Visits on a common scale, 1 where the patient came back, and patients as groups."""
        if source.path is None and source.share is not None:
            arrays = self._generated(source.share)
            train, test = cut(source, unit_names(groups=arrays.groups))
        else:
            arrays = _own(source)
            train, test = divide(
                source, arrays.x, arrays.y, classification=True, sites=arrays.sites, groups=arrays.groups
            )
        return LocalData.cut(_scaled(arrays.x), arrays.y, train, test, groups=arrays.groups)

    def _generated(self, share: Share) -> Arrays:
        if share.partition.kind != "natural":
            raise SettingsError(
                f"partition {share.partition.kind!r}: every node of task 'visits' has patients of its own",
                advice="set simulation.partition to natural",
            )
        patients = [_patient(share, number) for number in range(self.settings.patients)]
        return Arrays(
            x=np.concatenate([x for x, _ in patients]),
            y=np.concatenate([y for _, y in patients]),
            groups=np.repeat(np.arange(len(patients)), [len(y) for _, y in patients]),
        )


def _patient(share: Share, number: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """One patient's visits, as they would be recorded. From a stream of its own: no patient is about another."""
    hospital = np.random.default_rng(np.random.SeedSequence(share.seed, spawn_key=(share.index,)))
    # Hospitals differ in whom they treat and in how they measure.
    usual = 0.4 * hospital.standard_normal(len(COLUMNS))
    rng = np.random.default_rng(np.random.SeedSequence(share.seed, spawn_key=(share.index, number)))
    visits = int(rng.integers(1, MOST_VISITS + 1))
    # Most of what is measured belongs to the patient, and a little to the day.
    person = usual + 0.9 * rng.standard_normal(len(COLUMNS))
    scaled = person + 0.4 * rng.standard_normal((visits, len(COLUMNS)))
    risk = scaled @ _RISK + 0.5 * rng.standard_normal() + 0.3 * rng.standard_normal(visits)
    return (_CENTRE + _SPREAD * scaled).astype(np.float32), (risk > 0).astype(np.int64)


def _own(source: Source) -> Arrays:
    arrays = read_npz(source, shape=(len(COLUMNS),), classes=2)
    if arrays.groups is None:
        raise DataError(
            f"{source.path}: no array groups, the patient of each visit",
            advice="add groups (n,) of patient numbers to the file",
        )
    return arrays


def _scaled(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    scaled: npt.NDArray[np.float32] = ((x - _CENTRE) / _SPREAD).clip(-_LIMIT, _LIMIT).astype(np.float32)
    return scaled
