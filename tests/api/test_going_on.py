"""A study that goes on from a model: in a simulation, and as a study file that sites can judge."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from secure_fl import Run, Study, simulate, tasks
from secure_fl.cli import app
from secure_fl.errors import InitialModelError, LayoutMismatchError, SettingsError
from secure_fl.study.explain import explain
from secure_fl.study.given import continued, start_from
from secure_fl.study.submission import start_of_study
from secure_fl.tasks.model_blocks import initial_blocks
from secure_fl.tasks.state_dict import save_model

QUICK: dict[str, Any] = {"task": "breast-cancer", "nodes": 3, "progress": False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return simulate(**QUICK, rounds=2, out=tmp_path_factory.mktemp("runs") / "first")


def test_a_run_begins_where_another_ended(trained: Run, tmp_path: Path) -> None:
    model = trained.models.path("global")
    before = trained.history["accuracy"].iloc[-1]
    on = simulate(**QUICK, rounds=1, start=model, out=tmp_path / "on")
    assert on.history["accuracy"].iloc[0] == before > 0.8  # before its first round
    # As without the model: nobody else looks into what a coordinator keeps.
    states = [run.folder / "coordinator" / "state" for run in (trained, on)]
    assert [stat.S_IMODE(state.stat().st_mode) for state in states] == [0o700, 0o700]
    assert (on.study.study.start, on.study.study.initial) != ("seed", trained.study.study.initial)
    # The same call again is another run of the same study; without the model it is another study.
    assert continued(Study.of(task="breast-cancer"), model)[0].study.initial == on.study.study.initial
    result = CliRunner().invoke(
        app,
        [
            "run", "--task", "breast-cancer", "--nodes", "3", "--rounds", "1", "--engine", "threads", "--json",
            "--from", str(model), "--out", str(tmp_path / "cli"),
        ],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert Run.open(tmp_path / "cli").history["accuracy"].iloc[0] == before


def test_what_is_no_such_model_is_refused(trained: Run, tmp_path: Path) -> None:
    model = trained.models.path("global")
    with pytest.raises(LayoutMismatchError):
        simulate(task="digits", nodes=3, start=model, out=tmp_path / "out", progress=False)
    task = tasks.create("breast-cancer", {})
    _, blocks = initial_blocks(task, 0)
    blocks["head"][0] = np.nan
    save_model(tmp_path / "nan.safetensors", task, blocks, seed=0)
    with pytest.raises(InitialModelError, match="NaN"):
        simulate(**QUICK, start=tmp_path / "nan.safetensors", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_study_file_names_its_model(trained: Run, tmp_path: Path) -> None:
    model, path = trained.models.path("global"), tmp_path / "on.toml"
    result = CliRunner().invoke(app, ["study", "new", str(path), "--task", "breast-cancer", "--from", str(model)])
    assert result.exit_code == 0, result.output
    study = Study.read(path).completed()
    assert study.study.start == "given"
    study.check(nodes=3)
    assert start_from(study, model).first_model().digest == study.study.initial
    said = " ".join(sentence for section in explain(study) for sentence in section.sentences)
    assert "The study lead supplies the starting model" in said
    # Nobody takes the seed's model for it, nor another file.
    with pytest.raises(InitialModelError, match="did not come with it"):
        start_of_study(study)
    with pytest.raises(InitialModelError, match="is not the model that the study names"):
        start_from(study, other_model(tmp_path))
    unnamed = study.changed({"study.initial": ""})
    with pytest.raises(InitialModelError, match="names no model"):
        unnamed.completed()
    # And a study that should start from its seed still has to.
    with pytest.raises(InitialModelError, match="seed makes here"):
        study.changed({"study.start": "seed"}).check(nodes=3)


def other_model(folder: Path) -> Path:
    task = tasks.create("breast-cancer", {})
    save_model(folder / "other.safetensors", task, initial_blocks(task, 1)[1], seed=1)
    return folder / "other.safetensors"


def test_the_words_of_a_study_do_not_go_on_by_accident() -> None:
    with pytest.raises(SettingsError, match=r"study\.start"):
        Study.of({"study.start": "model"})
