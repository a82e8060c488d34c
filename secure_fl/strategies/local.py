"""Local training only: the baseline that every federation has to beat. Nothing leaves the site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secure_fl.blocks import Blocks, Layout
from secure_fl.strategies.base import Request, Strategy, Sum

if TYPE_CHECKING:
    from secure_fl.strategies.site import Site


class Local(Strategy):
    """A sum over no blocks: the round runs, and carries nothing of the model."""

    name = "local"
    has_global_model = False

    def request(self, layout: Layout, head: tuple[str, ...]) -> Request:  # noqa: ARG002
        """No block."""
        return Sum(blocks=())

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        return ("Leaves: nothing of the model.", "Stays: everything.")

    def charged_epochs(self, number: int | None = None) -> int | None:  # noqa: ARG002
        """None of them: nothing leaves."""
        return 0

    @property
    def private_notes(self) -> tuple[str, ...]:
        """For `study show`."""
        return ("Without noise: all training. Nothing of it leaves.",)

    def fit(self, site: Site) -> Blocks:
        """Train the site's own model a little further."""
        with site.free():
            site.load(self.inference(site))
            site.train()
            site.personal = site.blocks()
        return {}
