"""A model's card says where the model comes from and what it cost."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from secure_fl.api.operator import _predicts_with_shared
from secure_fl.results.card import ModelCard
from secure_fl.results.measured import Measured
from secure_fl.results.record import RoundRecord, StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.study.settings import Study
from tests.results.test_history import rounds

STUDY = Study.of(task="digits", privacy="dp-sgd", epsilon=3.0, delta=1e-5)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def record(study: Study) -> StudyRecord:
    return StudyRecord(
        study="heart", study_id=study.id, task="digits", strategy="fedavg", protection="masked", planned_rounds=4,
        roster=tuple(f"site-{number}" for number in range(25)), outcome="running", rounds=rounds(per_node=False),
        parameters=10, shared_parameters=8, settings=study.canonical().decode(),
    )  # fmt: skip


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    model = tmp_path / "heart.safetensors"
    model.write_bytes(b"values")
    card = ModelCard.of(record(STUDY), metrics={"accuracy": 0.9, "mse": None, "sensitivity_at_90": 0.75}, now=NOW)
    page = card.write(model).read_text()
    facts = json.loads((tmp_path / "heart.json").read_text())
    digest = hashlib.sha256(b"values").hexdigest()
    assert facts["sha256"] == digest
    assert facts["privacy"] == {"mode": "dp-sgd", "unit": "record", "epsilon": 3.0, "delta": 1e-5}
    assert facts["metrics"] == {"accuracy": 0.9, "sensitivity_at_90": 0.75}
    assert facts["own_metrics"] == {}
    assert facts["counted"] == {"accuracy": "mean over sites", "sensitivity_at_90": "all test rows together"}
    assert (facts["rounds"], facts["planned_rounds"], facts["written"]) == (2, 4, "2026-01-02T03:04:05+00:00")
    assert facts["versions"].keys() == {"secure-fl", "torch"}
    for expected in (
        digest, STUDY.id, "2 of 4 rounds, running", "at most epsilon 3 with delta 1e-05 for each record, enforced",
        "measured: accuracy 0.9000 (mean over sites); sensitivity at 90 0.7500 (all test rows together)\n",
        "25 sites: site-0, ", "site-19 …",
    ):  # fmt: skip
        assert expected in page
    assert "protects nobody" not in page
    assert "**untrained**" not in page
    assert "not on this one" not in page
    own = ModelCard.of(record(STUDY), metrics={"accuracy": 0.9, "auc": 0.5}, model="site-1")
    assert "measured: accuracy 0.9000, auc 0.5000 (the site's own test rows)" in own.write(model).read_text()


LAST = RoundRecord(
    number=3, kind=RoundKind.EVALUATE, attempts=1, seconds=1.0, nodes=(), mean_accuracy=0.9, global_accuracy=0.9,
    mean_mse=0.25, metrics={"auc": 0.75},
)  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "shared"), [("fedavg", True), ("fedopt", True), ("fedper", False), ("pfedme", False), ("tp", False)]
)
def test_a_card_of_the_global_model_does_not_carry_what_was_measured_on_others(
    tmp_path: Path, strategy: str, shared: bool
) -> None:
    model = tmp_path / "m.safetensors"
    model.write_bytes(b"")
    finished = replace(record(Study.of(strategy=strategy)), rounds=(LAST,))
    found = Measured.of(finished, predicts_with_shared=_predicts_with_shared(finished))
    assert dict(found.shared).get("auc") == (0.75 if shared else None)
    assert dict(found.own).get("auc") == (None if shared else 0.75)
    page = ModelCard.of(finished, metrics=found.shared, own_metrics=found.own).write(model).read_text()
    others = "- measured on the models that sites predict with, **not on this one**: accuracy 0.9000, mse 0.2500 (mean"
    assert (others in page) == (not shared)
    assert Measured.of(replace(finished, rounds=()), predicts_with_shared=True) == Measured()
    silent = ModelCard.of(finished, metrics={}, own_metrics={"mse": 0.25}).write(model).read_text()
    assert "measured: nothing of this model" in silent


def test_what_is_not_known_to_be_of_the_global_model_is_not_said_of_it() -> None:
    unequal = replace(record(Study.of()), rounds=(replace(LAST, mean_accuracy=0.95),))
    there = record(Study.of())
    unknown = replace(there, rounds=(LAST,), settings=there.settings.replace('"fedavg"', '"elsewhere"'))
    assert not _predicts_with_shared(None)
    for finished, shared in ((unequal, True), (unknown, False)):
        assert _predicts_with_shared(finished) == shared
        found = Measured.of(finished, predicts_with_shared=shared)
        assert dict(found.shared) == {"accuracy": 0.9}
        assert dict(found.own)["auc"] == 0.75
    regression = replace(record(Study.of()), rounds=(replace(LAST, mean_accuracy=None, global_accuracy=None),))
    assert dict(Measured.of(regression, predicts_with_shared=True).shared)["mse"] == 0.25


def test_what_should_not_be_overlooked(tmp_path: Path) -> None:
    model = tmp_path / "m.safetensors"
    model.write_bytes(b"")
    simulated = ModelCard.of(record(STUDY), metrics={}, simulated=True, epsilon=2.5)
    page = simulated.write(model).read_text()
    assert "epsilon 2.5 with" in page
    assert "protects nobody" in page
    plain = ModelCard.of(record(Study.of()), metrics={}, names="blocks")
    page = replace(plain, rounds=0).write(model).read_text()
    for expected in ("**untrained**", "nothing limits", "nothing that sites shared", "block/tensor"):
        assert expected in page
