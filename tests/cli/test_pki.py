"""`secure-fl pki`, as a person uses it."""

from __future__ import annotations

import shutil
import stat
import tomllib
from pathlib import Path

import pytest

from secure_fl.errors import CertificateError, SecureFLError, StorageError, UnknownNameError, UsageError
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import TrustStore, utc_now
from secure_fl.identity.credential import Credential, make_request, save_request
from secure_fl.identity.invitation import Invitation
from tests.cli.consortium import found, on, run, run_json


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run("pki", "init", tmp_path / "authority", "--consortium", "Heart Study")
    return tmp_path / "authority"


def request(folder: Path, name: str, *, role: str = "node", hosts: tuple[str, ...] = ()) -> Path:
    """A request as a party sends it."""
    csr, tls_key, signing_key = make_request(role, name, hosts=hosts)
    return save_request(folder, stem=f"{role}-{name}", request=csr, tls_key=tls_key, signing_key=signing_key)[0]


def sign(authority: Path, *requests: Path, out: Path, options: tuple[str, ...] = ()) -> list[str]:
    """Sign requests; returns the fingerprints."""
    done = run_json("pki", "sign", authority, *requests, "--out", out, *options)
    return [one["fingerprint"] for one in done["signed"]]


def test_the_keys_of_a_site_never_leave_it(folder: Path, tmp_path: Path) -> None:
    site, reply = tmp_path / "site", tmp_path / "reply"
    csr = request(site, "charite")
    done = run_json("pki", "sign", folder, csr, "--out", reply)
    assert done["signed"][0]["reply"] == str(reply / "node-charite.reply.toml")
    assert done["written"] == [str(reply / "roster.toml")]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in site.glob("*.key"))
    handed_out = Invitation.read(reply / "node-charite.reply.toml", now=utc_now())
    assert handed_out.certificate is not None
    (site / "node-charite.pem").write_bytes(handed_out.certificate.pem)
    credential = Credential.load(site, stem="node-charite")
    assert credential.certificate.fingerprint == done["signed"][0]["fingerprint"]
    trust = TrustStore((folder / "ca.pem").read_bytes(), folder / "crl.pem")
    trust.check(credential.certificate, role="node", now=utc_now())


def test_revoke_and_list(folder: Path, tmp_path: Path) -> None:
    first, _ = sign(folder, request(tmp_path, "a"), request(tmp_path, "b"), out=tmp_path / "reply")
    assert run_json("pki", "revoke", folder, "a", "--reason", "keyCompromise")["revoked"] == [first]
    assert "already" in run("pki", "revoke", folder, "a")
    listed = run_json("pki", "list", folder)
    assert [(entry["name"], entry["state"]) for entry in listed] == [("a", "revoked"), ("b", "valid")]
    table = run("pki", "list", folder)
    assert "revoked" in table
    assert "valid" in table


def test_the_roster_has_the_valid_sites_each_with_its_key(folder: Path, tmp_path: Path) -> None:
    csrs = [request(tmp_path, name) for name in ("a", "b", "c")]
    sign(folder, *csrs, request(tmp_path, "lead", role="operator"), out=tmp_path / "reply")
    run("pki", "revoke", folder, "b")
    run("pki", "revoke", folder, "a")
    (renewed,) = sign(folder, request(tmp_path / "new", "a"), out=tmp_path / "reply")
    other = next(entry["fingerprint"] for entry in run_json("pki", "list", folder) if entry["name"] == "c")
    assert tomllib.loads(run("pki", "roster", folder)) == {"study": {"roster": {"a": renewed, "c": other}}}
    assert (tmp_path / "reply" / "roster.toml").read_text() == run("pki", "roster", folder)
    assert tomllib.loads(run("pki", "roster", folder, "c")) == {"study": {"roster": {"c": other}}}
    with pytest.raises(UnknownNameError, match="unknown site 'b'"):
        run("pki", "roster", folder, "b", "c")


def test_the_list_of_revocations_is_published_anew(folder: Path) -> None:
    before = (folder / "crl.pem").read_bytes()
    assert run_json("pki", "crl", folder) == {"crl": str(folder / "crl.pem")}
    assert (folder / "crl.pem").read_bytes() != before


def test_a_second_certificate_is_asked_for_and_is_for_the_same_keys(folder: Path, tmp_path: Path) -> None:
    sign(folder, request(tmp_path / "1", "a"), out=tmp_path)
    again = request(tmp_path / "2", "a")
    with pytest.raises(CertificateError, match="has a certificate"):
        run("pki", "sign", folder, again, "--out", tmp_path)
    with pytest.raises(CertificateError, match="another key than the one it is known by"):
        run("pki", "sign", folder, again, "--out", tmp_path, "--renew")
    run("pki", "revoke", folder, "a")
    said = run("pki", "sign", folder, again, "--out", tmp_path)
    assert Authority.open(folder).certificates("node")[0].fingerprint in said


def test_of_several_requests_all_are_signed_or_none(folder: Path, tmp_path: Path) -> None:
    sign(folder, request(tmp_path / "1", "b"), out=tmp_path)
    with pytest.raises(CertificateError, match="node 'b' has a certificate"):
        run("pki", "sign", folder, request(tmp_path, "a"), request(tmp_path / "2", "b"), "--out", tmp_path)
    assert [entry.name for entry in Authority.open(folder).listing()] == ["b"]


def test_a_request_is_for_whom_its_file_name_says(folder: Path, tmp_path: Path) -> None:
    """Whoever signs reads the names of the files: a request for an operator must not come as a site's."""
    lead = request(tmp_path, "a", role="operator")
    lead.rename(tmp_path / "node-a.csr.pem")
    with pytest.raises(CertificateError, match="the request is for operator 'a', not for node 'a'"):
        run("pki", "sign", folder, tmp_path / "node-a.csr.pem")
    for name in ("a.csr.pem", "admin-a.csr.pem", "node-a"):
        (tmp_path / name).touch()
        with pytest.raises(UsageError, match="does not say for whom"):
            run("pki", "sign", folder, tmp_path / name)


def test_an_invitation_names_a_host_of_the_coordinator(folder: Path, tmp_path: Path) -> None:
    csr = request(tmp_path, "hub", role="coordinator", hosts=("fl.example.org", "10.0.0.7"))
    with pytest.raises(UsageError, match=r"'other\.org' is not a host of coordinator 'hub'"):
        run("pki", "sign", folder, csr, "--address", "other.org:8443")
    assert Authority.open(folder).listing() == ()
    (fingerprint,) = sign(folder, csr, out=tmp_path)
    invitation = Invitation.read(tmp_path / "invitation.toml", now=utc_now())
    assert (invitation.coordinator, invitation.fingerprint) == ("fl.example.org:8443", fingerprint)
    (tmp_path / "again.toml").write_text(run("pki", "invite", folder, "--coordinator", "10.0.0.7:99"))
    assert Invitation.read(tmp_path / "again.toml", now=utc_now()).coordinator == "10.0.0.7:99"
    sign(folder, request(tmp_path, "other", role="coordinator", hosts=("b.org",)), out=tmp_path)
    with pytest.raises(UsageError, match="2 coordinators"):
        run("pki", "invite", folder)
    assert "b.org:8443" in run("pki", "invite", folder, "--name", "other")


def test_the_authoritys_fingerprint_is_what_everybody_compares(tmp_path: Path) -> None:
    reply, _ = found(tmp_path)
    printed = run("pki", "fingerprint", tmp_path / "authority" / "pki" / "ca.pem").strip()
    assert printed == Invitation.read(reply / "invitation.toml", now=utc_now()).authority_fingerprint
    with on(tmp_path / "site"):
        said = run("node", "join", reply / "invitation.toml", "--name", "a")
    assert printed in said.replace(" ", "")


def test_errors_reach_the_root(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        run("pki", "init", folder, "--consortium", "Other")
    with pytest.raises(UnknownNameError):
        run("pki", "revoke", folder, "nobody")
    with pytest.raises(CertificateError, match="No such file"):
        run("pki", "sign", folder, tmp_path / "node-a.csr.pem")
    with pytest.raises(UsageError, match="--address goes with"):
        run("pki", "sign", folder, request(tmp_path, "a"), "--address", "a.org:1")


def test_a_certificate_is_renewed_for_the_same_keys(tmp_path: Path) -> None:
    reply, _ = found(tmp_path)
    with on(tmp_path / "site") as site:
        run("node", "join", reply / "invitation.toml", "--name", "a")
        csr = site / "node-a.csr.pem"
        run("pki", "sign", "../authority/pki", csr, "--out", reply)
        run("node", "join", reply / "node-a.reply.toml")
        assert not csr.exists()
        before = Credential.load(site, stem="node-a")
        shutil.copy(reply / "node-a.reply.toml", site / "old.toml")
        assert run_json("pki", "renew", "node.toml")["request"].endswith("node-a.csr.pem")
        with pytest.raises(StorageError, match="exists already"):
            run("pki", "renew", "node.toml")
        run("pki", "sign", "../authority/pki", csr, "--renew", "--days", 400, "--out", reply)
        run("node", "join", reply / "node-a.reply.toml")
        after = Credential.load(site, stem="node-a")
        assert after.certificate.fingerprint == before.certificate.fingerprint
        assert after.certificate.not_after > before.certificate.not_after
        with pytest.raises(CertificateError, match="lasts longer"):
            run("node", "join", "old.toml")
        assert Credential.load(site, stem="node-a").certificate == after.certificate


@pytest.mark.parametrize(
    "command", ["init", "sign", "invite", "renew", "revoke", "crl", "list", "fingerprint", "roster"]
)
def test_help_has_an_example(command: str) -> None:
    assert f"Example: secure-fl pki {command}" in run("pki", command, "--help")


def test_no_output_shows_a_key(folder: Path, tmp_path: Path) -> None:
    text = run("pki", "sign", folder, request(tmp_path, "a"), "--out", tmp_path) + run("pki", "list", folder)
    text += "".join(path.read_text() for path in tmp_path.glob("*.toml"))
    for path in [*tmp_path.glob("*.key"), folder / "ca.key"]:
        assert path.read_text().splitlines()[1] not in text


def test_every_error_is_one_of_ours(tmp_path: Path) -> None:
    for arguments in (("invite", tmp_path), ("sign", tmp_path, tmp_path / "node-a.csr.pem"), ("renew", tmp_path / "x")):
        with pytest.raises(SecureFLError):
            run("pki", *arguments)
