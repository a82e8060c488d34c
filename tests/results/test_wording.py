"""One definition of what was measured, in numbers and in words: means over sites, and metrics over all rows."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from secure_fl.cli.run import _print
from secure_fl.cli.status_text import tell
from secure_fl.results.own_metrics import with_values
from secure_fl.results.record import NodeRound, RoundRecord, StudyRecord
from secure_fl.results.summary import summarise
from secure_fl.results.wording import sentences
from secure_fl.rounds import RoundKind
from secure_fl.rpc import operations_pb2 as pb
from secure_fl.simulation.narrator import describe_round


def node(name: str, accuracy: float | None, samples: int | None, **more: Any) -> NodeRound:
    return NodeRound(
        name=name, outcome="took part", accuracy=accuracy, global_accuracy=accuracy, samples=samples, **more
    )


SHARED = (
    node("north", 1.0, 10, metrics={"auc": 0.5, "kappa": None}, sums={"kappa": (1, 2)}),
    node("south", 0.5, 990, metrics={"auc": 0.7, "kappa": None}, sums={"kappa": (3, 4)}),
)
LAST = RoundRecord(
    number=2, kind=RoundKind.EVALUATE, attempts=1, seconds=1.0, nodes=SHARED, mean_accuracy=0.75,
    global_accuracy=0.75, metrics={"auc": 0.6875, "kappa": None}, sums={"kappa": (4, 6)},
)  # fmt: skip
RECORD = StudyRecord(
    study="sepsis", study_id="5a" * 32, task="visits", strategy="fedavg", protection="masked", planned_rounds=1,
    roster=("north", "south"), rounds=(LAST,),
)  # fmt: skip


def summary(record: StudyRecord = RECORD) -> dict[str, Any]:
    return summarise(record, engine="threads", seconds=1.0, report="report.html")


def test_each_site_counts_the_same_however_many_rows_it_has() -> None:
    found = summary()
    assert found["mean_accuracy"] == found["global_accuracy"] == 0.75
    # And so it is where only the mean is shared: there is one definition.
    hidden = tuple(NodeRound(name=each.name, outcome="took part") for each in SHARED)
    aggregate = summary(replace(RECORD, rounds=(replace(LAST, nodes=hidden),)))
    assert aggregate["mean_accuracy"] == aggregate["global_accuracy"] == 0.75
    assert aggregate["std_accuracy"] is None
    assert aggregate["metrics"] == found["metrics"] == {"auc": 0.6875, "kappa": None}
    assert [each["metrics"] for each in aggregate["nodes"]] == [{}, {}]
    assert [each["metrics"]["auc"] for each in found["nodes"]] == [0.5, 0.7]


def test_words_say_whose_mean_it_is() -> None:
    assert sentences(summary()) == (
        "accuracy 0.7500 ± 0.2500; of the shared model alone 0.7500 (mean over sites)",
        "auc 0.6875 (all test rows together)",
    )
    regression = replace(LAST, nodes=(), mean_accuracy=None, global_accuracy=None, mean_mse=0.25, metrics={})
    assert sentences(summary(replace(RECORD, rounds=(regression,)))) == ("squared error 0.2500 (mean over sites)",)
    assert sentences(summary(replace(RECORD, rounds=()))) == ()


def test_the_line_of_a_round_has_the_metrics() -> None:
    assert "  mean accuracy 0.7500, auc 0.6875 (after round 1)" in describe_round(LAST, planned=1)
    assert "auc" not in describe_round(replace(LAST, metrics={}), planned=1)
    assert "  auc 0.6875 (after round 1)" in describe_round(replace(LAST, mean_accuracy=None), planned=1)


def test_the_table_has_a_column_per_metric(capsys: pytest.CaptureFixture[str]) -> None:
    _print(summary())
    told = capsys.readouterr().out
    assert "auc" in told
    assert "0.7000" in told
    assert "auc 0.6875 (all test rows together)" in told
    _print(summary(replace(RECORD, rounds=(replace(LAST, metrics={}, nodes=(node("north", 1.0, 10),)),))))
    assert "auc" not in capsys.readouterr().out


def test_whoever_has_the_tasks_formula_fills_its_values_in() -> None:
    filled = with_values(RECORD, {"kappa": lambda sums: sums[0] / sums[1]})
    assert filled.rounds[0].metrics == {"auc": 0.6875, "kappa": 4 / 6}
    assert [each.metrics["kappa"] for each in filled.rounds[0].nodes] == [0.5, 0.75]
    assert with_values(RECORD, {}) is RECORD


def test_a_status_has_a_column_per_metric(capsys: pytest.CaptureFixture[str]) -> None:
    tell(pb.StudyStatus(name="sepsis", record=json.dumps(asdict(RECORD)).encode()))
    told = capsys.readouterr().out
    assert "accuracies, losses and errors: mean over sites; auc, kappa: all test rows together" in told
    assert "0.6875" in told
    plain = replace(RECORD, rounds=(replace(LAST, metrics={}, sums={}),))
    tell(pb.StudyStatus(name="sepsis", record=json.dumps(asdict(plain)).encode()))
    assert "all test rows" not in capsys.readouterr().out
