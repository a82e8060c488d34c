"""`secure-fl pki`, as a person uses it."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from secure_fl.cli.pki import app
from secure_fl.errors import CertificateError, SecureFLError, StorageError, UnknownNameError
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import TrustStore, utc_now
from secure_fl.identity.credential import Credential

runner = CliRunner()


def run(*arguments: object) -> str:
    """Run a command; its `SecureFLError`, which the root prints, is raised here."""
    result = runner.invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, SecureFLError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def run_json(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run("init", tmp_path / "authority", "--consortium", "Heart Study")
    return tmp_path / "authority"


def test_the_keys_of_a_site_never_leave_it(folder: Path, tmp_path: Path) -> None:
    site, reply = tmp_path / "site", tmp_path / "reply"
    made = run_json("request", "node", "charite", "--out", site)
    assert all(stat.S_IMODE(Path(path).stat().st_mode) == 0o600 for path in made["keys"])
    issued = run_json("issue", folder, "node", "charite", "--request", made["request"], "--out", reply)
    assert issued["files"] == [str(reply / "node-charite.pem")]
    (reply / "node-charite.pem").rename(site / "node-charite.pem")
    credential = Credential.load(site, stem="node-charite")
    assert credential.certificate.fingerprint == issued["fingerprint"]
    trust = TrustStore((folder / "ca.pem").read_bytes(), folder / "crl.pem")
    trust.check(credential.certificate, role="node", now=utc_now())


def test_a_coordinator_in_one_step(folder: Path, tmp_path: Path) -> None:
    text = run("issue", folder, "coordinator", "hub", "--host", "a.org", "--host", "::1", "--out", tmp_path)
    credential = Credential.load(tmp_path, stem="coordinator-hub")
    assert credential.certificate.subject.hosts == ("a.org", "::1")
    assert credential.certificate.fingerprint in text


def test_revoke_and_list(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run("issue", folder, "node", name, "--out", tmp_path)
    revoked = run_json("revoke", folder, "a", "--reason", "keyCompromise")["revoked"]
    assert "already" in run("revoke", folder, "a")
    listed = run_json("list", folder)
    assert [(entry["name"], entry["state"]) for entry in listed] == [("a", "revoked"), ("b", "valid")]
    assert [listed[0]["fingerprint"]] == revoked
    table = run("list", folder)
    assert "revoked" in table
    assert "valid" in table


def test_the_roster_has_the_valid_sites_each_with_the_certificate_that_lasts(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        run("issue", folder, "node", name, "--out", tmp_path)
    run("issue", folder, "operator", "lead", "--out", tmp_path)
    run("revoke", folder, "b")
    renewed = run_json("issue", folder, "node", "a", "--renew", "--days", 400, "--out", tmp_path / "new")["fingerprint"]
    other = run("fingerprint", tmp_path / "node-c.pem").strip()
    assert tomllib.loads(run("roster", folder)) == {"study": {"roster": {"a": renewed, "c": other}}}
    assert tomllib.loads(run("roster", folder, "c")) == {"study": {"roster": {"c": other}}}
    with pytest.raises(UnknownNameError, match="unknown site 'b'"):
        run("roster", folder, "b", "c")


def test_the_list_of_revocations_is_published_anew(folder: Path) -> None:
    before = (folder / "crl.pem").read_bytes()
    assert run_json("crl", folder) == {"crl": str(folder / "crl.pem")}
    assert (folder / "crl.pem").read_bytes() != before


def test_renewal_is_asked_for(folder: Path, tmp_path: Path) -> None:
    run("issue", folder, "node", "a", "--out", tmp_path / "1")
    with pytest.raises(CertificateError, match="has a certificate"):
        run("issue", folder, "node", "a", "--out", tmp_path / "2")
    run("issue", folder, "node", "a", "--out", tmp_path / "2", "--renew")


def test_a_folder_in_use_costs_no_certificate(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "node-a.key").touch()
    with pytest.raises(StorageError, match="exists already"):
        run("issue", folder, "node", "a", "--out", tmp_path)
    assert Authority.open(folder).listing() == ()


def test_errors_reach_the_root(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        run("init", folder, "--consortium", "Other")
    with pytest.raises(UnknownNameError):
        run("revoke", folder, "nobody")
    with pytest.raises(CertificateError, match="is not a name"):
        run("request", "node", "../x", "--out", tmp_path)
    with pytest.raises(CertificateError, match="No such file"):
        run("issue", folder, "node", "a", "--request", tmp_path / "none", "--out", tmp_path)
    assert runner.invoke(app, ["issue", str(folder), "admin", "a"]).exit_code == 2


def test_a_request_under_another_name_is_refused(folder: Path, tmp_path: Path) -> None:
    request = run_json("request", "operator", "a", "--out", tmp_path)["request"]
    with pytest.raises(CertificateError, match="the request is for operator"):
        run("issue", folder, "node", "a", "--request", request, "--out", tmp_path / "reply")


@pytest.mark.parametrize("command", ["init", "issue", "request", "revoke", "crl", "list", "fingerprint", "roster"])
def test_help_has_an_example(command: str) -> None:
    assert f"Example: secure-fl pki {command}" in run(command, "--help")


def test_no_output_shows_a_key(folder: Path, tmp_path: Path) -> None:
    text = run("issue", folder, "node", "a", "--out", tmp_path) + run("list", folder)
    for path in [*tmp_path.glob("*.key"), folder / "ca.key"]:
        assert path.read_text().splitlines()[1] not in text
