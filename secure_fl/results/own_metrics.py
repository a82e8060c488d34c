"""Values of metrics whose formula is a task's own: filled in by whoever has the task's code, from the recorded sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from secure_fl.results.record import NodeRound, RoundRecord, StudyRecord

Formulas: TypeAlias = Mapping[str, Callable[[Sequence[int]], float | None]]


def with_values(record: StudyRecord, formulas: Formulas) -> StudyRecord:
    """The record with every value that `formulas`, by metric, make of its sums."""
    if not formulas:
        return record
    return replace(record, rounds=tuple(_round(entry, formulas) for entry in record.rounds))


def _round(entry: RoundRecord, formulas: Formulas) -> RoundRecord:
    nodes = tuple(replace(node, metrics=_values(node, formulas)) for node in entry.nodes)
    return replace(entry, nodes=nodes, metrics=_values(entry, formulas))


def _values(entry: NodeRound | RoundRecord, formulas: Formulas) -> dict[str, float | None]:
    own = {name: formulas[name](sums) for name, sums in entry.sums.items() if name in formulas}
    return {**entry.metrics, **own}
