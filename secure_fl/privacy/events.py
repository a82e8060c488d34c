"""What training under noise costs, in the terms from which ε is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class NoisySteps:
    """So many steps, each over a fresh Poisson sample of the units, with Gaussian noise on the sum of their gradients.

    `noise` is the standard deviation in multiples of the largest norm that one unit can have.
    """

    sampling: float  # q: how likely a unit is in a step's sample
    noise: float  # σ
    steps: int

    def __post_init__(self) -> None:
        if not (0 < self.sampling <= 1 and 0 < self.noise < float("inf") and self.steps > 0):
            raise ValueError("steps need a sampling rate in (0, 1], a finite noise above 0, and at least one step")

    def facts(self) -> dict[str, Any]:
        """For the ledger."""
        return {"sampling": self.sampling, "noise": self.noise, "steps": self.steps}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """The inverse; raises `ValueError`, `KeyError` or `TypeError` for anything else."""
        return cls(sampling=float(facts["sampling"]), noise=float(facts["noise"]), steps=int(facts["steps"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class NonPrivate:
    """Something was released without noise: from here on nothing bounds what all releases together say about a unit."""


Event: TypeAlias = NoisySteps | NonPrivate


def merged(events: Iterable[NoisySteps]) -> tuple[NoisySteps, ...]:
    """The same cost with one entry for each (sampling, noise), sorted: what composes to the same, written shortest."""
    steps: Counter[tuple[float, float]] = Counter()
    for event in events:
        steps[event.sampling, event.noise] += event.steps
    return tuple(NoisySteps(sampling=q, noise=sigma, steps=count) for (q, sigma), count in sorted(steps.items()))
