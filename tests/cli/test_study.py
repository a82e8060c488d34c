"""`secure-fl study new|check|show`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from secure_fl import protect, strategies
from secure_fl.cli import app
from secure_fl.study import Study

invoke = CliRunner().invoke


def test_a_new_study_is_valid_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    assert invoke(app, ["study", "new", str(path), "--name", "trial"]).exit_code == 0
    study = Study.read(path).completed()
    assert study.study.name == "trial"
    result = invoke(app, ["study", "check", str(path), "--json"])
    assert json.loads(result.stdout) == {"study": "trial", "id": study.id, "sites": 0, "valid": True}


@pytest.mark.parametrize("strategy", strategies.known())
def test_every_strategy_can_be_shown(tmp_path: Path, strategy: str) -> None:
    path = tmp_path / "study.toml"
    invoke(app, ["study", "new", str(path), "--strategy", strategy, "--task", "breast-cancer"])
    result = invoke(app, ["study", "show", str(path)])
    assert result.exit_code == 0, result.output
    for heading in ("What it does", "What leaves a site", "Who learns what", "Differential privacy"):
        assert heading in result.stdout
    assert "UNSAFE" in result.stdout
    assert Study.read(path).completed().id in result.stdout


def test_help_teaches() -> None:
    for command in ([], ["run"], ["study"], ["pki"], ["study", "new"]):
        result = invoke(app, [*command, "--help"])
        assert result.exit_code == 0
        assert "Usage" in result.stdout
    assert "Example" in invoke(app, ["run", "--help"]).stdout
    assert protect.known()


def test_version() -> None:
    assert invoke(app, ["--version"]).stdout.startswith("secure-fl 0.")
