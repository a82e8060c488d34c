"""Ditto (Li et al., 2021): beside the common model w, every site trains one of its own and holds it near w.

min_v F_k(v) + λ/2·‖v − w_t‖²,   step v ← v − η(∇F_k(v) + λ(v − w_t))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from secure_fl.blocks import Blocks
from secure_fl.strategies.base import LocalTraining
from secure_fl.strategies.fedavg import FedAvg

if TYPE_CHECKING:
    from secure_fl.strategies.site import Site


class DittoSettings(LocalTraining):
    """FedAvg's settings, the strength λ of the pull and how long the personal model trains."""

    lam: float = Field(0.1, ge=0)
    personal_epochs: int = Field(2, ge=1, le=1000)


class Ditto(FedAvg):
    """FedAvg, and a personal model v that no other site sees; the coordinator half is FedAvg's."""

    name = "ditto"
    Settings = DittoSettings
    settings: DittoSettings

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Leaves: the change of every block of the common model.",
            "Stays: the data and a second, personal model, which is the one the site predicts with.",
        )

    def charged_epochs(self, number: int | None = None) -> int | None:  # noqa: ARG002
        """Those of w; v trains without noise."""
        return self.settings.epochs

    @property
    def private_notes(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Noise is added to all training of the common model.",
            "Without noise: the personal model. It never leaves, and nothing that leaves is made from it.",
        )

    def fit(self, site: Site) -> Blocks:
        """Algorithm 1: w_k by local SGD from w_t, as in FedAvg; v_k by SGD that is pulled towards w_t."""
        change = super().fit(site)
        with site.free():  # v is read here and by `inference` alone, and w never starts from it.
            site.load(site.received)
            common = site.snapshot()
            site.load(self.inference(site))
            site.train(penalty=site.pull(common, self.settings.lam / 2), epochs=self.settings.personal_epochs)
            site.personal = site.blocks()
        return change

    def inference(self, site: Site) -> Blocks:
        """v; until there is one, the common model, which is where v starts."""
        return site.complete(site.received, site.personal)
