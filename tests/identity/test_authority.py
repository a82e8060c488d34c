"""The authority's folder, what it issues and what it refuses."""

from __future__ import annotations

import copy
import logging
import pickle
import stat
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from secure_fl.errors import CertificateError, IdentityError, StorageError, UnknownNameError, UsageError
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import BINDING_OID, Certificate, Subject, TrustStore
from secure_fl.identity.credential import Credential, credential_paths, make_request, save_request
from secure_fl.identity.signing import SigningKey
from secure_fl.secret import Secret
from tests.identity import forge
from tests.identity.conftest import Clock


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- create and open --------------------------------------------------------------------------------------


def test_a_new_authority(authority: Authority, clock: Clock) -> None:
    ca = x509.load_pem_x509_certificate((authority.folder / "ca.pem").read_bytes())
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.crl_sign, usage.digital_signature) == (True, True, False)
    assert stat.S_IMODE((authority.folder / "ca.key").stat().st_mode) == 0o600
    assert authority.listing() == ()
    assert not TrustStore(authority.ca_pem, authority.crl_path).crl_stale(clock())


def test_an_authority_is_never_overwritten(authority: Authority) -> None:
    before = contents(authority.folder)
    with pytest.raises(StorageError, match="exists already"):
        Authority.create(authority.folder, consortium="Other")
    (authority.folder / "ca.pem").unlink()
    with pytest.raises(StorageError, match="exists already"):
        Authority.create(authority.folder, consortium="Other")
    del before[authority.folder / "ca.pem"]
    assert contents(authority.folder) == before


@pytest.mark.parametrize("consortium", ["", " ", "x" * 65, "a\nb"])
def test_a_consortium_needs_a_name(tmp_path: Path, consortium: str) -> None:
    with pytest.raises(CertificateError, match="not a name of a consortium"):
        Authority.create(tmp_path / "a", consortium=consortium)
    assert not (tmp_path / "a").exists()


def test_an_authority_opens_again(authority: Authority, clock: Clock) -> None:
    again = Authority.open(authority.folder, now=clock)
    certificate = again.issue("node", "charite").certificate
    TrustStore(authority.ca_pem, authority.crl_path).check(certificate, role="node", now=clock())


def test_a_missing_authority_does_not_open(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="No such file") as caught:
        Authority.open(tmp_path)
    assert "pki init" in caught.value.hint


def test_an_authority_with_an_open_key_does_not_open(authority: Authority) -> None:
    (authority.folder / "ca.key").chmod(0o640)
    with pytest.raises(CertificateError, match="others can read") as caught:
        Authority.open(authority.folder)
    assert caught.value.hint.startswith("chmod 600")


def test_an_authority_with_another_key_does_not_open(authority: Authority, stranger: Authority) -> None:
    (authority.folder / "ca.key").write_bytes((stranger.folder / "ca.key").read_bytes())
    with pytest.raises(CertificateError, match="does not belong"):
        Authority.open(authority.folder)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        Authority.create(tmp_path / "file" / "authority", consortium="Heart Study")


# --- issue ------------------------------------------------------------------------------------------------


def test_the_authority_keeps_certificates_and_no_keys(authority: Authority) -> None:
    credential = authority.issue("node", "charite")
    assert (authority.folder / "issued/node-charite.pem").read_bytes() == credential.certificate.pem
    keys = (credential.tls_key.reveal(), credential.signing_key.to_pem())
    assert not any(key in content for key in keys for content in contents(authority.folder).values())


def test_a_valid_name_is_issued_once(authority: Authority, clock: Clock) -> None:
    authority.issue("node", "charite", days=10)
    with pytest.raises(CertificateError, match="has a certificate until") as caught:
        authority.issue("node", "charite")
    assert "--renew" in caught.value.hint
    authority.issue("operator", "charite")  # Another role is another subject.
    clock.forward(days=10, seconds=1)
    authority.issue("node", "charite")  # The first one expired.


def test_a_revoked_name_can_be_issued_again(authority: Authority) -> None:
    authority.issue("node", "charite")
    authority.revoke("charite")
    authority.issue("node", "charite")
    assert [entry.revoked for entry in authority.listing()].count(True) == 1


def test_renewal_adds_a_file(authority: Authority) -> None:
    authority.issue("node", "charite")
    before = contents(authority.folder)
    second = authority.issue("node", "charite", renew=True).certificate
    added = contents(authority.folder).items() - before.items()
    path = authority.folder / f"issued/node-charite@{second.serial:x}.pem"
    assert added == {(path, second.pem)}
    assert len(authority.listing()) == 2


def test_no_certificate_outlives_the_authority(tmp_path: Path, clock: Clock) -> None:
    authority = Authority.create(tmp_path / "a", consortium="Short", days=30, now=clock)
    end = clock() + timedelta(days=30)
    assert authority.issue("node", "a", days=365).certificate.not_after == end
    clock.forward(days=31)
    with pytest.raises(CertificateError, match="own certificate expired"):
        authority.issue("node", "b")


@pytest.mark.parametrize("days", [0, -1, 10**9])
def test_lifetimes_that_are_refused(authority: Authority, tmp_path: Path, days: int) -> None:
    with pytest.raises(UsageError, match="no lifetime"):
        authority.issue("node", "charite", days=days)
    with pytest.raises(UsageError, match="no lifetime"):
        Authority.create(tmp_path / "a", consortium="x", days=days)


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "A"])
def test_a_name_cannot_leave_the_folder(authority: Authority, name: str) -> None:
    before = contents(authority.folder)
    with pytest.raises(CertificateError, match="is not a name"):
        authority.issue("node", name)
    assert contents(authority.folder) == before


# --- requests ---------------------------------------------------------------------------------------------


def test_a_request_becomes_a_credential(authority: Authority, clock: Clock, tmp_path: Path) -> None:
    csr, tls_key, signing_key = make_request("coordinator", "hub", hosts=["localhost", "::1"])
    save_request(tmp_path, stem="hub", request=csr, tls_key=tls_key, signing_key=signing_key)
    certificate = authority.issue_from_request(csr, role="coordinator", name="hub")
    assert certificate.subject.hosts == ("localhost", "::1")
    (tmp_path / "hub.pem").write_bytes(certificate.pem)
    credential = Credential.load(tmp_path, stem="hub")
    TrustStore(authority.ca_pem).check(credential.certificate, role="coordinator", now=clock())


def test_a_request_does_not_overwrite_keys(tmp_path: Path) -> None:
    csr, tls_key, signing_key = make_request("node", "a")
    save_request(tmp_path, stem="a", request=csr, tls_key=tls_key, signing_key=signing_key)
    before = contents(tmp_path)
    with pytest.raises(StorageError, match="exists already"):
        save_request(tmp_path, stem="a", request=csr, tls_key=tls_key, signing_key=signing_key)
    assert contents(tmp_path) == before


def test_the_consortium_decides_on_the_hosts(authority: Authority) -> None:
    csr, _, _ = make_request("coordinator", "hub", hosts=["evil.example"])
    assert authority.issue_from_request(csr, hosts=["good.example"]).subject.hosts == ("good.example",)


@pytest.mark.parametrize(("role", "name"), [("operator", "charite"), ("node", "other")])
def test_a_request_for_something_else_is_refused(authority: Authority, role: str, name: str) -> None:
    csr, _, _ = make_request("node", "charite")
    with pytest.raises(CertificateError, match="the request is for node 'charite'"):
        authority.issue_from_request(csr, role=role, name=name)


def test_a_request_with_a_foreign_binding_is_refused(authority: Authority) -> None:
    victim = authority.issue("node", "charite").certificate
    value, _ = forge.extensions_of(victim)[BINDING_OID.dotted_string]
    assert isinstance(value, x509.UnrecognizedExtension)
    stolen = forge.request(claimed=Subject(role="node", name="charite"), binding=value)
    renamed = forge.request(
        claimed=Subject(role="operator", name="mallory"), bound=Subject(role="node", name="mallory")
    )
    for csr in (stolen, renamed):
        with pytest.raises(CertificateError, match="not bound"):
            authority.issue_from_request(csr, renew=True)


def test_a_request_with_a_broken_signature_is_refused(authority: Authority) -> None:
    csr, _, _ = make_request("node", "charite")
    der = bytearray(x509.load_pem_x509_csr(csr).public_bytes(Encoding.DER))
    der[-1] ^= 1
    broken = x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM)
    with pytest.raises(CertificateError, match="not signed by its own key"):
        authority.issue_from_request(broken)


@pytest.mark.parametrize("content", [b"", b"noise", b"-----BEGIN CERTIFICATE REQUEST-----\n"])
def test_a_request_that_is_none(authority: Authority, content: bytes) -> None:
    with pytest.raises(CertificateError, match="cannot be read"):
        authority.issue_from_request(content)


def test_a_request_does_not_choose_its_other_extensions(authority: Authority, clock: Clock) -> None:
    wish = (x509.BasicConstraints(ca=True, path_length=None), True)
    csr = forge.request(claimed=Subject(role="node", name="charite"), extra=[wish])
    certificate = authority.issue_from_request(csr)
    parsed = x509.load_der_x509_certificate(certificate.der)
    assert not parsed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    TrustStore(authority.ca_pem).check(certificate, role="node", now=clock())


# --- revoke and list --------------------------------------------------------------------------------------


def test_revocations_add_up(authority: Authority) -> None:
    first, second, third = (authority.issue("node", name).certificate for name in ("a", "b", "c"))
    assert authority.revoke("a") == [first.fingerprint]
    shouted = ":".join(second.fingerprint.upper()[i : i + 2] for i in range(0, 64, 2))
    assert authority.revoke(shouted, reason="keyCompromise") == [second.fingerprint]
    assert authority.revoke("a") == []
    state = {entry.fingerprint: entry.revoked for entry in authority.listing()}
    assert state == {first.fingerprint: True, second.fingerprint: True, third.fingerprint: False}
    crl = x509.load_pem_x509_crl(authority.crl_path.read_bytes())
    assert crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 3
    entry = crl.get_revoked_certificate_by_serial_number(second.serial)
    assert entry is not None
    assert entry.extensions.get_extension_for_class(x509.CRLReason).value.reason.value == "keyCompromise"


def test_a_name_is_revoked_in_every_role_and_age(authority: Authority) -> None:
    issued = [
        authority.issue("node", "a").certificate,
        authority.issue("node", "a", renew=True).certificate,
        authority.issue("operator", "a").certificate,
    ]
    assert sorted(authority.revoke("a")) == sorted(c.fingerprint for c in issued)


def test_what_was_never_issued_cannot_be_revoked(authority: Authority) -> None:
    authority.issue("node", "charite")
    before = authority.crl_path.read_bytes()
    with pytest.raises(UnknownNameError, match="did you mean 'charite'"):
        authority.revoke("chariti")
    with pytest.raises(UnknownNameError):
        authority.revoke("ab" * 32)
    with pytest.raises(UnknownNameError, match="unknown reason"):
        authority.revoke("charite", reason="certificateHold")
    assert authority.crl_path.read_bytes() == before


def test_a_revocation_list_can_be_renewed(authority: Authority, clock: Clock) -> None:
    authority.issue("node", "charite")
    authority.revoke("charite")
    trust = TrustStore(authority.ca_pem, authority.crl_path)
    assert trust.crl_stale(clock.forward(days=31))
    authority.renew_crl()
    fresh = TrustStore(authority.ca_pem, authority.crl_path)
    assert not fresh.crl_stale(clock())
    assert authority.listing()[0].revoked


def test_two_people_revoke_at_once(authority: Authority, clock: Clock) -> None:
    names = [f"site-{index}" for index in range(8)]
    for name in names:
        authority.issue("node", name)
    hands = [Authority.open(authority.folder, now=clock) for _ in names]
    threads = [threading.Thread(target=hand.revoke, args=(name,)) for hand, name in zip(hands, names, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(entry.revoked for entry in authority.listing())


def test_a_foreign_file_among_the_issued_is_noticed(authority: Authority, stranger: Authority) -> None:
    foreign = stranger.issue("node", "mallory").certificate
    authority.issue("node", "charite")
    (authority.folder / "issued/node-mallory.pem").write_bytes(foreign.pem)
    with pytest.raises(CertificateError, match="not issued by this consortium"):
        authority.listing()


# --- credentials ------------------------------------------------------------------------------------------


def test_a_credential_survives_its_files(authority: Authority, tmp_path: Path) -> None:
    credential = authority.issue("node", "charite")
    paths = credential.save(tmp_path)
    assert [path.name for path in paths] == [
        "node-charite.pem",
        "node-charite.key",
        "node-charite.signing.key",
    ]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths[1:]] == [0o600, 0o600]
    again = Credential.load(tmp_path, stem="node-charite")
    assert again.certificate == credential.certificate
    assert again.tls_key == credential.tls_key
    assert again.signing_key.public == credential.signing_key.public


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_credential_overwrites_nothing(authority: Authority, tmp_path: Path, which: int) -> None:
    precious = credential_paths(tmp_path, "x")[which]
    precious.write_bytes(b"precious")
    with pytest.raises(StorageError, match="exists already"):
        authority.issue("node", "charite").save(tmp_path, stem="x")
    assert contents(tmp_path / "x") == {}
    assert [p.read_bytes() for p in credential_paths(tmp_path, "x") if p.exists()] == [b"precious"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
@pytest.mark.parametrize("which", [1, 2])
def test_a_key_that_others_can_reach_is_refused(authority: Authority, tmp_path: Path, mode: int, which: int) -> None:
    path = authority.issue("node", "charite").save(tmp_path, stem="node")[which]
    path.chmod(mode)
    with pytest.raises(CertificateError, match="others can read") as caught:
        Credential.load(tmp_path, stem="node")
    assert caught.value.hint == f"chmod 600 {path}"


@pytest.mark.parametrize("which", [0, 1, 2])
def test_files_that_do_not_belong_together_are_refused(authority: Authority, tmp_path: Path, which: int) -> None:
    mine = authority.issue("node", "charite").save(tmp_path, stem="mine")
    other = authority.issue("node", "other").save(tmp_path, stem="other")
    mine[which].write_bytes(other[which].read_bytes())
    with pytest.raises(CertificateError, match="not the certificate's"):
        Credential.load(tmp_path, stem="mine")


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("content", [None, b"", b"noise"])
def test_missing_and_broken_files(authority: Authority, tmp_path: Path, which: int, content: bytes | None) -> None:
    path = authority.issue("node", "charite").save(tmp_path, stem="node")[which]
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(IdentityError, match="cannot be read"):
        Credential.load(tmp_path, stem="node")


def test_a_signing_key_is_no_tls_key(authority: Authority) -> None:
    credential = authority.issue("node", "charite")
    with pytest.raises(CertificateError, match="P-256"):
        Credential(
            certificate=credential.certificate,
            tls_key=Secret(SigningKey.generate().to_pem()),
            signing_key=credential.signing_key,
        )


def test_nothing_secret_shows(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    credential = authority.issue("node", "charite")
    pems = (
        credential.tls_key.reveal(),
        credential.signing_key.to_pem(),
        (authority.folder / "ca.key").read_bytes(),
    )
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").warning("%s %r %s %r", credential, credential, authority, authority)
    for text in (repr(credential), str(credential), repr(authority), str(authority), caplog.text):
        assert not any(pem.splitlines()[1].decode() in text for pem in pems)
    for secret in (credential, authority):
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="never pickled"):
                attempt(secret)


def test_a_certificate_is_a_value(authority: Authority) -> None:
    certificate = authority.issue("node", "charite").certificate
    assert pickle.loads(pickle.dumps(certificate)) == certificate  # noqa: S301
    assert len({certificate, Certificate.from_pem(certificate.pem)}) == 1
    with pytest.raises(AttributeError):
        certificate.serial = 1  # type: ignore[misc]
