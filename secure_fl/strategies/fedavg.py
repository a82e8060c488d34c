"""FedAvg (McMahan et al., 2017): everybody trains the common model, the weighted mean of the changes is the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secure_fl.blocks import Blocks, Layout
from secure_fl.strategies.base import Request, Strategy, Sum

if TYPE_CHECKING:
    from secure_fl.strategies.site import Site


class FedAvg(Strategy):
    """One sum over all blocks."""

    name = "fedavg"

    def request(self, layout: Layout, head: tuple[str, ...]) -> Request:  # noqa: ARG002
        """All blocks, as a sum."""
        return Sum(blocks=layout.names)

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Leaves: the change of every block of the model.",
            "Stays: the data. There is no personal model.",
        )

    def charged_epochs(self, number: int | None = None) -> int | None:  # noqa: ARG002
        """All of them: everything that is trained leaves."""
        return self.settings.epochs

    @property
    def private_notes(self) -> tuple[str, ...]:
        """For `study show`."""
        return ("Noise is added to all training.",)

    def fit(self, site: Site) -> Blocks:
        """Local SGD from the received model."""
        site.load(site.received)
        site.train()
        return site.change(site.layout.names)
