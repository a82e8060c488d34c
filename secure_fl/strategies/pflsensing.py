"""pFL-Sensing: a customised model v̄, mixed anew in every round from a local and an intermediate model.

w trains from the common model with inverse class frequencies as weights (3)–(6), and its change leaves.
v trains from the last v̄ with the plain loss (7)–(8).
v̄_h = α_h·v_h + (1 − α_h)·w_h for every hierarchy h, which is a block here (9), with
α_h ← clip(α_h − η⟨v_h − w_h, ∇_{v̄_h} f(v̄)⟩, 0, 1)                                     (10)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from secure_fl.blocks import Blocks, Vector
from secure_fl.strategies.base import LocalTraining
from secure_fl.strategies.fedavg import FedAvg

if TYPE_CHECKING:
    from torch import Tensor

    from secure_fl.strategies.site import Loss, Site

START = 0.5  # α in the first round, for every hierarchy
_ALPHA, _ROUNDS = "alpha", "rounds taken"  # what the site remembers


class PFLSensingSettings(LocalTraining):
    """FedAvg's settings and those of the adaptive weights."""

    alpha_rate: float = Field(0.05, gt=0)  # η of (10)
    alpha_epochs: int = Field(1, ge=1, le=1000)
    top_k: int = Field(1, ge=0)  # how many hierarchies of v are kept as they are
    period: int = Field(5, ge=1)  # Q: every so many rounds, all weights are computed


class PFLSensing(FedAvg):
    """Only w takes part in the sum, as in FedAvg; v, v̄, α and the class counts stay."""

    name = "pflsensing"
    Settings = PFLSensingSettings
    settings: PFLSensingSettings
    notes: ClassVar[Mapping[str, str]] = {
        "alpha": "α of each block: 1 is the intermediate model v, 0 the local model w"
    }

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Leaves: the change of every block of the common model, trained with each class weighing the same.",
            "Stays: the data, the number of samples per class, the customised model and its weights per block.",
        )

    def charged_epochs(self, number: int | None = None) -> int | None:  # noqa: ARG002
        """Those of w; v and α train without noise."""
        return self.settings.epochs

    @property
    def private_notes(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Noise is added to all training of the common model. Every record weighs the same: how many a site has of "
            "each class is private.",
            "Without noise: the customised model and its weights per block. They never leave, and nothing that leaves "
            "is made from them.",
        )

    def fit(self, site: Site) -> Blocks:
        """Training phase for w and v, then aggregation phase for v̄."""
        site.load(site.received)
        site.train(loss=self._balanced(site))
        local = site.blocks()
        change = site.change(site.layout.names)

        with site.free():
            self._customise(site, local)
        return change

    def _customise(self, site: Site, local: Blocks) -> None:
        """(7) to (11): v, α and v̄, of which nothing leaves."""
        site.load(self.inference(site))
        site.train()
        intermediate = site.blocks()

        # In the model's order, which what was kept need not have: of equals, the earlier is retained.
        kept = site.state.get(_ALPHA, {})
        alpha = {name: kept.get(name, START) for name in site.layout.names}
        rounds = site.state.get(_ROUNDS, 0)
        retained = () if rounds % self.settings.period == 0 else top(alpha, self.settings.top_k)
        alpha = self._adapt(site, alpha, intermediate, local, retained)
        site.note("alpha", alpha)
        site.personal = mix(alpha, intermediate, local, retained)
        site.state = {_ALPHA: alpha, _ROUNDS: rounds + 1}

    def inference(self, site: Site) -> Blocks:
        """v̄; until there is one, the common model, which is where v starts."""
        return site.complete(site.received, site.personal)

    def _balanced(self, site: Site) -> Loss | None:
        """(5): the task's loss with weight μ_j for class j; where there are no classes, the task's loss.

        Under noise, too: class counts are private, and one record more would change the weight of every other.
        """
        if site.task.kind != "classification" or site.noised:
            return None
        weights = class_weights(site.data.train.targets)

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            # A task's loss is the mean of a batch. Class by class, Σ_j μ_j·(n_j/n)·mean_j is the mean of μ_y·ℓ.
            total = outputs.new_zeros(())
            for label, weight in weights.items():
                rows = targets == label
                if count := int(rows.sum()):
                    total = total + weight * count / len(targets) * site.task.loss(outputs[rows], targets[rows])
            return total

        return loss

    def _adapt(
        self, site: Site, alpha: Mapping[str, float], v: Blocks, w: Blocks, retained: Collection[str]
    ) -> dict[str, float]:
        """(10), a step per batch for every hierarchy that is not retained: one scalar for weights and biases together.

        The chain rule goes through v̄ only; v and w are as training left them. In evaluation mode, since v̄ is taken
        as it would predict, and a step must not move running statistics.
        """
        alpha = dict(alpha)
        moving = [name for name in site.layout.names if name not in retained]
        site.load(w)
        ends = {name: site.snapshot((name,)) for name in moving}
        site.load(v)
        apart = {name: [a - b for a, b in zip(site.snapshot((name,)), ends[name], strict=True)] for name in moving}
        site.model.eval()
        for batch in site.batches(self.settings.alpha_epochs) if moving else ():
            site.load(mix(alpha, v, w, retained))
            site.model.zero_grad(set_to_none=True)
            site.backward(batch)
            for name in moving:
                pairs = zip(apart[name], site.parameters((name,)), strict=True)
                slope = sum(float((gap * p.grad).sum()) for gap, p in pairs if p.grad is not None)
                if math.isfinite(slope):
                    alpha[name] = min(max(alpha[name] - self.settings.alpha_rate * slope, 0.0), 1.0)
        return alpha


def class_weights(targets: Tensor) -> dict[int, float]:
    """μ_j = (m/m_j)/C over the C classes a site has: (4), divided by C so that a sample weighs 1 on average."""
    labels, counts = np.unique(targets.numpy(), return_counts=True)
    pairs = zip(labels.tolist(), counts.tolist(), strict=True)
    return {label: len(targets) / count / len(labels) for label, count in pairs}


def mix(alpha: Mapping[str, float], v: Blocks, w: Blocks, retained: Collection[str] = ()) -> dict[str, Vector]:
    """(9): v̄_h = α_h·v_h + (1 − α_h)·w_h; the retained hierarchies are v's, as they are (11)."""
    return {
        name: v[name] if name in retained else np.float32(alpha[name]) * v[name] + np.float32(1 - alpha[name]) * w[name]
        for name in v
    }


def top(alpha: Mapping[str, float], k: int) -> tuple[str, ...]:
    """(11): the k hierarchies with the largest α; of equals, the earlier."""
    return tuple(sorted(alpha, key=lambda name: -alpha[name])[:k])
