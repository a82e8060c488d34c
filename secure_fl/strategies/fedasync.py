"""FedAsync (Xie et al., 2019): each arrival pulls the common model towards the model that arrived.

w ← (1 − α_τ)·w + α_τ·M,   α_τ = α·d(τ),   M = the version a circle trained from + its mean change

Here it is a circle's mean model that arrives, never a site's. In synchronous rounds nothing is stale: FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from secure_fl.strategies.base import LocalTraining
from secure_fl.strategies.fedavg import FedAvg
from secure_fl.strategies.merging import Discount, MergeSettings, Merging


class FedAsyncSettings(LocalTraining):
    """FedAvg's settings, α and how it falls with the age τ of what arrives."""

    rate: float = Field(0.6, gt=0, le=1)  # α
    discount: Discount = "root"  # d(τ) = (1 + τ)^−1/2


class FedAsync(FedAvg):
    """FedAvg at the site; circles are mixed into the model one by one as they open."""

    name = "fedasync"
    Settings = FedAsyncSettings
    settings: FedAsyncSettings
    # In rounds of all circles there would be nothing to merge as it comes: this would be FedAvg.
    defaults: ClassVar[Mapping[str, Any]] = {"rounds.mode": "buffered"}

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            *super().explain(),
            f"Each circle's mean model is mixed into the common one as soon as it is opened, with weight "
            f"{self.settings.rate:g} and less if it is old. In synchronous rounds this is plain FedAvg.",
        )

    def merging(self, rounds: MergeSettings, *, largest: float) -> Merging:  # noqa: ARG002
        """Mixed, by this strategy's own settings."""
        return Merging(kind="mix", discount=self.settings.discount, rate=self.settings.rate, largest=largest)
