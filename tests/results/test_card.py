"""A model's card says where the model comes from and what it cost."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from secure_fl.results.card import ModelCard
from secure_fl.results.record import StudyRecord
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
    assert (facts["rounds"], facts["planned_rounds"], facts["written"]) == (2, 4, "2026-01-02T03:04:05+00:00")
    assert facts["versions"].keys() == {"secure-fl", "torch"}
    for expected in (
        digest, STUDY.id, "2 of 4 rounds, running", "at most epsilon 3 with delta 1e-05 for each record, enforced",
        "accuracy 0.9000, sensitivity at 90 0.7500", "25 sites: site-0, ", "site-19 …",
    ):  # fmt: skip
        assert expected in page
    assert "protects nobody" not in page
    assert "**untrained**" not in page


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
