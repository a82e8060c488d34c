"""How one site trains under differential privacy: constants that are fixed before the data are seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from secure_fl.privacy.events import NoisySteps


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """Everything that noise, sampling and clipping depend on. Nothing in it is computed from the data."""

    unit: Literal["record", "group"]
    units: int  # the number that the site declares, rounded: the true one is private
    sampling: float  # q
    noise: float  # σ, in multiples of the clip
    clip: float  # the largest norm of one unit's gradient
    epoch_steps: int  # steps that stand for one pass over the data
    group_rows: int = 1  # with "group": how many rows of one group count at most

    def cost(self, epochs: int) -> tuple[NoisySteps, ...]:
        """What so many passes over the data cost."""
        if epochs == 0:
            return ()
        return (NoisySteps(sampling=self.sampling, noise=self.noise, steps=epochs * self.epoch_steps),)
