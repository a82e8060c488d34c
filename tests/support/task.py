"""A task that trains in milliseconds: a line through points, different at every site."""

from __future__ import annotations

import time
from collections import OrderedDict
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import nn

from secure_fl.tasks.base import LocalData, Metrics, Preprocessing, Source, Split, Task, TaskSettings


class LineSettings(TaskSettings):
    """How slow to be, and how wide."""

    pause: float = 0.0
    marker: str = ""
    width: int = 3
    poison: str = ""


class Line(Task):
    """y = x·w on a hundred points."""

    kind: ClassVar[Literal["classification", "regression"]] = "regression"
    preprocessing = "none"
    Settings = LineSettings
    settings: LineSettings
    _site = ""

    def model(self) -> nn.Module:
        """Two linear blocks."""
        return nn.Sequential(nn.Linear(self.settings.width, 4), nn.Linear(4, 1))

    def load(self, source: Source) -> LocalData:
        """Points that depend on the site."""
        index = source.share.index if source.share else 0
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(100, self.settings.width, generator=generator)
        y = x.sum(1, keepdim=True)
        if self.settings.poison == f"site-{index + 1:02d}":
            x = x * float("nan")
        self._site = f"{index + 1:02d}"
        return LocalData(train=Split(inputs=x[:80], targets=y[:80]), test=Split(inputs=x[80:], targets=y[80:]))

    def evaluate(self, model: nn.Module, split: Split, batch_size: int = 1024) -> Metrics:
        """As any task; but the first time that it is all test rows, which is after the fetch, it takes its time."""
        if self._site and len(split) == 20:
            if self.settings.marker:
                Path(self.settings.marker).parent.joinpath(f"training-{self._site}").touch()
            time.sleep(self.settings.pause)
            self._site = ""
        return super().evaluate(model, split, batch_size)


class Three(Task):
    """Three weights in one block, and data that are there already: for models that a test writes by hand."""

    kind: ClassVar[Literal["classification", "regression"]] = "regression"
    preprocessing: ClassVar[Preprocessing] = "none"

    def model(self) -> nn.Module:
        """One block, of zeros."""
        return nn.Sequential(OrderedDict(features=_Weights()))

    def load(self, source: Source) -> LocalData:
        """The same points at every site."""
        x = torch.randn(100, 3, generator=torch.Generator().manual_seed(1))
        y = x.sum(1, keepdim=True)
        return LocalData(train=Split(inputs=x[:80], targets=y[:80]), test=Split(inputs=x[80:], targets=y[80:]))


class _Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.w)[:, None]


class Standardised(Three):
    """Scales by what it finds in the site's own rows."""

    preprocessing: ClassVar[Preprocessing] = "data-dependent"


class Normed(Three):
    """Keeps statistics of the rows in buffers."""

    def model(self) -> nn.Module:
        """With a batch norm."""
        return nn.Sequential(OrderedDict(features=nn.Linear(3, 4), norm=nn.BatchNorm1d(4), head=nn.Linear(4, 1)))
