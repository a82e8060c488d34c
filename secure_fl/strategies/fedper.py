"""FedPer (Arivazhagan et al., 2019): a common body, and a head that never leaves the site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secure_fl.blocks import Blocks, Layout
from secure_fl.strategies.base import Request, Strategy, Sum

if TYPE_CHECKING:
    from secure_fl.strategies.site import Site


class FedPer(Strategy):
    """One sum over the body's blocks."""

    name = "fedper"
    has_global_model = False

    def request(self, layout: Layout, head: tuple[str, ...]) -> Request:
        """Every block but the head, as a sum."""
        return Sum(blocks=tuple(name for name in layout.names if name not in head))

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Leaves: the change of the body's blocks.",
            "Stays: the data and the head, the last block(s).",
        )

    def charged_epochs(self, number: int | None = None) -> int | None:  # noqa: ARG002
        """All of them: the head shapes the body that leaves."""
        return self.settings.epochs

    @property
    def private_notes(self) -> tuple[str, ...]:
        """For `study show`."""
        return ("Noise is added to all training, of the head too, since it shapes the body that leaves.",)

    def fit(self, site: Site) -> Blocks:
        """Train body and head together, keep the head."""
        site.load(self.inference(site))
        site.train()
        site.personal = site.blocks(site.head)
        return site.change(site.received)
