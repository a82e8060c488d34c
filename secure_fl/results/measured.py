"""What the last round of a study measured on the global model, apart from what it measured on the sites' own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from secure_fl.results.record import StudyRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Values by name; what is not known is None."""

    shared: Mapping[str, float | None] = field(default_factory=dict)  # of the global model
    own: Mapping[str, float | None] = field(default_factory=dict)  # of the models that sites predict with, if others

    @classmethod
    def of(cls, record: StudyRecord | None, *, predicts_with_shared: bool) -> Self:
        """Of the last version, under a strategy by which sites predict with the shared model, or with their own.

        Only the accuracy is measured on both, where there are two.
        """
        if record is None or not record.rounds:
            return cls()
        last = record.rounds[-1]
        others = {"mse": last.mean_mse, **last.metrics}
        # Measured on one model both are equal, or unknown.
        if predicts_with_shared and last.global_accuracy == last.mean_accuracy:
            return cls(shared={"accuracy": last.global_accuracy, **others})
        return cls(shared={"accuracy": last.global_accuracy}, own={"accuracy": last.mean_accuracy, **others})
