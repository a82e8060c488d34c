"""Regression on a CSV file: some columns predict another."""

import csv
from collections import OrderedDict

import numpy as np
from pydantic import Field
from torch import nn

from secure_fl.errors import DataError
from secure_fl.tasks.base import LocalData, Source, Task, TaskSettings
from secure_fl.tasks.cutting import divide


class CsvSettings(TaskSettings):
    features: tuple[str, ...]
    target: str
    # Of features: the usual lowest and highest value, known without looking at the data.
    ranges: dict[str, tuple[float, float]] = Field(default_factory=dict)
    # The column that says whose row it is, such as a patient's number.
    groups: str = ""


class CsvRegression(Task):
    kind = "regression"
    preprocessing = "public"  # Each row is scaled by itself, with numbers of the study.
    Settings = CsvSettings
    settings: CsvSettings

    def model(self) -> nn.Module:
        features = nn.Sequential(nn.Linear(len(self.settings.features), 16), nn.ReLU())
        return nn.Sequential(OrderedDict(features=features, head=nn.Linear(16, 1)))

    def load(self, source: Source) -> LocalData:
        columns, grouped = (*self.settings.features, self.settings.target), self.settings.groups
        if source.path is None:
            raise DataError("this site has no CSV file", advice="set datasets.ID.path, or simulation.path")
        try:
            with source.path.open(newline="") as file:
                rows = list(csv.DictReader(file))
            table = np.array([[float(row[column]) for column in columns] for row in rows], np.float32)
            groups = np.array([row[grouped] for row in rows]) if grouped else None
        except (OSError, KeyError, TypeError, ValueError):
            raise DataError(f"{source.path}: expected CSV with numbers in {', '.join(columns)}") from None
        table = table.reshape(-1, len(columns))
        inputs, targets = table[:, :-1], table[:, -1:]  # Targets are (n, 1), like the model's outputs.
        train, test = divide(source, inputs, targets, classification=False, groups=groups)
        # Where the study gives a range, it becomes -1 to 1. No site's own mean: one row would change all others.
        low, high = np.array([self.settings.ranges.get(name, (-1, 1)) for name in self.settings.features]).T
        scaled = 2 * (inputs - low) / (high - low) - 1
        return LocalData.cut(scaled, targets, train, test, groups=groups)
