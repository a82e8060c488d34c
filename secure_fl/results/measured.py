"""What the last round of a study measured on the global model, apart from what it measured on the sites' own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from secure_fl.errors import SecureFLError
from secure_fl.results.record import RoundRecord, StudyRecord
from secure_fl.study.settings import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Values by name; what is not known is None."""

    shared: Mapping[str, float | None] = field(default_factory=dict)  # of the global model
    own: Mapping[str, float | None] = field(default_factory=dict)  # of the models that sites predict with, if others

    @classmethod
    def of(cls, record: StudyRecord | None) -> Self:
        """Of the last version. Only the accuracy is measured on both where sites predict with models of their own."""
        if record is None or not record.rounds:
            return cls()
        last = record.rounds[-1]
        others = {"mse": last.mean_mse, **last.metrics}
        if _predict_with_shared(record, last):
            return cls(shared={"accuracy": last.global_accuracy, **others})
        return cls(shared={"accuracy": last.global_accuracy}, own={"accuracy": last.mean_accuracy, **others})


def _predict_with_shared(record: StudyRecord, last: RoundRecord) -> bool:
    if last.global_accuracy != last.mean_accuracy:  # Measured on one model they are equal; or both are unknown.
        return False
    try:
        return Study.from_canonical(record.settings.encode()).make_strategy().predicts_with_shared
    except SecureFLError:
        return False  # The strategy is not installed here: what is not known to be of the model is not said of it.
