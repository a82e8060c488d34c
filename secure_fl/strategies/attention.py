"""Strategies in which each site weighs its peers by how far their features are from its own.

Distances open at one site each and cost a phase of their own (`protect.uploads.scores`). Each tells the site something
of its peer's features for ever, so a site lets each peer measure a few times only (`protect.release.comparisons`):
sites select early and keep. In rounds that compare nobody, a site goes by the distances it learned last. A peer that it
was not compared with then has no weight.
"""

from __future__ import annotations

from pydantic import Field

from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Layout
from secure_fl.strategies.base import Combine, LocalTraining, Request, Strategy


class AttentionTraining(LocalTraining):
    """`comparisons` = m, `compare_every` = k: rounds f, f + k, … open distances, m of them; f is `combine_from`.

    Before round f every site trains alone. Whom a site is combined with can hardly change later (docs/guard.md), so
    it should know enough by then. `more_comparisons`: sites that agree are not limited in how often they are compared.
    """

    comparisons: int = Field(1, ge=1)
    compare_every: int = Field(1, ge=1)
    combine_from: int = Field(1, ge=1)
    more_comparisons: bool = False


class AttentionStrategy(Strategy):
    """One combination over every block, weighed by each site for itself. There is no common model."""

    Settings = AttentionTraining
    settings: AttentionTraining
    has_global_model = False
    attention = True
    asks = RequestKind.COMBINE

    def request(self, layout: Layout, head: tuple[str, ...]) -> Request:  # noqa: ARG002
        """Everything, combined for each site."""
        return Combine(blocks=layout.names)

    @property
    def exceptions(self) -> tuple[str, ...]:
        """Without a limit to comparisons, a peer that chooses what it compares with finds a site's features out."""
        return ("more-comparisons",) if self.settings.more_comparisons else ()

    def explain_comparing(self) -> tuple[str, ...]:
        """For `study show`: how often sites are compared."""
        settings = self.settings
        first = settings.combine_from
        compared = (
            f"Sites are compared in round {first} only. After that each reuses the distances it learnt then. "
            if settings.comparisons == 1
            else f"Sites are compared in up to {settings.comparisons} rounds, from round {first} on. In all others "
            "each reuses the distances it learnt last. "
        )
        return (
            compared
            + (
                "EXCEPTION: a site does not refuse further comparisons. A peer that chooses what it compares with "
                "learns more each time. A site has to agree: [policy] exceptions, more-comparisons."
                if settings.more_comparisons
                else "Each site limits how often it may be compared with any other site, counted over all studies."
            ),
        )

    def compares(self, number: int) -> bool:
        """In the first of the rounds f, f + k, f + 2k, …"""
        since, every = number - self.settings.combine_from, self.settings.compare_every
        return since >= 0 and since % every == 0 and since // every < self.settings.comparisons
