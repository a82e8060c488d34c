"""A simulated study under noise: what its sites declare, what it costs, and what becomes of a limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secure_fl.errors import DataError, StudyAbortedError
from secure_fl.privacy.accounting import epsilon_pld
from secure_fl.privacy.ledger import read_site_ledger
from secure_fl.privacy.spending import plans
from secure_fl.simulation.run import run
from secure_fl.simulation.spent import spent_by_site
from secure_fl.simulation.units import declared_units, plan_lines
from secure_fl.simulation.workspace import Workspace
from secure_fl.study.settings import Study
from tests.support.budgets import DELTA, PRIVACY, enough_for

SETTINGS: dict[str, Any] = {
    "study": {"rounds": 3},
    "task": {"name": "tests.support.task:Three"},
    "strategy": {"name": "fedavg", "batch_size": 16, "epochs": 1},
    "privacy": PRIVACY,
    "rounds": {"deadline": 2, "phase_deadline": 1, "gather": 1, "attempts": 1, "patience": 1},
    "simulation": {"nodes": 4},
}


def parsed(**changes: Any) -> Study:
    return Study.parse({**SETTINGS, **changes})


def test_sites_declare_what_they_train_on_rounded_before_and_after_they_have_names() -> None:
    study = parsed(task={"name": "digits"}, simulation={"nodes": 3})
    units = declared_units(study)
    assert len(units) == 3
    assert all(
        int(f"{number:.2g}".replace("e+0", "e")[:1] or 1) and number == float(f"{number:.2g}") for number in units
    )
    roster = {f"site-0{index}": f"{index}" * 64 for index in (1, 2, 3)}
    named = study.model_copy(update={"study": study.study.model_copy(update={"roster": roster})})
    assert declared_units(named) == units


def test_a_unit_that_the_task_does_not_have_is_an_error_and_not_a_row() -> None:
    study = parsed(privacy={**PRIVACY, "unit": "group"})
    with pytest.raises(DataError, match="which rows belong to the same group"):
        declared_units(study)
    visits = {"name": "visits", "patients": 60}
    groups = parsed(task=visits, privacy={**PRIVACY, "unit": "group"}, simulation={"nodes": 3, "partition": "natural"})
    rows = groups.model_copy(update={"privacy": groups.privacy.model_copy(update={"unit": "record"})})
    assert all(group < row for group, row in zip(declared_units(groups), declared_units(rows), strict=True))
    assert all(40 <= group <= 60 for group in declared_units(groups))


def test_the_plan_is_that_of_the_smallest_site_and_says_that_it_protects_nobody() -> None:
    first, *rest = plan_lines(parsed())
    assert "80 records" in first
    assert "protects nobody" in rest[-1]


def make(folder: Path, study: Study, **policy: Any) -> dict[str, Any]:
    _, summary = run(study, engine="threads", folder=folder, policy=policy, listener=lambda _: None)
    return summary


def test_what_sites_spent_is_what_an_auditor_finds(tmp_path: Path) -> None:
    summary = make(tmp_path / "out", parsed())
    study = Study.read(tmp_path / "out" / "study.toml")
    made = Workspace(folder=tmp_path / "out", study=study, resumed=True, policy={})
    spent = spent_by_site(made)
    plan = study.privacy_plan(units=80)
    assert plan is not None
    expected = epsilon_pld(plan.cost_per_round * 3, delta=DELTA)
    for node in summary["nodes"]:
        mine = spent[node["name"]]
        assert (mine.epsilon, mine.delta) == (node["epsilon"], node["delta"])
        assert node["epsilon"] == pytest.approx(expected)
    assert expected < study.privacy.epsilon  # type: ignore[operator]


def test_a_limit_for_two_of_three_rounds_ends_the_run_after_two_and_says_why(tmp_path: Path) -> None:
    study = parsed()
    plan = study.privacy_plan(units=80)
    assert plan is not None
    limit = enough_for(plan, 2)
    with pytest.raises(StudyAbortedError, match="the privacy budget is used up") as caught:
        make(tmp_path / "out", study, epsilon=limit.epsilon, delta=limit.delta)
    assert "says BudgetExceeded: this training needs" in caught.value.message
    authority = (tmp_path / "out" / "ca.pem").read_bytes()
    for index in range(1, 5):
        path = tmp_path / "out" / "nodes" / f"site-0{index}" / "ledger.jsonl"
        entries = read_site_ledger(path, authority=authority, site=f"site-0{index}")
        assert [(plan.round, plan.state) for plan in plans(entries)] == [(1, "sent"), (2, "sent")]
        assert [entry.facts["round"] for entry in entries if entry.kind == "refused"] == [3]


def test_a_limit_of_the_studys_own_epsilon_and_delta_is_enough_for_all_of_it(tmp_path: Path) -> None:
    summary = make(tmp_path / "out", parsed(), epsilon=PRIVACY["epsilon"], delta=DELTA)
    assert summary["rounds"] == 3
