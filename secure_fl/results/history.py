"""A study's rounds as a table: one row for each version of the model, from 0, the untrained one.

A round measures the model that it begins with, so what round r + 1 measured stands in row r, beside what round r cost.
Values of single sites are in a table of their own, and only as far as the study's [metrics] share let them be seen.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from secure_fl.files import write_atomically
from secure_fl.results.record import RoundRecord, StudyRecord
from secure_fl.results.turns import measured_version
from secure_fl.rounds import RoundKind

Row: TypeAlias = dict[str, Any]

COLUMNS = (
    "round", "accuracy", "loss", "mse", "global_accuracy", "sites", "attempts", "seconds", "bytes_up", "bytes_down",
)  # fmt: skip
SITE_COLUMNS = ("round", "site", "samples", "accuracy", "loss", "mse", "global_accuracy")


def measurements(record: RoundRecord) -> Row:
    """What a round measured, over all its sites."""
    return {
        "accuracy": record.mean_accuracy,
        "loss": record.mean_loss,
        "mse": record.mean_mse,
        "global_accuracy": record.global_accuracy,
        **record.metrics,
    }


def costs(record: RoundRecord) -> Row:
    """What a round took."""
    return {
        "sites": len(record.cohort),
        "attempts": record.attempts,
        "seconds": round(record.seconds, 3),
        "bytes_up": record.bytes_up,
        "bytes_down": record.bytes_down,
    }


def history(record: StudyRecord) -> list[Row]:
    """One row per version. What is not known, such as the seconds of row 0, is None."""
    rows: dict[int, Row] = {}
    measured: dict[int, list[RoundRecord]] = {}
    for entry in record.rounds:
        if entry.kind is RoundKind.TRAIN:
            rows.setdefault(entry.number, _empty(entry.number)).update(costs(entry))
        measured.setdefault(measured_version(entry), []).append(entry)
    for version, entries in measured.items():
        rows.setdefault(version, _empty(version)).update(_together(entries))
    return [rows[number] for number in sorted(rows)]


def _together(entries: Sequence[RoundRecord]) -> Row:
    """What circles that began from one version measured, each as often as it has sites."""
    found: dict[str, list[tuple[int, float]]] = {}
    for entry in entries:
        for name, value in measurements(entry).items():
            if value is not None:
                found.setdefault(name, []).append((max(1, len(entry.cohort)), value))
    names = dict.fromkeys(name for entry in entries for name in measurements(entry))
    return {name: _mean(found.get(name, [])) for name in names}


def _mean(values: Sequence[tuple[int, float]]) -> float | None:
    if len(values) == 1:
        return values[0][1]  # to the last digit
    count = sum(weight for weight, _ in values)
    return sum(weight * value for weight, value in values) / count if values else None


def site_history(record: StudyRecord) -> list[Row]:
    """One row per version and site that said how it does; none where the study shares no values of single sites."""
    return [
        {
            "round": measured_version(entry),
            "site": node.name,
            **{column: getattr(node, column) for column in SITE_COLUMNS[2:]},
            **node.metrics,
        }
        for entry in record.rounds
        for node in entry.nodes
        if node.samples is not None
    ]


def columns_of(rows: Sequence[Mapping[str, Any]], first: Sequence[str]) -> tuple[str, ...]:
    """The columns that every study has, and then the metrics that this study's task declares."""
    return tuple(dict.fromkeys((*first, *(column for row in rows for column in row))))


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a history with a header; what is not known is empty."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, columns_of(rows, COLUMNS), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def _empty(number: int) -> Row:
    return {**dict.fromkeys(COLUMNS), "round": number}
