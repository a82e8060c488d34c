"""`secure-fl study new|check|show`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import cast

import pytest
import tomli_w
from typer.testing import CliRunner

from secure_fl import protect, strategies
from secure_fl.api.operator import find
from secure_fl.cli import app
from secure_fl.errors import SettingsError, UnknownStudyError, UsageError
from secure_fl.identity.authority import Authority
from secure_fl.operations.operator import Operator
from secure_fl.rpc import operations_pb2 as pb
from secure_fl.study.settings import Study

invoke = CliRunner().invoke


def test_a_new_study_is_valid_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    assert invoke(app, ["study", "new", str(path), "--name", "trial"]).exit_code == 0
    study = Study.read(path).completed()
    assert study.study.name == "trial"
    result = invoke(app, ["study", "check", str(path), "--json"])
    assert json.loads(result.stdout) == {
        "study": "trial", "id": study.id, "sites": 0, "valid": True, "dropouts_tolerated": 0,
        "circles": [5, 5], "defaults": {}, "warnings": [],
    }  # fmt: skip


def test_a_new_study_names_the_data_of_the_sites(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    for name, options in (("digits", []), ("wards", ["--dataset", "wards"])):
        assert invoke(app, ["study", "new", str(path), "--force", *options]).exit_code == 0
        assert Study.read(path).task.dataset_id == name


def test_a_new_study_takes_the_sites_from_the_authority(tmp_path: Path) -> None:
    path, sites, authority = tmp_path / "study.toml", tmp_path / "roster.toml", str(tmp_path / "pki")
    assert invoke(app, ["pki", "init", authority, "--consortium", "Heart"]).exit_code == 0
    opened = Authority.open(Path(authority))
    issued = {site: opened.issue("node", site).certificate.fingerprint for site in ("a.b", "c", "d")}
    sites.write_text(invoke(app, ["pki", "roster", authority]).stdout)
    arguments = ["study", "new", str(path), "--rounds", "3", "--roster", str(sites)]
    assert invoke(app, arguments).exit_code == 0
    assert (Study.read(path).study.rounds, Study.read(path).study.roster) == (3, issued)


@pytest.mark.parametrize("text", ["", "[study.roster]\n", '[study]\nname = "x"\n', None])
def test_a_roster_that_names_nobody_is_refused(tmp_path: Path, text: str | None) -> None:
    sites = tmp_path / "roster.toml"
    if text is not None:
        sites.write_text(text)
    result = invoke(app, ["study", "new", str(tmp_path / "study.toml"), "--roster", str(sites)])
    assert isinstance(result.exception, SettingsError)
    assert result.exception.message == f"{sites}: {'no such file' if text is None else 'names no site'}"
    assert "pki sign" in result.exception.hint
    assert "pki roster" in result.exception.hint
    assert not (tmp_path / "study.toml").exists()


@pytest.mark.parametrize("wrong", [["--rounds", "0"], ["--name", 'a"b'], ["--name", "A"]])
def test_a_study_that_cannot_be_is_not_written(tmp_path: Path, wrong: list[str]) -> None:
    result = invoke(app, ["study", "new", str(tmp_path / "study.toml"), *wrong])
    assert isinstance(result.exception, SettingsError)
    assert not list(tmp_path.iterdir())


class Lead:
    """What a coordinator with three studies answers."""

    async def status(self) -> tuple[pb.StudyStatus, ...]:
        rows = (("heart", "ab"), ("heart", "ac"), ("lung", "b0"))
        return tuple(pb.StudyStatus(name=name, study_id=start + "0" * 62) for name, start in rows)


def test_a_study_is_meant_by_its_name_or_the_beginning_of_its_hash_unless_two_could_be() -> None:
    lead = cast("Operator", Lead())
    for wanted, start in {"lung": "b0", "b": "b0", "ab": "ab", "ac0": "ac"}.items():
        assert asyncio.run(find(lead, wanted)) == start + "0" * 62
    assert asyncio.run(find(lead, "f" * 64)) == "f" * 64  # a whole hash is for the coordinator to judge
    for wanted in ("heart", "a"):
        with pytest.raises(UsageError, match=r"could be any of: heart ab0+, heart ac0+"):
            asyncio.run(find(lead, wanted))
    with pytest.raises(UnknownStudyError) as unknown:
        asyncio.run(find(lead, "liver"))
    assert unknown.value.exit_code == SettingsError.exit_code  # nothing failed: the command names what is not there


@pytest.mark.parametrize("strategy", strategies.known())
def test_every_strategy_can_be_shown(tmp_path: Path, strategy: str) -> None:
    path = tmp_path / "study.toml"
    invoke(app, ["study", "new", str(path), "--strategy", strategy, "--task", "breast-cancer"])
    table = Study.read_table(path)
    if strategies.create(strategy, {}).attention:
        table["protection"]["kind"] = "sealed"  # masks serve sums only
        table["task"] = {"name": "digits"}  # of which there is enough to be compared by
    if strategy == "fedasa":
        table["task"] = {"name": "bearings", "network": "cells"}
    path.write_text(tomli_w.dumps(table))
    result = invoke(app, ["study", "show", str(path)])
    assert result.exit_code == 0, result.output
    for heading in ("What it does", "What leaves a site", "Who learns what", "Differential privacy"):
        assert heading in result.stdout
    assert "UNSAFE" not in result.stdout
    assert Study.read(path).completed().id in result.stdout


def test_help_teaches() -> None:
    for group in ([], ["run"], ["study"], ["pki"], ["study", "new"]):
        result = invoke(app, [*group, "--help"])
        assert result.exit_code == 0
        assert "Usage" in result.stdout
    taught = (
        "run",
        "study new",
        "study check",
        "study show",
        "study submit",
        "study status",
        "study stop",
        "study export",
    )
    for command in taught:
        assert "Example" in invoke(app, [*command.split(), "--help"]).stdout, command
    assert protect.known()


def test_version() -> None:
    assert invoke(app, ["--version"]).stdout.startswith("secure-fl 0.")


def test_a_study_whose_rounds_tolerate_no_dropout_says_so(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text("[simulation]\nnodes = 8\n")
    assert (
        "2 circles of 4 sites; a circle's total is computed only when all its sites are present"
        in invoke(app, ["study", "check", str(path)]).stdout
    )
    path.write_text("[protection]\nrecovery = true\n[simulation]\nnodes = 3\n")
    assert "no dropout is tolerated" in invoke(app, ["study", "check", str(path)]).stdout
    path.write_text("[protection]\nrecovery = true\n[simulation]\nnodes = 4\n")
    assert "of 4 sites 1 may drop out" in invoke(app, ["study", "check", str(path)]).stdout
