"""What a site's own file says about a study under noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from node.config import NodeFile
from node.policy import Policy
from node.privacy import SitePrivacy, limit_of, plan_here
from secure_fl.errors import RefusedError, SettingsError
from secure_fl.settings import read_toml
from secure_fl.simulation.workspace import Workspace, prepare
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.settings import Study
from tests.support.budgets import PRIVACY


def site(folder: Path, **settings: Any) -> Workspace:
    made = prepare(folder / "run", Study.parse({"simulation": {"nodes": 3}, **settings}), policy={})
    made.point_nodes_at(1)
    return made


def edited(made: Workspace, section: str, **values: Any) -> NodeFile:
    """The first site's file, with other values; None takes one out."""
    path = made.node_file("site-01")
    table = read_toml(path)
    part = table
    for key in section.split("."):
        part = part[key]
    for key, value in values.items():
        if value is None:
            part.pop(key, None)
        else:
            part[key] = value
    path.write_bytes(tomli_w.dumps(table).encode())
    return NodeFile.read(path)


def check(file: NodeFile, study: Study) -> None:
    Policy(file, file.credential().certificate).check_terms(study)


def test_a_site_that_did_not_say_how_many_units_it_has_refuses(tmp_path: Path) -> None:
    made = site(tmp_path, privacy=PRIVACY)
    check(NodeFile.read(made.node_file("site-01")), made.study)
    file = edited(made, "datasets.digits", units=None)
    with pytest.raises(RefusedError, match="about how many records") as caught:
        check(file, made.study)
    assert "write units = N under [datasets.digits]" in (caught.value.hint or "")


def test_a_limit_needs_epsilon_and_delta(tmp_path: Path) -> None:
    made = site(tmp_path, privacy=PRIVACY)
    for half in ({"epsilon": 3.0, "delta": None}, {"epsilon": None, "delta": 1e-5}):
        with pytest.raises(SettingsError, match="epsilon and delta are a limit together"):
            edited(made, "policy", **half)
    file = edited(made, "policy", epsilon=3.0, delta=1e-5)
    limit = limit_of(file)
    assert limit is not None
    assert (limit.epsilon, limit.delta) == (3.0, 1e-5)


def test_a_site_with_a_limit_refuses_a_study_without_noise(tmp_path: Path) -> None:
    made = site(tmp_path)
    with pytest.raises(RefusedError, match="no differential privacy"):
        check(edited(made, "policy", epsilon=3.0, delta=1e-5), made.study)


def test_measurements_without_noise_need_the_sites_consent(tmp_path: Path) -> None:
    made = site(tmp_path, privacy=PRIVACY)
    file = edited(made, "policy", exceptions=[])
    with pytest.raises(RefusedError, match="metrics-without-noise"):
        check(file, made.study)
    quiet = site(tmp_path / "quiet", privacy=PRIVACY, metrics={"share": "none"})
    check(edited(quiet, "policy", exceptions=[]), quiet.study)


def test_too_few_units_for_any_noise_are_refused_when_the_study_is_offered(tmp_path: Path) -> None:
    made = site(tmp_path, privacy={**PRIVACY, "epsilon": 0.05})
    with pytest.raises(SettingsError):
        check(edited(made, "datasets.digits", units=40), made.study)


def test_a_round_that_only_measures_costs_nothing_and_a_training_what_its_strategy_says(tmp_path: Path) -> None:
    made = site(tmp_path, privacy=PRIVACY, strategy={"name": "fedavg", "epochs": 3})
    file = NodeFile.read(made.node_file("site-01"))
    privacy = SitePrivacy(file, ResolvedStudy.of(made.study))
    plan = plan_here(file, made.study)
    assert plan is not None
    assert privacy.epochs(1, trains=True) == 3
    assert privacy.epochs(1, trains=False) == 0
    facts = privacy.facts(1, trains=True, found={})
    assert facts is not None
    assert [event["steps"] for event in facts["events"]] == [3 * plan.epoch_steps]
    assert facts["code"] == "unknown"  # said, where the training process did not say


def test_only_a_simulation_is_called_seeded(tmp_path: Path) -> None:
    made = site(tmp_path, privacy=PRIVACY)
    file = NodeFile.read(made.node_file("site-01"))
    resolved = ResolvedStudy.of(made.study)
    for real, word in ((file.model_copy(update={"simulation": None}), "system"), (file, "seeded")):
        facts = SitePrivacy(real, resolved).facts(1, trains=True, found={})
        assert facts is not None
        assert facts["randomness"] == word
