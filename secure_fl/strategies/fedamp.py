"""FedAMP (Huang et al., 2021): a site trains near a mixture of its peers' models that favours similar ones.

u_i = (1 − Σ_{j≠i} ξ_ij)·w_i + Σ_{j≠i} ξ_ij·w_j,   ξ_ij = α·A'(‖w_i − w_j‖²),   A(x) = 1 − e^{−x/σ}       (3)–(5)
w_i = argmin_w F_i(w) + λ/(2α)·‖w − u_i‖²                                                                  (6)

The paper's server sees every w_i. Here distances open at node i only, it weighs its peers itself, and the mixture opens
at node i only: see `protect.sketch` and `protect.combining`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from secure_fl.blocks import Blocks, Vector
from secure_fl.strategies.attention import AttentionStrategy, AttentionTraining

if TYPE_CHECKING:
    from secure_fl.strategies.site import Site

_LEAST_OWN = 1 / 8  # of its mixture that a site is itself, where α is so large that nothing would be left


class FedAMPSettings(AttentionTraining):
    """Without `sigma` distances are measured in units of the median of those a site sees, and σ = 1."""

    alpha: float = Field(1.0, gt=0)
    sigma: float | None = Field(None, gt=0)
    lam: float = Field(0.1, ge=0)


class FedAMP(AttentionStrategy):
    """Combined is w. Kept: w_i."""

    name = "fedamp"
    Settings = FedAMPSettings
    settings: FedAMPSettings

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Leaves: how every block of the site's model differs from the common start. It becomes part of mixtures, "
            "each made for one site, which only that site can read. Also a summary (sketch) of the model: each other "
            "site learns how far it is from its own, and nothing else of it.",
            "Stays: the data and the site's model. The coordinator sees which peers a site weighs how much.",
            *self.explain_comparing(),
        )

    def charged_epochs(self, number: int | None = None) -> int | None:  # noqa: ARG002
        """All of them."""
        return self.settings.epochs

    @property
    def private_notes(self) -> tuple[str, ...]:
        """For `study show`."""
        return ("Noise is added to all training. The distances between sites are those of models under noise.",)

    def fit(self, site: Site) -> Blocks:
        """(6), from u_i."""
        site.load(self._mixture(site))
        centre = site.snapshot()
        site.train(penalty=site.pull(centre, self.settings.lam / (2 * self.settings.alpha)))
        site.personal = site.blocks()
        return site.change(site.layout.names)

    def inference(self, site: Site) -> Blocks:
        """w_i."""
        return site.complete(site.personal)

    def features(self, site: Site) -> Vector:
        """w_i itself, of which a sketch is made; where no training has worked yet, what it began from."""
        own = site.complete(site.personal)
        return np.concatenate([own[name] for name in site.layout.names])

    def attend(self, me: str, squared_distances: Mapping[str, float]) -> Mapping[str, float]:
        """ξ_ij for everybody, and for the site what is left, but at most a half: the guard allows no node more."""
        shares = self.attention_weights(me, squared_distances)
        others = sum(shares.values())
        return {**shares, me: min(others, max(1.0 - others, others * _LEAST_OWN / (1 - _LEAST_OWN)))}

    def attention_weights(self, me: str, squared_distances: Mapping[str, float]) -> dict[str, float]:
        """ξ_ij for every other j (4)."""
        others = {peer: distance for peer, distance in squared_distances.items() if peer != me}
        sigma, unit = self.settings.sigma, 1.0
        if sigma is None:
            sigma, unit = 1.0, median(others.values() or (1.0,)) or 1.0
        return {peer: self.settings.alpha * math.exp(-d / unit / sigma) / sigma for peer, d in others.items()}

    def _mixture(self, site: Site) -> Blocks:
        """u_i = common start + what was opened here; without it the site's own model."""
        opened = {name: site.received[name] + change for name, change in site.combination.items()}
        return {**self.inference(site), **opened}
