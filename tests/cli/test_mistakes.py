"""Mistakes in a study: one line that says what and what to do, exit code 3, before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from secure_fl.cli import app, main
from secure_fl.errors import SecureFLError
from secure_fl.identity.authority import Authority
from secure_fl.study.doubts import doubts
from secure_fl.study.settings import Study
from secure_fl.tasks.public import FOLDER

invoke = CliRunner().invoke
NOISE: dict[str, Any] = {"mode": "dp-sgd", "epsilon": 3.0, "delta": 1e-5}
ROSTER = {name: f"{number:064x}" for number, name in enumerate(("a", "b", "c", "d"), 1)}

MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    # --- what a key may be
    ({"privacy": {"epsilon": -1}}, "privacy.epsilon: must be above 0 (got -1)", ""),
    ({"privacy": {"epsilon": "3"}}, "privacy.epsilon: must be a number above 0", "without quotes"),
    ({"privacy": {"mode": "dpsgd"}}, "privacy.mode: 'dpsgd' is not possible; did you mean 'dp-sgd'?", "none, dp-sgd"),
    ({"rounds": {"mode": "bufered"}}, "rounds.mode: 'bufered' is not possible; did you mean 'buffered'?", "sync"),
    ({"metrics": {"share": "agregate"}}, "'agregate' is not possible; did you mean 'aggregate'?", "per-node"),
    ({"protection": {"circles": "sped"}}, "'sped' is not possible; did you mean 'speed'?", "one of: auto, speed"),
    ({"protection": {"circles": [["a", 1]]}}, "protection.circles, entry 1, entry 2: must be text (got 1)", ""),
    ({"simulation": {"partition": "natura"}}, "did you mean 'natural'?", "dirichlet"),
    ({"simulation": {"seconds": -1}}, "simulation.seconds: must be from 0 to 3600 (got -1)", ""),
    ({"study": {"rounds": 2.5}}, "study.rounds: must be a whole number from 1 to 100000 (got 2.5)", ""),
    ({"strategy": {"epochs": 0}}, "strategy.epochs: must be from 1 to 1000 (got 0)", ""),
    ({"strategy": {"learning-rate": 1}}, "unknown key 'strategy.learning-rate'; did you mean 'learning_rate'?", ""),
    # --- differential privacy
    ({"privacy": {**NOISE, "delta": 2.0}}, "privacy.delta: must be above 0 and below 1 (got 2.0)", ""),
    ({"privacy": {**NOISE, "delta": 0.2}}, "privacy.delta = 0.2 is not between", "far below 1 / (number of records"),
    ({"privacy": {**NOISE, "delta": 0.01}}, "privacy.delta = 0.01 at a site with 130 records", "below 1 / 130"),
    ({"privacy": {**NOISE, "unit": "group"}}, "does not say which rows belong to the same group", 'unit = "record"'),
    ({"privacy": {**NOISE, "unit": "group"}, "task": {"name": "sine"}}, "never belong to a group", 'unit = "record"'),
    ({"privacy": {**NOISE, "epsilon": 1e-6}}, "leaves nothing to spend", "larger epsilon"),
    # --- data
    ({"task": {"name": "mnist"}}, "task 'mnist' reads files, and simulation.path is empty", "SECURE_FL_DATA"),
    ({"task": {"name": "mnist"}, "simulation": {"path": "no.npz"}}, "no.npz: no such file", ""),
    ({"task": {"name": "bearings"}, "simulation": {"nodes": 20}}, "from 12 sites and the study has 20", "at most 12"),
    ({"task": {"name": "visits"}, "simulation": {"partition": "iid"}}, "patients of its own", "natural"),
    ({"simulation": {"partition": "natural"}}, "carry no site labels", "use iid"),
    ({"simulation": {"slow": {"site-1": 5.0}}}, "no simulated site is called 'site-1'", "site-01"),
    ({"simulation": {"nodes": 3, "slow": {"site-04": 5.0}}}, "site is called 'site-04'", "site-01 to site-03"),
    ({"simulation": {"nodes": 500}}, "cannot give each of 500 nodes", "fewer nodes"),
    # --- parts that do not fit together
    ({"strategy": {"name": "fedcca"}, "protection": {"kind": "masked"}}, "'masked' does not serve", "sealed"),
    ({"strategy": {"name": "fedasa"}, "task": {"name": "digits"}}, "this task's model has none", "bearings"),
    ({"simulation": {"nodes": 2}}, "2 sites, but nothing is opened with fewer than 3 contributors", "--nodes"),
    ({"strategy": {"name": "fedamp"}, "simulation": {"nodes": 3}}, "3 sites, but nothing", "more sites"),
    ({"rounds": {"mode": "buffered"}, "protection": {"recovery": True}}, "merges one whole circle at a time", "sync"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def without_public_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)


def complaint(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr("sys.argv", ["secure-fl", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr().err
    assert left.value.code == 3, said
    return said


@pytest.mark.parametrize(("table", "message", "advice"), MISTAKES)
def test_check_and_run_say_the_same_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    table: dict[str, Any],
    message: str,
    advice: str,
) -> None:
    path, out = tmp_path / "study.toml", tmp_path / "run"
    path.write_text(tomli_w.dumps(table))
    monkeypatch.chdir(tmp_path)
    checked = complaint(["study", "check", str(path)], monkeypatch, capsys)
    ran = complaint(["run", str(path), "--engine", "threads", "--out", str(out)], monkeypatch, capsys)
    assert not out.exists()
    for said in (checked, ran):
        problem, *hints = [line for line in said.splitlines() if not line.startswith(("as suits", "protection "))]
        assert problem.startswith("secure-fl: ")
        assert message in problem
        assert len(hints) <= 1
        assert advice in " ".join(hints)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"privacy": {**NOISE, "delta": 0.2}}, "privacy.delta = 0.2 is not between"),
        ({"privacy": {**NOISE, "unit": "group"}, "task": {"name": "heart"}}, "never belong to a group"),
        ({"strategy": {"name": "fedasa"}, "task": {"name": "digits"}}, "model has none"),
        ({"study": {"roster": {}}}, "[study.roster] is empty"),
    ],
)
def test_what_needs_no_data_is_found_before_a_study_is_submitted(
    tmp_path: Path, table: dict[str, Any], message: str
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps({"study": {"roster": ROSTER}, **table}))
    # There is no operator.toml: whoever looked for one first would say so.
    result = invoke(app, ["study", "submit", str(path), "--as", str(tmp_path / "operator.toml")])
    assert isinstance(result.exception, SecureFLError)
    assert result.exception.exit_code == 3
    assert message in result.exception.message


def test_a_study_that_is_not_written_out_is_handed_in_with_a_word_about_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps({"study": {"roster": ROSTER}}))
    submit = ["study", "submit", str(path), "--as", str(tmp_path / "operator.toml")]
    assert f"study check {path} --write {path}" in invoke(app, submit).stderr
    assert invoke(app, ["study", "check", str(path), "--write", str(path)]).exit_code == 0
    assert "not written out" not in invoke(app, submit).stderr


def test_a_budget_that_protects_nobody_is_allowed_and_said(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps({"privacy": {**NOISE, "epsilon": 1e9}, "study": {"roster": ROSTER}}))
    assert "warning: privacy.epsilon = 1e+09 is practically no protection" in invoke(
        app, ["study", "check", str(path)]
    ).stdout  # fmt: skip
    (said,) = json.loads(invoke(app, ["study", "check", str(path), "--json"]).stdout)["warnings"]
    assert "no protection" in said
    result = invoke(app, ["study", "submit", str(path), "--as", str(tmp_path / "operator.toml")])
    assert "warning: privacy.epsilon" in result.stderr
    assert doubts(Study.parse({"privacy": {**NOISE, "epsilon": 10.0}})) == ()
    assert "for tests" in doubts(Study.parse({"protection": {"kind": "none"}}))[0]
    buffered: dict[str, Any] = {"rounds": {"mode": "buffered"}, "simulation": {"nodes": 6}}
    assert "6 sites are one circle" in doubts(Study.parse(buffered))[0]
    assert doubts(Study.parse({**buffered, "simulation": {"nodes": 8}})) == ()
    rounds: dict[str, Any] = {"mode": "buffered", "buffer": 2}
    two: dict[str, Any] = {"simulation": {"nodes": 8}, "rounds": rounds}
    assert "one absent site may hold every circle up" in doubts(Study.parse(two))[0]
    assert doubts(Study.parse({**two, "rounds": {**rounds, "flush_after": 60}})) == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "every site counts the same: set protection.reference_samples"),
        ({"protection": {"reference_samples": 300}}, ""),  # circles of five
        ({"protection": {"reference_samples": 300}, "simulation": {"nodes": 3}}, "circles of 3"),
        ({"strategy": {"name": "aifed", "richness": "none"}}, ""),
        ({"privacy": {**NOISE, "epsilon": 3.0}}, ""),  # where weights by labels are off in any case
    ],
)
def test_a_strategy_whose_weights_would_do_nothing_is_remarked(changes: dict[str, Any], said: str) -> None:
    """AiFed's aggregation is about weights, and a study has to say that sites may count differently."""
    found = doubts(Study.parse({"strategy": {"name": "aifed"}, **changes}))
    assert [said in sentence for sentence in found] == ([True] if said else [])


@pytest.mark.parametrize(
    ("key", "value", "partition", "used_by"),
    [
        ("alpha", 0.3, "iid", "dirichlet"),
        ("classes", 3, "dirichlet", "pathological"),
        ("domains", 3, "natural", "rotated"),
        ("degrees", 180, "pathological", "rotated-pathological"),
    ],
)
def test_a_value_that_the_partition_does_not_look_at_is_said(
    key: str, value: float, partition: str, used_by: str
) -> None:
    (said,) = doubts(Study.parse({"simulation": {key: value, "partition": partition}}))
    assert f"simulation.{key} = {value} changes nothing" in said
    assert repr(used_by) in said
    assert doubts(Study.parse({"simulation": {key: value, "partition": used_by}})) == ()
    assert doubts(Study.parse({"simulation": {"partition": partition}})) == ()


def test_run_says_what_it_chose_and_prints_nothing_else_with_json(tmp_path: Path) -> None:
    arguments = [
        "run",
        "--task",
        "visits",
        "--strategy",
        "fedamp",
        "--engine",
        "threads",
        "--nodes",
        "4",
        "--rounds",
        "1",
    ]
    result = invoke(app, [*arguments, "--out", str(tmp_path / "a")])
    assert result.exit_code == 0, result.exception
    assert "as suits task visits: simulation.partition = natural" in result.stderr
    assert "protection 'sealed' was chosen" in result.stderr
    assert "\n1 round in " in result.stdout
    result = invoke(app, [*arguments, "--out", str(tmp_path / "b"), "--json"])
    assert json.loads(result.stdout)["seeded"] is None
    assert "as suits" not in result.stderr


def test_the_table_of_a_run_fits_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from secure_fl.cli.run import _print

    monkeypatch.setenv("COLUMNS", "80")
    node = {
        "name": "site-100", "samples": 123_456, "accuracy": 0.98765, "loss": 12.34567, "epsilon": 12.345678,
        "bytes_up": 123_456_789, "bytes_down": 987_654_321, "rounds_taken": 1000, "dropped": 100,
        "metrics": {},
    }  # fmt: skip
    summary = {
        "study": "x", "strategy": "fedavg", "protection": "masked", "engine": "threads", "rounds": 1000, "seconds": 1.0,
        "mean_mse": None, "mean_accuracy": 0.5, "std_accuracy": 0.1, "global_accuracy": 0.5, "nodes": [node],
        "combinations_possible": None, "circles": None, "combinations_opened": 0, "blocks_never_opened": [],
        "report": "x", "metrics": {},
    }  # fmt: skip
    _print(summary)
    said = capsys.readouterr().out
    for cell in ("12.3", "123.5 MB", "987.7 MB", "0.9877", "dropped", "ε"):
        assert cell in said
    assert "…" not in said


def test_a_lead_with_the_ca_of_another_consortium_is_told_so_before_anybody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The coordinator's certificate would look foreign, and the advice would be about a firewall."""
    ours = Authority.create(tmp_path / "pki", consortium="ours")
    certificate, _, _ = ours.issue("operator", "lead").save(tmp_path)
    hub = {"coordinator": "127.0.0.1:1", "fingerprint": "0" * 64, "certificate": certificate.name}
    (tmp_path / "operator.toml").write_text(tomli_w.dumps({"operator": {**hub, "crl": "pki/crl.pem"}}))
    monkeypatch.setattr("sys.argv", ["secure-fl", "study", "status", "--as", str(tmp_path / "operator.toml")])
    foreign = Authority.create(tmp_path / "other", consortium="theirs").ca_pem
    for pem, code, says in (
        (foreign, 5, "ca.pem is not the authority that signed this certificate"),
        (ours.ca_pem, 4, "connection refused"),
    ):
        (tmp_path / "ca.pem").write_bytes(pem)
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr().err
        assert (left.value.code, says in said) == (code, True), said
