"""FedProx (Li et al., 2020): FedAvg whose local objective pulls towards the received model.

min_w F_k(w) + μ/2·‖w − w_t‖²,   gradient ∇F_k(w) + μ(w − w_t)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from secure_fl.blocks import Blocks
from secure_fl.strategies.base import LocalTraining
from secure_fl.strategies.fedavg import FedAvg

if TYPE_CHECKING:
    from secure_fl.strategies.site import Site


class FedProxSettings(LocalTraining):
    """FedAvg's settings and the strength of the pull."""

    mu: float = Field(0.01, ge=0)


class FedProx(FedAvg):
    """FedAvg with a proximal term; the coordinator half is the same."""

    name = "fedprox"
    Settings = FedProxSettings
    settings: FedProxSettings

    def charged_epochs(self, number: int | None = None) -> int | None:  # noqa: ARG002
        """All of them: the pull depends on weights only and costs nothing."""
        return self.settings.epochs

    def fit(self, site: Site) -> Blocks:
        """Local SGD on the proximal objective."""
        site.load(site.received)
        site.train(penalty=site.pull(site.snapshot(), self.settings.mu / 2))
        return site.change(site.layout.names)
