"""FedALA (Zhang et al., 2023): before it trains, a site takes from the common model what lowers its own loss.

Θ̂_i = Θ_i + (Θ − Θ_i) ⊙ W_i,   W ← clip(W − η·∇_Θ̂ L(Θ̂) ⊙ (Θ − Θ_i), 0, 1)             (equations 4 to 6)

Θ is the received model, Θ_i the site's model after its last training. W has an element per parameter of the highest
`layers` blocks and is 1 below them: there, the common model is taken whole.
"""

from __future__ import annotations

import math
from statistics import pstdev
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from secure_fl.blocks import Blocks, Vector
from secure_fl.strategies.base import LocalTraining
from secure_fl.strategies.fedavg import FedAvg

if TYPE_CHECKING:
    from torch import Tensor

    from secure_fl.strategies.site import Site


class FedALASettings(LocalTraining):
    """FedAvg's settings and those of the local aggregation."""

    layers: int = Field(1, ge=1)  # p: how many blocks, from the head down, are aggregated element by element
    fraction: float = Field(0.8, gt=0, le=1)  # s: of the local samples, drawn anew in every round
    weight_rate: float = Field(1.0, gt=0)  # η of the steps on W
    threshold: float = Field(0.1, gt=0)  # the first time, W is learnt until the loss varies less than this ...
    window: int = Field(10, ge=2)  # ... over so many epochs ...
    start_epochs: int = Field(50, ge=1, le=1000)  # ... or for so many epochs


class FedALA(FedAvg):
    """FedAvg from a starting point of one's own. Kept: Θ_i under the blocks' names, W_i beside them."""

    name = "fedala"
    Settings = FedALASettings
    settings: FedALASettings

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Leaves: how every block of the site's model differs from the common model after training.",
            "Stays: the data, the site's own model and its weights per parameter. It predicts with a mixture of "
            "its own and the common model.",
        )

    def charged_epochs(self, number: int | None = None) -> int | None:  # noqa: ARG002
        """All of them."""
        return self.settings.epochs

    @property
    def private_notes(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Noise is added to all training.",
            "Off: the local weights per parameter. They would be learnt from the data and shape what leaves, so under "
            "differential privacy this is FedAvg: each site starts from the common model as it is.",
        )

    def fit(self, site: Site) -> Blocks:
        """Aggregate locally, then local SGD from there; all of it leaves, as a change of the common model."""
        weights = self._aggregate(site)
        site.train()
        site.personal = {} if site.privacy is not None else {**site.blocks(), **weights}
        return site.change(site.layout.names)

    def inference(self, site: Site) -> Blocks:
        """Θ̂_i. Made aside, so that `fit` makes the same one again."""
        with site.aside():
            self._aggregate(site)
            return site.blocks()

    def _aggregate(self, site: Site) -> dict[str, Vector]:
        """Put Θ̂_i into the model, and return W_i as it is to be kept."""
        if site.privacy is not None:
            site.load(site.received)
            return {}
        higher = site.layout.names[-self.settings.layers :]
        site.load({name: site.personal[name] for name in higher if name in site.personal})
        own = site.snapshot(higher)
        site.load(site.received)
        if not site.personal:
            return {}  # The first round: there is no Θ_i to mix with.
        common = site.snapshot(higher)
        apart = [theta - theta_i for theta, theta_i in zip(common, own, strict=True)]
        known = _key(0) in site.personal
        weights = [
            gap.new_tensor(site.personal[_key(i)]).view_as(gap) if known else gap.new_ones(gap.shape)
            for i, gap in enumerate(apart)
        ]
        self._learn(site, weights, own, apart, higher, epochs=1 if known else self.settings.start_epochs)
        return {_key(i): w.cpu().numpy().astype(np.float32).ravel() for i, w in enumerate(weights)}

    def _learn(
        self,
        site: Site,
        weights: list[Tensor],
        own: list[Tensor],
        apart: list[Tensor],
        higher: tuple[str, ...],
        *,
        epochs: int,
    ) -> None:
        """Steps on W over a part of the data; leaves Θ̂ in the model. Evaluation mode: only W is learnt here."""

        def mixture() -> list[Tensor]:
            return [theta_i + gap * w for theta_i, gap, w in zip(own, apart, weights, strict=True)]

        site.model.eval()
        site.restore(mixture(), higher)
        ends: list[float] = []
        rows = site.draw(self.settings.fraction)
        for _ in range(epochs):
            for batch in site.batches(1, rows=rows):
                site.model.zero_grad(set_to_none=True)
                loss = site.backward(batch)
                for w, gap, parameter in zip(weights, apart, site.parameters(higher), strict=True):
                    if parameter.grad is not None:
                        w.sub_(self.settings.weight_rate * parameter.grad * gap).clamp_(0, 1)
                site.restore(mixture(), higher)
            # One loss per epoch, that of its last batch, as in the authors' code.
            ends.append(loss)
            if not math.isfinite(loss):
                break  # Such a batch moves nothing, and a spread over it means nothing.
            if len(ends) > self.settings.window and pstdev(ends[-self.settings.window :]) < self.settings.threshold:
                break


def _key(index: int) -> str:
    return f"weights of parameter {index}"
