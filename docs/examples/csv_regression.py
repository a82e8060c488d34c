"""Regression on a CSV file: some columns predict another."""

import csv
from collections import OrderedDict

import numpy as np
from torch import nn

from secure_fl.errors import DataError
from secure_fl.tasks.base import LocalData, Source, Task, TaskSettings
from secure_fl.tasks.partition import divide


class CsvSettings(TaskSettings):
    features: tuple[str, ...]
    target: str


class CsvRegression(Task):
    kind = "regression"
    Settings = CsvSettings
    settings: CsvSettings

    def model(self) -> nn.Module:
        features = nn.Sequential(nn.Linear(len(self.settings.features), 16), nn.ReLU())
        return nn.Sequential(OrderedDict(features=features, head=nn.Linear(16, 1)))

    def load(self, source: Source) -> LocalData:
        columns = (*self.settings.features, self.settings.target)
        if source.path is None:
            raise DataError("this site has no CSV file", advice="set datasets.ID.path, or simulation.path")
        try:
            with source.path.open(newline="") as file:
                rows = [[float(row[column]) for column in columns] for row in csv.DictReader(file)]
        except (OSError, KeyError, TypeError, ValueError):
            raise DataError(f"{source.path}: expected CSV with numbers in {', '.join(columns)}") from None
        table = np.array(rows, np.float32).reshape(-1, len(columns))
        inputs, targets = table[:, :-1], table[:, -1:]  # Targets are (n, 1), like the model's outputs.
        train, test = divide(targets, source.share, classification=False)
        scaled = (inputs - inputs[train].mean(axis=0)) / (inputs[train].std(axis=0) + 1e-6)
        return LocalData.cut(scaled, targets, train, test)
