"""FedOpt with Adam, FedAdam (Reddi et al., 2021): the mean of the changes is a gradient that the coordinator follows.

m ← β1·m + (1 − β1)·Δ,   v ← β2·v + (1 − β2)·Δ²,   w ← w + η·m/(√v + τ)          (Algorithm 2; v begins with τ²)

How far can that move a coordinate? With Δ_i the mean in step i, v_t ≥ (1 − β2)·Σ β2^(t−i)·Δ_i², and by Cauchy–Schwarz

|m_t| = (1 − β1)·|Σ (β1/√β2)^(t−i) · √β2^(t−i)·Δ_i| ≤ (1 − β1)/√((1 − β2)·(1 − β1²/β2)) · √v_t     if β1² < β2.

So the step is at most η times that factor, 2.35 with the usual β, however large the means are.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from secure_fl.blocks import DTYPE, Blocks, Vector
from secure_fl.strategies.base import Aggregate, LocalTraining, State
from secure_fl.strategies.fedavg import FedAvg


class FedOptSettings(LocalTraining):
    """FedAvg's settings and those of the coordinator's Adam."""

    server_rate: float = Field(0.03, gt=0, le=10)  # η: about as far as a coordinate moves in a round
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.99, gt=0, lt=1)
    tau: float = Field(1e-3, gt=0, le=1)  # the smaller, the less the size of a mean matters

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.beta1**2 >= self.beta2:
            raise ValueError("beta1² must be below beta2: otherwise nothing bounds how far a step of Adam goes")
        return self


class FedOpt(FedAvg):
    """FedAvg at the site; Adam at the coordinator, on opened means alone."""

    name = "fedopt"
    Settings = FedOptSettings
    settings: FedOptSettings

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            *super().explain(),
            "The coordinator follows the mean of all changes with Adam: it remembers two numbers per parameter, made "
            "of means it opened.",
        )

    def step(self, current: Blocks, aggregate: Aggregate, state: State) -> tuple[Blocks, State]:
        """One step of Adam for every block that was opened; the others, and what is remembered of them, stay."""
        settings = self.settings
        edge = np.float32(self._factor)
        moved, vectors = dict(current), dict(state.vectors)
        for name in current:
            if name not in aggregate:
                continue
            mean = aggregate[name].mean
            first = vectors.get(_first(name), np.zeros(mean.shape, DTYPE))
            second = vectors.get(_second(name), np.full(mean.shape, settings.tau**2, DTYPE))
            first = _towards(first, mean, settings.beta1)
            second = _towards(second, np.square(mean), settings.beta2)
            step = (first / (np.sqrt(second) + np.float32(settings.tau))).astype(DTYPE, copy=False)
            # What rounding adds to the bound above is taken off again: sites check it.
            np.clip(step, -edge, edge, out=step)
            moved[name] = current[name] + np.float32(settings.server_rate) * step
            vectors[_first(name)], vectors[_second(name)] = first, second
        return moved, State(values=state.values, vectors=vectors)

    def largest_step(self, largest_mean: float) -> float:  # noqa: ARG002
        """η·(1 − β1)/√((1 − β2)(1 − β1²/β2)), as derived above."""
        return self.settings.server_rate * self._factor

    @property
    def _factor(self) -> float:
        settings = self.settings
        spread = (1 - settings.beta2) * (1 - settings.beta1**2 / settings.beta2)
        return (1 - settings.beta1) / math.sqrt(spread)


def _towards(so_far: Vector, news: Vector, beta: float) -> Vector:
    """β·so_far + (1 − β)·news, in float32."""
    return np.float32(beta) * so_far + np.float32(1 - beta) * news


def _first(block: str) -> str:
    return f"{block}: momentum"


def _second(block: str) -> str:
    return f"{block}: variance"
