"""FedRep (Collins et al., 2021): a common representation, and a head of one's own that is fitted to it first.

Algorithm 1: τ steps on the head h with the received body φ held, then steps on φ with the new h held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from secure_fl.blocks import Blocks
from secure_fl.strategies.base import LocalTraining
from secure_fl.strategies.fedper import FedPer

if TYPE_CHECKING:
    from secure_fl.strategies.site import Site


class FedRepSettings(LocalTraining):
    """`epochs` are the body's; the paper trains the head for ten and the body for one."""

    epochs: int = Field(1, ge=1, le=1000)
    head_epochs: int = Field(10, ge=1, le=1000)


class FedRep(FedPer):
    """FedPer's blocks, trained one after the other instead of together."""

    name = "fedrep"
    Settings = FedRepSettings
    settings: FedRepSettings
    defaults: ClassVar[Mapping[str, Any]] = {"strategy.epochs": 1}  # the paper's, whatever suits a task otherwise

    def charged_epochs(self, number: int | None = None) -> int | None:  # noqa: ARG002
        """Those of the head and those of the body: the one shapes the other."""
        return self.settings.head_epochs + self.settings.epochs

    @property
    def private_notes(self) -> tuple[str, ...]:
        """For `study show`."""
        s = self.settings
        return (
            "Noise is added to all training, of the head too, since it shapes the body that leaves.",
            f"Cost: {s.head_epochs} passes over the data for the head and {s.epochs} for the body, in every round. "
            "A smaller strategy.head_epochs leaves more of the budget to each.",
        )

    def fit(self, site: Site) -> Blocks:
        """The head to the body, then the body to the head; the head is kept."""
        site.load(self.inference(site))
        site.train(only=site.head, epochs=self.settings.head_epochs)
        site.train(only=site.received)
        site.personal = site.blocks(site.head)
        return site.change(site.received)
