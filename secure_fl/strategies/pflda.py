"""PFL-DA (Shi & Kontar, 2023): a personal encoder Φ_β, a global decoder g_w, and a personal decoder g_γ held near it.

min_{β,w} F_i(β, w) = loss(g_w ∘ Φ_β)                                                   (5)
min_γ   F̃_i(γ) = loss(g_γ ∘ Φ_β) + λ‖γ − w‖²                                           (4)

The encoder carries a site's own domain to features that all sites have in common; only the decoder is learnt together.
Simple-DA is (5) alone: no γ, and a site predicts with g_w ∘ Φ_β (1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from secure_fl.blocks import Blocks, Layout
from secure_fl.strategies.base import LocalTraining, Request, Strategy, Sum

if TYPE_CHECKING:
    from secure_fl.strategies.site import Site


class PFLDASettings(LocalTraining):
    """`epochs` is E, for either level; `decoder` names the shared blocks, by default the model's output side."""

    lam: float = Field(0.1, ge=0)
    decoder: tuple[str, ...] = ()
    simple: bool = False  # Simple-DA


class PFLDA(Strategy):
    """One sum over the decoder's blocks. Kept: β under the encoder's names, γ under the decoder's."""

    name = "pflda"
    Settings = PFLDASettings
    settings: PFLDASettings
    has_global_model = False

    def request(self, layout: Layout, head: tuple[str, ...]) -> Request:
        """The decoder, as a sum; `LayoutMismatchError` where the model has no such block."""
        # A task's head is its output side, or the encoder that its sites do not share: then the decoder is the rest.
        output = head if layout.names[-1] in head else tuple(name for name in layout.names if name not in head)
        return Sum(blocks=layout.select(self.settings.decoder or output).names)

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        if self.settings.simple:
            return (
                "Leaves: the change of the global decoder's blocks.",
                "Stays: the data and the encoder; the site predicts with the global decoder.",
            )
        return (
            "Leaves: the change of the global decoder's blocks.",
            "Stays: the data, the encoder, and a personal decoder, which is the one the site predicts with.",
        )

    def charged_epochs(self, number: int | None = None) -> int | None:  # noqa: ARG002
        """Those of (5): β shapes w, which leaves; γ shapes nothing that does."""
        return self.settings.epochs

    @property
    def private_notes(self) -> tuple[str, ...]:
        """For `study show`."""
        together = "Noise is added to all training of the global decoder and of the encoder, which shapes it."
        if self.settings.simple:
            return (together,)
        return (
            together,
            "Without noise: the personal decoder. It never leaves, and nothing that leaves is made from it.",
        )

    def fit(self, site: Site) -> Blocks:
        """Algorithms 2 and 3, with the encoder kept from round to round (the printed β^{t,0} = w^t has no meaning)."""
        decoder = tuple(site.received)
        encoder = tuple(name for name in site.layout.names if name not in decoder)
        kept = self.inference(site)
        gamma = {name: kept[name] for name in decoder}

        # Algorithm 2, on (5): E epochs on β and w together, from the global decoder. γ has no part in it.
        site.load({name: kept[name] for name in encoder}, site.received)
        global_decoder = site.snapshot(decoder)
        site.train()
        change = site.change(decoder)
        if self.settings.simple:
            site.personal = site.blocks(encoder)
            return change
        site.personal = {**site.blocks(encoder), **gamma}

        # Algorithm 3, on (4): E epochs on γ alone, at the new β, pulled towards w as it was received.
        with site.free():
            site.load(gamma)
            site.train(only=decoder, penalty=site.pull(global_decoder, self.settings.lam, decoder))
            site.personal = site.blocks()
        return change

    def inference(self, site: Site) -> Blocks:
        """g_γ ∘ Φ_β; without a γ the global decoder, which is where γ starts and what Simple-DA has."""
        return site.complete(site.received, site.personal)
