"""Strategies in which each site weighs its peers by how far their features are from its own.

Distances open at one site each and cost a phase of their own (`protect.sealed_scores`). They change slowly while
models converge, so a study may compare in every k-th round only: in between a site goes by the distances it learned
last. A peer that it was not compared with then has no weight.
"""

from __future__ import annotations

from pydantic import Field

from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Layout
from secure_fl.strategies.base import Combine, LocalTraining, Request, Strategy


class AttentionTraining(LocalTraining):
    """`compare_every` = k: rounds f, f + k, f + 2k, … open distances, where f is `combine_from`.

    Before round f every site trains alone. Whom a site is combined with can hardly change later (docs/guard.md), so
    it should know enough by then.
    """

    compare_every: int = Field(1, ge=1)
    combine_from: int = Field(1, ge=1)


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

    def compares(self, number: int) -> bool:
        """In every k-th round, beginning with the first that combines."""
        since = number - self.settings.combine_from
        return since >= 0 and since % self.settings.compare_every == 0
