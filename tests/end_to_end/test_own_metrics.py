"""A study measures what its task declares, exactly as one evaluation of all sites' test rows in one place would."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score

from secure_fl.results.record import StudyRecord
from secure_fl.simulation.run import run
from secure_fl.study.settings import Study
from secure_fl.tasks.base import Share, Source, Split
from secure_fl.tasks.breast_cancer import BreastCancer, BreastCancerSettings
from secure_fl.tasks.metrics import Auc, Metric
from tests.tasks.test_metrics import Kappa, MissedEarly

NODES, SEED = 4, 5


class Ward(BreastCancer):
    """With a built-in metric, a ratio and one with a formula of its own."""

    metrics: ClassVar[tuple[Metric, ...]] = (Auc(), MissedEarly(), Kappa())


def study(protection: str) -> Study:
    return Study.parse(
        {
            "study": {"rounds": 1, "seed": SEED},
            "task": {"name": f"{__name__}:Ward"},
            "protection": {"kind": protection},
            "metrics": {"share": "aggregate"},
            "simulation": {"nodes": NODES},
        }
    )


def in_one_place(settings: Study, model_file: Path) -> tuple[dict[str, float | None], float]:
    """The finished model on the test rows of all sites in one split; and the exact AUC."""
    task = Ward(BreastCancerSettings())
    partition = settings.simulation.partition_settings()
    shares = (Share(index=index, of=NODES, partition=partition, seed=SEED) for index in range(NODES))
    tests = [task.load(Source(share=share)).test for share in shares]
    rows = Split(inputs=torch.cat([t.inputs for t in tests]), targets=torch.cat([t.targets for t in tests]))
    model = task.model()
    model.load_state_dict({name.replace("/", "."): value for name, value in load_file(model_file).items()})
    sums = task.evaluate(model, rows).sums
    outputs = model(rows.inputs).detach()
    exact = roc_auc_score(rows.targets, outputs[:, 1] - outputs[:, 0])
    return {metric.name: metric.value(sums[metric.name]) for metric in task.metrics}, float(exact)


@pytest.mark.parametrize("protection", ["masked", "encrypted"])
def test_a_study_measures_what_one_evaluation_of_all_rows_would(tmp_path: Path, protection: str) -> None:
    settings = study(protection)
    policy: dict[str, Any] = {"exceptions": []}
    record, summary = run(settings, engine="threads", folder=tmp_path, policy=policy, listener=lambda *_: None)
    expected, exact = in_one_place(settings, tmp_path / "model.safetensors")
    assert summary["metrics"] == expected
    assert summary["metrics"]["auc"] == pytest.approx(exact, abs=0.01)
    assert all(node["metrics"] == {} for node in summary["nodes"])
    # The coordinator, which does not have the task's formula, keeps the sums for whoever has.
    kept = StudyRecord.load(next(tmp_path.rglob("record.json")))
    assert kept.rounds[-1].metrics["kappa"] is None
    assert kept.rounds[-1].metrics["auc"] == expected["auc"]
    assert list(kept.rounds[-1].sums) == ["kappa"]
    assert record.rounds[-1].metrics["kappa"] == expected["kappa"]
    page = (tmp_path / "report.html").read_text()
    assert "Metrics of the task" in page
    assert "kappa after each round" in page
