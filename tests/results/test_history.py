"""Rows of a history: what was measured stands beside the version it was measured on."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from secure_fl.results.history import COLUMNS, history, site_history, write_csv
from secure_fl.results.record import CircleRound, NodeRound, RoundRecord, StudyRecord
from secure_fl.results.turns import measured_version
from secure_fl.rounds import RoundKind


def rounds(*, per_node: bool, circles: tuple[CircleRound, ...] = ()) -> tuple[RoundRecord, ...]:
    def node(name: str, accuracy: float) -> NodeRound:
        shown = {"samples": 10, "accuracy": accuracy} if per_node else {}
        return NodeRound(name=name, outcome="took part", bytes_up=100, bytes_down=200, **shown)  # type: ignore[arg-type]

    return tuple(
        RoundRecord(
            number=number,
            kind=RoundKind.TRAIN if number < 3 else RoundKind.EVALUATE,
            attempts=1,
            seconds=1.5,
            nodes=(node("a", number / 10), node("b", number / 10)),
            mean_accuracy=number / 10,
            circles=circles,
        )
        for number in (1, 2, 3)
    )


def record(**changes: object) -> StudyRecord:
    made = rounds(per_node=True)
    facts = {"rounds": made, **changes}
    return StudyRecord(
        study="s", study_id="0", task="t", strategy="fedavg", protection="x", planned_rounds=2, roster=("a", "b"),
        **facts,  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_version_stands_with_what_the_next_round_measured() -> None:
    rows = history(record())
    assert [(row["round"], row["accuracy"], row["bytes_up"]) for row in rows] == [
        (0, 0.1, None),
        (1, 0.2, 200),
        (2, 0.3, 200),
    ]
    assert [row["sites"] for row in rows] == [None, 2, 2]
    assert {(row["round"], row["site"], row["accuracy"]) for row in site_history(record())} == {
        (number, site, (number + 1) / 10) for number in range(3) for site in "ab"
    }


def test_metrics_of_the_task_have_columns_of_their_own(tmp_path: Path) -> None:
    measured = tuple(replace(entry, metrics={"auc": entry.number / 5}) for entry in rounds(per_node=False))
    rows = history(record(rounds=measured))
    assert [row["auc"] for row in rows] == [0.2, 0.4, 0.6]
    write_csv(tmp_path / "h.csv", rows)
    assert (tmp_path / "h.csv").read_text().splitlines()[0] == ",".join((*COLUMNS, "auc"))


def test_without_leave_no_site_is_named() -> None:
    assert site_history(record(rounds=rounds(per_node=False))) == []


def test_a_circles_turn_measures_the_version_it_began_with() -> None:
    circle = CircleRound(members=("a", "b"), opened=True, turn=1, base=0, staleness=1)
    late = rounds(per_node=False, circles=(circle,))[1]
    assert measured_version(late) == 0
    assert measured_version(rounds(per_node=False)[1]) == 1


def test_circles_that_began_from_one_version_are_in_its_row_together() -> None:
    first = CircleRound(members=("a", "b"), opened=True, turn=1, base=0, staleness=0)
    two, three, _ = rounds(per_node=False, circles=(first,))
    two = replace(two, mean_accuracy=0.5, metrics={"auc": 0.5})
    three = replace(three, nodes=three.nodes[:1], mean_accuracy=0.8, metrics={"auc": 0.8})
    row, *_ = history(record(rounds=(two, three)))
    assert row["round"] == 0
    assert row["accuracy"] == row["auc"] == pytest.approx(0.6)


def test_a_table_is_csv(tmp_path: Path) -> None:
    write_csv(tmp_path / "h.csv", history(record()))
    with (tmp_path / "h.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == COLUMNS
    assert (table[0]["bytes_up"], table[1]["bytes_up"], table[2]["accuracy"]) == ("", "200", "0.3")
