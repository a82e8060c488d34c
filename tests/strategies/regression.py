"""A task small enough to do by hand: y ≈ h·(b·x), two weights in the body and one in the head."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from secure_fl.blocks import Blocks, Vector
from secure_fl.errors import DataError
from secure_fl.strategies.base import Strategy
from secure_fl.strategies.site import Site
from secure_fl.tasks.base import LocalData, Source, Split, Task, TaskSettings
from secure_fl.tasks.model_blocks import initial_blocks

X = np.array([[1.0, 2.0], [-1.0, 0.5], [0.0, 1.5], [2.0, -1.0]])
Y = np.array([[1.0], [2.0], [-1.0], [0.5]])


class Regression(Task):
    """Two linear maps without bias, squared error."""

    kind = "regression"

    def model(self) -> nn.Module:
        return nn.Sequential(OrderedDict(body=nn.Linear(2, 1, bias=False), head=nn.Linear(1, 1, bias=False)))

    def load(self, source: Source) -> LocalData:
        raise DataError("this task is given its data")


TASK = Regression(TaskSettings())
LAYOUT, INITIAL = initial_blocks(TASK, 0)


def split(y: npt.NDArray[np.float64] = Y) -> Split:
    """The data, or the same inputs with other targets."""
    return Split(inputs=torch.tensor(X, dtype=torch.float32), targets=torch.tensor(y, dtype=torch.float32))


def site(
    strategy: Strategy,
    *,
    received: Blocks,
    personal: Blocks | None = None,
    combination: Blocks | None = None,
    train: Split | None = None,
    seed: int = 0,
) -> Site:
    """A site in one round of `strategy`."""
    data = LocalData(train=train or split(), test=split())
    return Site(
        task=TASK,
        data=data,
        training=strategy.settings,
        initial=INITIAL,
        received=received,
        personal=personal or {},
        combination=combination or {},
        seed=seed,
    )


@dataclass(frozen=True)
class Weights:
    """The three weights in float64, with the gradient written out."""

    body: npt.NDArray[np.float64]
    head: float

    @classmethod
    def of(cls, blocks: Mapping[str, Vector]) -> Weights:
        """From blocks."""
        return cls(blocks["body"].astype(np.float64), float(blocks["head"][0]))

    def gradient(self) -> Weights:
        """∇F of F = mean (h·(b·x) − y)²."""
        inner = X @ self.body
        slope = 2 / len(X) * (self.head * inner - Y[:, 0])
        return Weights(self.head * X.T @ slope, float(slope @ inner))

    def plus(self, other: Weights, factor: float) -> Weights:
        """self + factor·other."""
        return Weights(self.body + factor * other.body, self.head + factor * other.head)

    def flat(self) -> list[float]:
        """Body, then head."""
        return [*self.body.tolist(), self.head]
