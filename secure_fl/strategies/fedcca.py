"""FedCCA (Wang et al.): each site chooses whom it learns from, by a second model of its own that is never combined.

θ_i and φ_i train on the site's data, each with the plain loss                                            (2), (3)
B_ij = 1 − e^{−d_ij²/σ},   d_ij = ‖φ_fc,i − φ_fc,j‖                                                       (4), (5)
S_i = the sites j ≠ i with B_ij ≤ Σ_{j≠i} B_ij / 2N, at most N_max of them, the nearest                         (6)
θ_i ← Σ_{j ∈ S_i ∪ {i}} (1 − B_ij)·θ_j / Σ_{j ∈ S_i ∪ {i}} (1 − B_ij)                                           (7)

The paper's server sees every φ_i and θ_i. Here distances open at node i only, it selects and weighs its peers itself,
and the combination opens at node i only: see `protect.sketch` and `protect.combining`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from secure_fl.blocks import Blocks, BlockShape, Layout, Vector
from secure_fl.strategies.attention import AttentionStrategy, AttentionTraining

if TYPE_CHECKING:
    from secure_fl.strategies.site import Site

_MEDIANS = 10  # σ in medians of squared distances, where the study does not say


class FedCCASettings(AttentionTraining):
    """`criterion` is the factor before the mean in (6). Without `sigma`, σ is ten medians of the d² that a site sees.

    `fill`: whoever selected somebody, but fewer than a combination needs, takes the nearest others besides.
    `predicts`: with θ_i as the site trained it, as others measure, or as (7) left it, where algorithm 2 ends.
    """

    sigma: float | None = Field(None, gt=0)
    criterion: float = Field(0.5, gt=0)
    max_selected: int | None = Field(None, ge=1)  # N_max
    fill: bool = True
    encoder_epochs: int | None = Field(None, ge=1, le=1000)  # φ's; without it as many as θ's
    predicts: Literal["combined", "trained"] = "trained"


class FedCCA(AttentionStrategy):
    """Combined is θ. Kept: θ_i under the blocks' names, φ_i beside it."""

    name = "fedcca"
    Settings = FedCCASettings
    settings: FedCCASettings
    # The three nearest of those nearer than the mean. With the paper's criterion, half the mean, nobody was selected in
    # our measurements (docs/results/attention.md), and every site trained alone.
    defaults: ClassVar[Mapping[str, Any]] = {"strategy.criterion": 1.0, "strategy.max_selected": 3}

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Leaves: how every block of the site's model differs from the common start. It becomes part of mixtures, "
            "each made for one site, which only that site can read. Also a summary (sketch) of one layer of a second "
            "model that only this site trains: each other site learns how far it is from its own, and nothing else.",
            "Stays: the data and both models. The coordinator sees which peers a site selects and how much they weigh.",
            *self.explain_comparing(),
        )

    def charged_epochs(self, number: int | None = None) -> int | None:
        """Those of θ and, until sites have been compared for the last time, those of φ."""
        return self.settings.epochs + (self._encoder_epochs if number is None or self._compares_yet(number) else 0)

    @property
    def private_notes(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Noise is added to all training, of both models: others learn distances of the second one.",
            f"Cost: {self.settings.epochs} passes over the data for the first model and {self._encoder_epochs} for the "
            f"second, which stops training after round {self._last_comparison}, the last in which sites are compared.",
        )

    @property
    def _encoder_epochs(self) -> int:
        return self.settings.encoder_epochs or self.settings.epochs

    @property
    def _last_comparison(self) -> int:
        return self.settings.combine_from + (self.settings.comparisons - 1) * self.settings.compare_every

    def _compares_yet(self, number: int) -> bool:
        """Whether φ still has to tell something, in this round or a later one."""
        return number <= self._last_comparison

    def fit(self, site: Site) -> Blocks:
        """(2) from the combination (7), then (3) from where φ was: the study's common start in the first round."""
        site.load(self._combined(site))
        site.train()
        theta, change = site.blocks(), site.change(site.layout.names)

        site.load(site.initial, {name: site.personal[_phi(name)] for name in theta if _phi(name) in site.personal})
        if not site.noised or site.round is None or self._compares_yet(site.round):
            site.train(epochs=self.settings.encoder_epochs)
        site.personal = {**theta, **{_phi(name): vector for name, vector in site.blocks().items()}}
        return change

    def inference(self, site: Site) -> Blocks:
        """θ_i."""
        return self._combined(site) if self.settings.predicts == "combined" else self._trained(site)

    def _combined(self, site: Site) -> Blocks:
        """θ_i as it was combined here; where nothing was opened, as the site trained it."""
        opened = {name: site.received[name] + change for name, change in site.combination.items()}
        return {**self._trained(site), **opened}

    def _trained(self, site: Site) -> Blocks:
        return site.complete(site.personal)

    def compared(self, layout: Layout, head: tuple[str, ...]) -> tuple[str, ...]:
        """The block before the head if it is a fully connected layer, else the head.

        The former makes the representation and tells the domain; the latter tells labels.
        """
        before = [shape for shape in layout if shape.name not in head]
        return (before[-1].name,) if before and _is_linear(before[-1]) else head

    def features(self, site: Site) -> Vector:
        """φ_fc; where no training has worked yet, what φ begins from."""
        names = self.compared(site.layout, site.head)
        return np.concatenate([site.personal.get(_phi(name), site.initial[name]) for name in names])

    def attend(self, me: str, squared_distances: Mapping[str, float]) -> Mapping[str, float]:
        """1 − B_ij over S_i ∪ {i}."""
        gaps = self.dissimilarities(me, squared_distances)
        return {me: 1.0, **{peer: 1.0 - gaps[peer] for peer in self.selected(gaps)}}

    def widen(
        self, me: str, wanted: Mapping[str, float], squared_distances: Mapping[str, float], least: int
    ) -> Mapping[str, float]:
        """With `fill`, the nearest others up to the minimum. Who selected nobody keeps its own model."""
        if not self.settings.fill or len(wanted) < 2:
            return wanted
        gaps = self.dissimilarities(me, squared_distances)
        others = sorted((gap, peer) for peer, gap in gaps.items() if peer not in wanted)
        added = {peer: 1.0 - gap for gap, peer in others[: max(0, least - len(wanted))]}
        return {**wanted, **added}

    def widest_row(self, sites: int) -> int:
        """At most `max_selected` and the site itself, unless others fill up."""
        most = self.settings.max_selected
        return sites if self.settings.fill or most is None else min(sites, most + 1)

    def dissimilarities(self, me: str, squared_distances: Mapping[str, float]) -> dict[str, float]:
        """B_ij for every other j (5)."""
        others = {peer: squared for peer, squared in squared_distances.items() if peer != me}
        # Where all models are one there is no median to measure in, and nothing to measure.
        sigma = self.settings.sigma or _MEDIANS * median(others.values() or (1.0,)) or 1.0
        return {peer: -math.expm1(-squared / sigma) for peer, squared in others.items()}

    def threshold(self, gaps: Mapping[str, float]) -> float:
        """The criterion (6), for a site that has these B_ij. N counts the site itself."""
        return self.settings.criterion * sum(gaps.values()) / (len(gaps) + 1)

    def selected(self, gaps: Mapping[str, float]) -> tuple[str, ...]:
        """S_i, the nearest first; of equals, by name."""
        most = self.threshold(gaps)
        near = sorted((gap, peer) for peer, gap in gaps.items() if gap <= most)
        return tuple(peer for _, peer in near)[: self.settings.max_selected]


def _is_linear(block: BlockShape) -> bool:
    """Whether the last of its tensors are a matrix and a bias: an embedding has no bias, a convolution no matrix."""
    *_, weight, bias = (*((),) * 2, *(tensor.shape for tensor in block.tensors))
    return len(weight) == 2 and bias == weight[:1]


def _phi(block: str) -> str:
    return f"{block}: phi"
