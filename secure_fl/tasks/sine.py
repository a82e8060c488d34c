"""Sine curves with a phase and an amplitude per client: the proof of concept of PFL-DA, generated on the spot.

After section 4.1 of the paper "Personalized federated learning via domain adaptation" (PFL-DA): most clients have
100 points, a few have 5, and all are tested on 100 points of their own curve. The average of all curves is zero, so
a common model learns nothing; an encoder of each client's own that undoes the phase lets all share one decoder.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks.base import LocalData, Source, Split, Task, TaskSettings
from secure_fl.tasks.partition import Share

_TEST_POINTS = 100


class SineSettings(TaskSettings):
    """Who has how many points, and the size of the network. The defaults are the paper's, where it says."""

    rich_points: int = Field(default=100, ge=2)
    poor_points: int = Field(default=5, ge=2)
    # 10 of the paper's 500 clients.
    poor_fraction: float = Field(default=0.02, ge=0, le=1)
    noise: float = Field(default=0.0, ge=0)
    width: int = Field(default=64, ge=1, le=4096)


class Encoder(nn.Module):
    """Π(x + shift), where Π(φ) = φ − round(φ) folds the period onto [−1/2, 1/2].

    The shift is NeuralNet₁(1; β): a network of a constant, as in the paper, though one number would do.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = _layers(1, width, 1, depth=4)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1) to (n, 1)."""
        phase: Tensor = x + self.shift(torch.ones_like(x))
        return phase - torch.round(phase)


class Sine(Task):
    """Client i of N learns αᵢ sin(2π(x + θᵢ)) from its own points."""

    kind = "regression"
    preprocessing = "none"
    Settings = SineSettings
    clip = 0.25
    may_have_groups = False
    # Full batches and Adam, as in the code published with the paper; docs/results/pflda.md measures with these.
    defaults: ClassVar[Mapping[str, Any]] = {
        "simulation.partition": "natural",
        "strategy.epochs": 20,
        "strategy.batch_size": 100,
        "strategy.optimizer": "adam",
        "strategy.learning_rate": 0.003,
    }
    defaults_with: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "ditto": {"strategy.personal_epochs": 20},
        "tp": {"strategy.personal_epochs": 20},
    }
    settings: SineSettings

    def model(self) -> nn.Module:
        """Blocks `encoder` (four layers) and `decoder` (six layers)."""
        width = self.settings.width
        return nn.Sequential(OrderedDict(encoder=Encoder(width), decoder=_layers(1, width, 1, depth=6)))

    def head(self, names: tuple[str, ...]) -> tuple[str, ...]:  # noqa: ARG002
        """The encoder: here it is the first block that is personal, and the decoder that is common."""
        return ("encoder",)

    def load(self, source: Source) -> LocalData:
        """This client's training points, and 100 equally spaced points of its true curve on [0, 1]."""
        share = source.share
        if source.path is not None or share is None:
            raise DataError("task 'sine' is generated and reads no file", advice="use it in a simulation, without path")
        if share.partition.kind != "natural":
            raise SettingsError(
                f"partition {share.partition.kind!r}: every client of task 'sine' has its own curve",
                advice="set simulation.partition to natural",
            )
        rng = np.random.default_rng(np.random.SeedSequence(share.seed, spawn_key=(share.index,)))
        amplitude, phase = rng.uniform(0.8, 1.2), rng.uniform(-0.5, 0.5)
        # Equally spaced, as in the code published with the paper; rich clients see a little beyond one period.
        poor = self.is_poor(share)
        x = np.linspace(0, 1, self.settings.poor_points) if poor else np.linspace(-0.2, 1.2, self.settings.rich_points)
        y = amplitude * np.sin(2 * math.pi * (x + phase)) + rng.normal(0, self.settings.noise, len(x))
        grid = np.linspace(0, 1, _TEST_POINTS)
        truth = amplitude * np.sin(2 * math.pi * (grid + phase))
        return LocalData(
            train=Split(inputs=_column(x), targets=_column(y)), test=Split(inputs=_column(grid), targets=_column(truth))
        )

    def is_poor(self, share: Share) -> bool:
        """Whether this client has few points: the last ones do, and with `poor_fraction` above 0 at least one."""
        fraction = self.settings.poor_fraction
        poor = max(1, round(fraction * share.of)) if fraction > 0 else 0
        return share.index >= share.of - poor


def _layers(inputs: int, width: int, outputs: int, *, depth: int) -> nn.Sequential:
    """`depth` linear layers with tanh between them: smooth, like the curves to be learnt."""
    sizes = [inputs, *[width] * (depth - 1), outputs]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def _column(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Tensor:
    return torch.from_numpy(values[:, None]).float()
