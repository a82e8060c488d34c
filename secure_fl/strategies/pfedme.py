"""pFedMe (T. Dinh et al., 2020): the common model minimises the sites' Moreau envelopes.

F_k(w) = min_θ f_k(θ) + λ/2·‖θ − w‖²,   ∇F_k(w) = λ(w − θ̂_k(w))                     (equations 2, 3, 5)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from secure_fl.blocks import Blocks
from secure_fl.strategies.base import Aggregate, LocalTraining, State
from secure_fl.strategies.fedavg import FedAvg

if TYPE_CHECKING:
    from secure_fl.strategies.site import Site, Step


class PFedMeSettings(LocalTraining):
    """`learning_rate` and the optimizer are those of the inner problem, which finds θ."""

    lam: float = Field(15.0, gt=0)
    inner_steps: int = Field(5, ge=1, le=1000)  # K: steps on one batch
    outer_rate: float = Field(0.05, gt=0)  # η, of the steps on w; the paper has 0.005, for hundreds of rounds
    beta: float = Field(1.0, gt=0)  # of the coordinator's step


class PFedMe(FedAvg):
    """The common model w takes part; the personal model θ stays."""

    name = "pfedme"
    Settings = PFedMeSettings
    settings: PFedMeSettings

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Leaves: the change of every block of the common model.",
            "Stays: the data and the personal model θ, which is the one the site predicts with.",
        )

    def charged_epochs(self, number: int | None = None) -> int | None:  # noqa: ARG002
        """K for each of the epochs: every inner step is one on a sample of its own."""
        return self.settings.epochs * self.settings.inner_steps

    @property
    def private_notes(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Noise is added to all training. The personal model shapes the common one, which leaves.",
            f"Cost: {self.settings.inner_steps} passes over the data for every epoch, since each of the "
            "strategy.inner_steps on one batch is here a step on a sample of its own.",
        )

    # --- node half ------------------------------------------------------------------------------------------

    def fit(self, site: Site) -> Blocks:
        """Algorithm 1: for every batch, K steps towards θ̂(w), then w ← w − ηλ(w − θ). θ goes on from batch to batch."""
        s = self.settings
        site.load(site.received)
        theta, common = site.parameters(), site.snapshot()
        penalty = site.pull(common, s.lam / 2)  # towards w as it moves
        optimizer = site.optimizer()
        site.model.train()
        for inner in self._batches(site):
            for batch in inner:
                site.descend(optimizer, batch, penalty=penalty)
            for w, personal in zip(common, theta, strict=True):
                w.sub_(s.outer_rate * s.lam * (w - personal.detach()))
        site.personal = site.blocks()
        site.restore(common)
        return site.change(site.layout.names)

    def _batches(self, site: Site) -> Iterator[tuple[Step, ...]]:
        """The K batches of each outer step: one of them K times. Under noise K samples: steps on one cost far more."""
        s = self.settings
        if site.noised:
            samples = site.batches(s.epochs * s.inner_steps)
            yield from zip(*[samples] * s.inner_steps, strict=True)
        else:
            for batch in site.batches():
                yield (batch,) * s.inner_steps

    def inference(self, site: Site) -> Blocks:
        """θ of the last round; until there is one, the common model."""
        return site.complete(site.received, site.personal)

    # --- coordinator half -----------------------------------------------------------------------------------

    def step(self, current: Blocks, aggregate: Aggregate, state: State) -> tuple[Blocks, State]:
        """w ← (1 − β)·w + β·mean of w_k = w + β·mean of the changes. A block that was not opened keeps its value."""
        beta = np.float32(self.settings.beta)
        moved = {
            name: vector + beta * aggregate[name].mean if name in aggregate else vector
            for name, vector in current.items()
        }
        return moved, state

    def largest_step(self, largest_mean: float) -> float:
        """β times the mean."""
        return self.settings.beta * largest_mean
