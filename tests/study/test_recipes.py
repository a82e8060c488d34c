"""`secure-fl study new --recipe`: each recipe is a study that passes its checks and runs."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from secure_fl.cli import app
from secure_fl.errors import UnknownNameError, UsageError
from secure_fl.events import ignore
from secure_fl.simulation.run import run
from secure_fl.study import recipes
from secure_fl.study.settings import Study
from secure_fl.tasks.public import FOLDER

ROOT = Path(__file__).parents[2]
RECIPES = ("aifed", "factory", "fedasa", "fedcca", "hospital", "pflda", "pflsensing")
# What makes a run of seconds out of one of minutes.
QUICK = {"strategy": {"fedasa": {"epochs": 1, "auxiliary_epochs": 0}}, "task": {"bearings": {"windows": 4}}}
FEWER: dict[str, dict[str, Any]] = {
    "aifed": {"nodes": 8, "slow": {}},
    "factory": {"nodes": 4},
    "fedasa": {"nodes": 4, "test_fraction": 0.5},
    "fedcca": {"nodes": 6},
    "hospital": {"nodes": 3},
    "pflda": {"nodes": 4},
    "pflsensing": {"nodes": 4, "alpha": 10.0},
}

invoke = CliRunner().invoke


@pytest.fixture(autouse=True)
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with as many small images as the recipes divide."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4800, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "mnist.npz", x=pixels, y=np.arange(4800) % 10)
    monkeypatch.setenv(FOLDER, str(tmp_path))


def written(name: str, folder: Path) -> Path:
    path = folder / f"{name}.toml"
    result = invoke(app, ["study", "new", str(path), "--recipe", name, "--name", f"a-{name}"])
    assert result.exit_code == 0, result.output
    return path


def test_there_are_these_and_help_lists_each_in_one_line() -> None:
    assert tuple(recipes.known()) == RECIPES
    text = invoke(app, ["study", "new", "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).stdout
    for name, line in recipes.known().items():
        assert re.search(rf"{name} +{re.escape(line)}", text)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_passes_the_check_as_it_is_written(tmp_path: Path, name: str) -> None:
    path = written(name, tmp_path)
    # Without the training of the model that FedASA's coordinator makes features with, which takes seconds.
    path.write_text(path.read_text().replace('name = "fedasa"', 'name = "fedasa"\nauxiliary_epochs = 0'))
    result = invoke(app, ["study", "check", str(path)])
    assert result.exit_code == 0, result.exception
    assert "warning" not in result.stdout
    assert Study.read(path).study.name == f"a-{name}"
    for page in re.findall(r"docs/results/[a-z]+\.md", path.read_text()):
        assert (ROOT / page).exists()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs(tmp_path: Path, name: str) -> None:
    table = Study.read_table(written(name, tmp_path))
    table["study"] |= {"rounds": 1}
    table["simulation"] |= FEWER[name]
    table["strategy"] |= QUICK["strategy"].get(table["strategy"]["name"], {"epochs": 1})
    table["task"] |= QUICK["task"].get(table["task"]["name"], {})
    if table["task"]["name"] == "mnist":
        table["task"] |= {"limit": 200, "network": "mlp", "hidden": 32}
    table.get("rounds", {}).pop("flushes", None)
    study = Study.parse(table)
    _, summary = run(study, engine="threads", folder=tmp_path / "run", policy={}, listener=ignore)
    assert summary["rounds"] == 1
    assert summary["seeded"] is (True if name == "hospital" else None)


def test_a_recipe_takes_the_roster_and_a_fresh_seed(tmp_path: Path) -> None:
    roster = tmp_path / "roster.toml"
    roster.write_text('[study.roster]\nnorth = "' + "0" * 64 + '"\nsouth = "' + "1" * 64 + '"\n')
    seeds = []
    for number in range(2):
        path = tmp_path / f"{number}.toml"
        invoke(app, ["study", "new", str(path), "--recipe", "hospital", "--roster", str(roster)])
        assert list(Study.read(path).study.roster) == ["north", "south"]
        seeds.append(Study.read(path).study.seed)
    assert seeds[0] != seeds[1]


def test_a_recipe_that_is_unknown_or_half_overruled_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    result = invoke(app, ["study", "new", str(path), "--recipe", "hospitl"])
    assert isinstance(result.exception, UnknownNameError)
    assert result.exception.nearest == "hospital"
    result = invoke(app, ["study", "new", str(path), "--recipe", "hospital", "--strategy", "ditto"])
    assert isinstance(result.exception, UsageError)
    assert not path.exists()


def test_each_recipe_has_a_page_with_its_command_and_what_came_out() -> None:
    table = (ROOT / "docs" / "defaults.md").read_text(encoding="utf-8").partition("## Recipes")[2]
    for name in RECIPES:
        text = recipes.written(name, study="x", seed=0, roster="")
        (first, *_) = re.findall(r"docs/(results/[a-z]+\.md)", text)
        assert f"--recipe {name}" in (ROOT / "docs" / first).read_text(encoding="utf-8")
        (row,) = re.findall(rf"^\| `{name}` \| (.+) \|$", table, re.MULTILINE)
        assert f"({first}" in row


def test_settings_of_a_recipe_are_those_of_its_page() -> None:
    """The commands of docs/results set these keys; the recipe says the same."""
    for name, page in {"fedasa": "cells", "pflda": "pflda", "pflsensing": "pflsensing", "fedcca": "attention"}.items():
        text = (ROOT / "docs" / "results" / f"{page}.md").read_text(encoding="utf-8")
        command = re.search(r"secure-fl bench strategies.*?```", text, re.DOTALL)
        assert command is not None
        recipe = recipes.written(name, study="x", seed=0, roster="")
        for key, value in re.findall(r"--set '?(strategy|task|simulation)\.([a-z_]+=[^\s']+)", command[0]):
            setting, _, expected = value.partition("=")
            if setting == "path":
                continue
            assert re.search(rf"^{setting} = \"?{re.escape(expected).replace(',', ', *')}\"?", recipe, re.MULTILINE), (
                name,
                key,
                value,
            )
        for option, setting in {"rounds": "rounds", "nodes": "nodes"}.items():
            number = re.search(rf"--{option} (\d+)", command[0])
            assert number is not None
            assert re.search(rf"^{setting} = {number[1]}\b", recipe, re.MULTILINE), (name, option)


# Of each recipe's settings, but for name, seed and roster. After a change, measure its page anew; then write these.
MEASURED = {
    "aifed": "c611af78cd72",
    "factory": "95c02a9a8b02",
    "fedasa": "ba81968cdb8b",
    "fedcca": "a27e77f4411e",
    "hospital": "e1c8331a1986",
    "pflda": "c3c0427d5133",
    "pflsensing": "72307d75be16",
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_not_changed_without_its_page(tmp_path: Path, name: str) -> None:
    table = Study.read_table(written(name, tmp_path))
    for key in ("name", "seed", "roster"):
        table["study"].pop(key, None)
    assert hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:12] == MEASURED[name]
