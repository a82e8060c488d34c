"""What suits a task and a strategy is filled in where a study does not say, and only there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from torch import nn

from secure_fl import strategies, tasks
from secure_fl.errors import SettingsError, TaskUnavailableError
from secure_fl.events import ignore
from secure_fl.simulation.run import run
from secure_fl.strategies.base import LocalTraining
from secure_fl.study.data import require_data
from secure_fl.study.defaults import chosen_protection, filled, found
from secure_fl.study.settings import Study
from secure_fl.tasks.digits import Digits
from secure_fl.tasks.public import FOLDER

WITHOUT_FILES = ("digits", "breast-cancer", "sine", "bearings", "visits")
PAIRS = [(task, strategy) for task in WITHOUT_FILES for strategy in strategies.known()]
CELLS = "(?m)^strategy 'fedasa' shares cells and this task's model has none$"


def refusal(task: str, strategy: str) -> str | None:
    """Why a pair cannot run; None: it does."""
    return CELLS if strategy == "fedasa" and task != "bearings" else None


def small(task: str, strategy: str, **sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A pair as a user names it, and what makes a run short."""
    few = {"windows": 4} if task == "bearings" else {}
    return {
        "study": {"rounds": 2},
        "task": {"name": task, **few},
        "strategy": {"name": strategy},
        "simulation": {"nodes": 6},
        "metrics": {"share": "per-node"},
        **sections,
    }


def run_small(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    _, summary = run(Study.parse(table), engine="threads", folder=folder, policy={}, listener=ignore)
    return summary


# --- every pair -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "strategy"), PAIRS)
def test_every_pair_fits_or_says_why_not_before_anything_starts(task: str, strategy: str) -> None:
    # Less to ship: the model that makes FedASA's auxiliary features trains for seconds.
    quick = {"auxiliary_epochs": 0} if strategy == "fedasa" else {}
    study = Study.parse({"task": {"name": task}, "strategy": {"name": strategy, **quick}})
    if expected := refusal(task, strategy):
        with pytest.raises(SettingsError, match=expected) as caught:
            study.completed()
        assert caught.value.exit_code == 3
        assert caught.value.hint
        return
    study = study.completed()
    study.check(nodes=study.simulation.nodes)
    require_data(study)


@pytest.mark.parametrize(
    ("task", "strategy"),
    [("visits", "fedbuff"), ("breast-cancer", "fedcca"), ("bearings", "fedper")],
)
def test_some_pairs_run_as_they_are(tmp_path: Path, task: str, strategy: str) -> None:
    summary = run_small(small(task, strategy), tmp_path / "run")
    assert summary["rounds"] == 2
    if strategy == "fedcca":
        assert summary["protection"] == "sealed"
        assert summary["combinations_opened"] == summary["combinations_possible"] == 12


@pytest.mark.slow
@pytest.mark.parametrize(("task", "strategy"), [pair for pair in PAIRS if refusal(*pair) is None])
def test_every_pair_runs(tmp_path: Path, task: str, strategy: str) -> None:
    assert run_small(small(task, strategy), tmp_path / "run")["rounds"] == 2


# --- who wins ---------------------------------------------------------------------------------------------------


def test_what_the_study_says_wins_over_the_task() -> None:
    table = {
        "task": {"name": "sine"},
        "strategy": {"name": "fedavg", "learning_rate": 0.5},
        "simulation": {"partition": "iid"},
    }
    study = Study.parse(table).completed()
    assert study.simulation.partition == "iid"
    assert (study.strategy.settings["learning_rate"], study.strategy.settings["epochs"]) == (0.5, 20)
    # Also where it says what the built-in value is anyway.
    assert (
        Study.parse({**table, "strategy": {"name": "fedavg", "epochs": 2}}).completed().strategy.settings["epochs"] == 2
    )


def test_the_strategy_wins_over_the_task_and_the_two_together_over_both() -> None:
    def epochs(strategy: str) -> Any:
        return Study.parse({"task": {"name": "sine"}, "strategy": {"name": strategy}}).completed().strategy.settings

    assert epochs("fedper")["epochs"] == 20
    assert epochs("fedrep")["epochs"] == 1
    assert epochs("ditto")["personal_epochs"] == 20
    cells = Study.parse({"strategy": {"name": "fedasa", "auxiliary_epochs": 0}}).completed()
    assert (cells.task.name, cells.task.settings["network"]) == ("bearings", "cells")


def test_a_study_with_its_defaults_written_out_is_the_same_study(tmp_path: Path) -> None:
    short = Study.parse({"task": {"name": "sine"}, "strategy": {"name": "pflda"}}).completed()
    path = tmp_path / "long.toml"
    path.write_text(tomli_w.dumps(short.to_table()))
    long = Study.read(path)
    assert long.completed().id == short.id
    assert long.completed().simulation == short.simulation
    assert found(long) == ()
    assert filled(long) is long


def test_the_hash_is_of_the_filled_in_values() -> None:
    plain = {"task": {"name": "sine"}, "strategy": {"name": "pflda"}}
    same = {**plain, "strategy": {"name": "pflda", "epochs": 20, "learning_rate": 0.003}}
    other = {**plain, "strategy": {"name": "pflda", "epochs": 2}}
    ids = [Study.parse(table).completed().id for table in (plain, same, other)]
    assert ids[0] == ids[1] != ids[2]


def test_buffered_strategies_do_not_wait_unless_the_study_asks_for_what_needs_all_circles() -> None:
    def mode(**protection: Any) -> str:
        table = {"strategy": {"name": "fedbuff"}, "protection": protection, "simulation": {"nodes": 20}}
        return Study.parse(table).completed().rounds.mode

    assert mode() == "buffered"
    assert mode(recovery=True) == mode(robust="median") == "sync"
    assert Study.parse({"strategy": {"name": "fedbuff"}, "rounds": {"mode": "sync"}}).completed().rounds.mode == "sync"


# --- protections ------------------------------------------------------------------------------------------------


def test_a_strategy_that_combines_gets_a_protection_that_can_and_says_so() -> None:
    table: dict[str, Any] = {"strategy": {"name": "fedcca"}}
    study = Study.parse(table)
    assert study.protection.kind == "sealed"
    said = chosen_protection(table, strategy="fedcca", kind="sealed")
    assert (
        "'sealed' was chosen: strategy 'fedcca' makes a mixture for each site, which the usual 'masked' cannot do"
        in str(said)
    )
    named = {**table, "protection": {"kind": "encrypted"}}
    assert Study.parse(named).protection.kind == "encrypted"
    assert chosen_protection(named, strategy="fedcca", kind="encrypted") is None
    assert chosen_protection({}, strategy="fedavg", kind="masked") is None


# --- declarations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tasks.BUILT_IN)
def test_what_a_task_declares_are_keys_of_a_study(name: str) -> None:
    task = tasks.resolve(name)
    common = {f"strategy.{key}" for key in LocalTraining.model_fields}
    assert {key for key in task.defaults if key.startswith("strategy.")} <= common
    for strategy in ("fedavg", *task.defaults_with):
        quick = {"auxiliary_epochs": 0} if strategy == "fedasa" else {}
        study = Study.parse({"task": {"name": name}, "strategy": {"name": strategy, **quick}})
        table = filled(study).to_table()
        for default in found(study):
            section, _, key = default.key.partition(".")
            assert table[section][key] == default.value
        study.completed()


@pytest.mark.parametrize("key", ["strategy.lr", "training.learning_rate", "simulation", "task.hiden"])
def test_a_default_that_no_study_could_have_is_named(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr(tasks.resolve("digits"), "defaults", {key: 1})
    with pytest.raises(SettingsError, match=f"(?m)^'{key}', as suits task digits, is no key of a study$"):
        Study.parse({}).completed()


# --- files ------------------------------------------------------------------------------------------------------


def test_a_task_that_reads_files_says_which_and_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    table = {"task": {"name": "mnist"}, "simulation": {"nodes": 4}}
    with pytest.raises(SettingsError, match=r"^task 'mnist' reads files, and simulation.path is empty$") as caught:
        require_data(Study.parse(table).completed())
    assert all(word in caught.value.hint for word in ("MNIST database", "mnist.npz", FOLDER))
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (80, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "mnist.npz", x=images, y=np.arange(80) % 10)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    study = Study.parse(table).completed()
    assert study.simulation.path == str(tmp_path / "mnist.npz")
    require_data(study)
    # What the study lead has is no business of sites.
    deployed = Study.parse({**table, "study": {"roster": {"a": "0" * 64, "b": "1" * 64, "c": "2" * 64}}})
    assert deployed.completed().simulation.path == ""


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"task": {"name": "sine"}, "simulation": {"partition": "iid"}}, "own curve"),
        ({"task": {"name": "bearings"}, "simulation": {"nodes": 13}}, "from 12 sites and the study has 13 nodes"),
        ({"task": {"name": "digits"}, "simulation": {"nodes": 200}}, "rows cannot give each of 200 nodes"),
        ({"task": {"name": "breast-cancer"}, "simulation": {"partition": "rotated"}}, "turns images"),
    ],
)
def test_a_division_that_does_not_fit_is_found_at_the_first_site(table: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        require_data(Study.parse(table).completed())


class Misfit(Digits):
    """Its model wants other rows than it loads."""

    def model(self) -> nn.Module:
        return nn.Sequential(OrderedDict(head=nn.Linear(3, 10)))


def test_a_model_that_does_not_fit_its_rows_is_found_before_sites_wait_for_a_repair() -> None:
    name = f"{__name__}:Misfit"
    before = torch.random.get_rng_state()
    with pytest.raises(TaskUnavailableError, match="fails on the first rows: RuntimeError: mat1 and mat2") as caught:
        require_data(Study.of(task=name).completed())
    assert f"secure-fl task check {name}" in caught.value.hint
    assert torch.equal(before, torch.random.get_rng_state())
