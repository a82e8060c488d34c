"""Train, then personalise (Yu et al., 2020; FedAvg+FT): FedAvg, and every site fine-tunes what it received.

The fine-tuned model predicts. It is made anew from each received model, it is not kept, and nothing of it leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from secure_fl.blocks import Blocks
from secure_fl.strategies.base import LocalTraining
from secure_fl.strategies.fedavg import FedAvg

if TYPE_CHECKING:
    from secure_fl.strategies.site import Site


class TPSettings(LocalTraining):
    """FedAvg's settings and how long the received model is fine-tuned."""

    personal_epochs: int = Field(2, ge=1, le=1000)


class TrainThenPersonalise(FedAvg):
    """FedAvg to the last bit, but for the model a site predicts with."""

    name = "tp"
    Settings = TPSettings
    settings: TPSettings

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Leaves: the change of every block of the common model.",
            "Stays: the data and the fine-tuned model, which is the one the site predicts with.",
        )

    @property
    def private_notes(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Noise is added to all training of the common model.",
            "Without noise: the fine-tuned model. It is made anew from each received model and never leaves.",
        )

    def inference(self, site: Site) -> Blocks:
        """The received model after local SGD. Made aside, so that `fit` draws and returns what FedAvg's would."""
        with site.aside(), site.free():
            site.load(site.received)
            site.train(epochs=self.settings.personal_epochs)
            return site.blocks()
        return site.complete(site.received)  # Under privacy, where fine-tuning failed.
