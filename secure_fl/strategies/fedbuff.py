"""FedBuff (Nguyen et al., 2022): changes are added to the model as they come, old ones scaled down.

w ← w + η_g·Σ_c β_c·Δ_c/√(1 + τ_c) over the circles of a flush

The paper divides by the number K of updates in its buffer. Here each change counts by its circle's part β_c of what the
study's sites weigh (`merging`): where all weigh alike, the same with η_g·(sites)/(sites in the buffer) in place of η_g.
In synchronous rounds all circles come together and nothing is stale: FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from secure_fl.strategies.base import LocalTraining
from secure_fl.strategies.fedavg import FedAvg
from secure_fl.strategies.merging import MergeSettings, Merging


class FedBuffSettings(LocalTraining):
    """FedAvg's settings and the coordinator's rate."""

    server_rate: float = Field(1.0, gt=0, le=100)  # η_g, with steps in proportion to who came


class FedBuff(FedAvg):
    """FedAvg at the site; the changes of circles are added up as they open."""

    name = "fedbuff"
    Settings = FedBuffSettings
    settings: FedBuffSettings
    # In rounds of all circles there would be nothing to merge as it comes: this would be FedAvg.
    defaults: ClassVar[Mapping[str, Any]] = {"rounds.mode": "buffered"}

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            *super().explain(),
            "Each circle's mean change is added to the common model as soon as it is opened, in proportion to what "
            "its sites weigh and less if it is old. In synchronous rounds this is plain FedAvg.",
        )

    def merging(self, rounds: MergeSettings, *, largest: float) -> Merging:  # noqa: ARG002
        """Added, by this strategy's own rate."""
        return Merging(kind="delta", discount="root", rate=self.settings.server_rate, largest=largest)
