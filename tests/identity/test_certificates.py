"""What a certificate must say, and when the consortium stands behind it."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import CertificateError
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import (
    BINDING_OID,
    ROLES,
    Certificate,
    Subject,
    TrustStore,
    parse_fingerprint,
)
from tests.identity import forge
from tests.identity.conftest import Clock

HOSTS = {"coordinator": ("fl.example.org", "10.0.0.1", "::1")}


@pytest.fixture
def certificate(authority: Authority) -> Certificate:
    return authority.issue("node", "charite").certificate


@pytest.fixture
def trust(authority: Authority) -> TrustStore:
    return TrustStore(authority.ca_pem, authority.crl_path)


# --- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "charite", "site-1", "a.b_c-d", "0" * 64])
def test_good_names(name: str) -> None:
    assert Subject(role="node", name=name).name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "a..b",
        ".a",
        "a.",
        "-a",
        "a-",
        "A",
        "é",
        "a b",
        "a\n",
        "a\0",
        "a:b",
        "0" * 65,
    ],
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(CertificateError, match="is not a name"):
        Subject(role="node", name=name)


@given(st.text(max_size=12))
def test_an_accepted_name_is_one_path_component(name: str) -> None:
    try:
        stem = Subject(role="node", name=name).stem
    except CertificateError:
        return
    assert Path(stem).name == stem
    assert not stem.startswith(".")


@pytest.mark.parametrize(
    "host", ["", "*.example.org", "a:443", "http://a", "a b", "a\r\nX: y", "a..b", "x" * 254, "fe80::1%\r\nX: y"]
)
def test_hosts_that_are_refused(host: str) -> None:
    with pytest.raises(CertificateError, match="is not a host"):
        Subject(role="coordinator", name="hub", hosts=(host,))


def test_only_a_coordinator_has_hosts_and_it_needs_one() -> None:
    with pytest.raises(CertificateError, match="has no host"):
        Subject(role="node", name="a", hosts=("localhost",))
    with pytest.raises(CertificateError, match="needs at least one"):
        Subject(role="coordinator", name="a")


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(CertificateError, match="is not a role"):
        Subject(role="admin", name="a")


def test_fingerprints_are_read_as_people_write_them() -> None:
    digits = "ab" * 32
    assert parse_fingerprint(":".join(["AB"] * 32)) == digits
    assert parse_fingerprint(digits) == digits
    for text in ("", digits[:-1], digits + "0", "g" * 64, digits + "\n"):
        assert parse_fingerprint(text) is None


# --- one certificate --------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_what_is_issued_can_be_read(authority: Authority, clock: Clock, role: str) -> None:
    credential = authority.issue(role, "charite", hosts=HOSTS.get(role, ()), days=10)
    certificate = Certificate.from_pem(credential.certificate.pem)
    assert certificate == credential.certificate == Certificate.from_der(certificate.der)
    assert (certificate.role, certificate.name) == (role, "charite")
    assert certificate.subject.hosts == HOSTS.get(role, ())
    assert certificate.signing_public == credential.signing_key.public
    assert certificate.not_before < clock() < certificate.not_after == clock() + timedelta(days=10)
    assert parse_fingerprint(certificate.fingerprint) == certificate.fingerprint
    parsed = x509.load_pem_x509_certificate(certificate.pem)
    assert parsed.serial_number == certificate.serial
    assert not parsed.extensions.get_extension_for_oid(BINDING_OID).critical
    usage = ExtendedKeyUsageOID.SERVER_AUTH if role == "coordinator" else ExtendedKeyUsageOID.CLIENT_AUTH
    assert list(parsed.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [usage]


def _binding(certificate: Certificate) -> bytearray:
    value, _ = forge.extensions_of(certificate)[BINDING_OID.dotted_string]
    assert isinstance(value, x509.UnrecognizedExtension)
    return bytearray(value.value)


@pytest.mark.parametrize("position", [0, 1, 32, 33, 96])
def test_a_tampered_binding_is_refused(authority: Authority, certificate: Certificate, position: int) -> None:
    value = _binding(certificate)
    value[position] ^= 1
    tampered = (x509.UnrecognizedExtension(BINDING_OID, bytes(value)), False)
    with pytest.raises(CertificateError, match=r"binding|bound"):
        Certificate.from_der(forge.resign(authority, certificate, put=[tampered]))


@pytest.mark.parametrize("cut", [0, 1, 96])
def test_a_binding_of_another_length_is_refused(authority: Authority, certificate: Certificate, cut: int) -> None:
    short = (x509.UnrecognizedExtension(BINDING_OID, bytes(_binding(certificate)[:cut])), False)
    with pytest.raises(CertificateError, match="binding is malformed"):
        Certificate.from_der(forge.resign(authority, certificate, put=[short]))


def test_a_binding_is_for_one_tls_key(authority: Authority, certificate: Certificate) -> None:
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    with pytest.raises(CertificateError, match="not bound"):
        Certificate.from_der(forge.resign(authority, certificate, public_key=other))


@pytest.mark.parametrize("subject", [Subject(role="operator", name="charite"), Subject(role="node", name="other")])
def test_a_binding_is_for_one_role_and_name(authority: Authority, certificate: Certificate, subject: Subject) -> None:
    changed = [
        (subject.alternative_names(), False),
        (x509.ExtendedKeyUsage([subject.usage]), False),
    ]
    with pytest.raises(CertificateError, match="not bound"):
        Certificate.from_der(forge.resign(authority, certificate, put=changed, common_name=subject.name))


@pytest.mark.parametrize(
    "missing", [BINDING_OID, ExtensionOID.SUBJECT_ALTERNATIVE_NAME, ExtensionOID.EXTENDED_KEY_USAGE]
)
def test_a_missing_extension_is_refused(
    authority: Authority, certificate: Certificate, missing: x509.ObjectIdentifier
) -> None:
    with pytest.raises(CertificateError, match="cannot be read"):
        Certificate.from_der(forge.resign(authority, certificate, without=[missing]))


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["https://example.org"],
        ["urn:secure-fl:node:charite", "urn:secure-fl:node:charite"],
        ["urn:secure-fl:node:charite", "urn:secure-fl:operator:charite"],
        ["urn:secure-fl:admin:charite"],
        ["urn:secure-fl:node:../charite"],
        ["urn:secure-fl:node"],
    ],
)
def test_exactly_one_sound_urn_is_needed(authority: Authority, certificate: Certificate, uris: list[str]) -> None:
    san = x509.SubjectAlternativeName([x509.DNSName("x"), *map(x509.UniformResourceIdentifier, uris)])
    with pytest.raises(CertificateError):
        Certificate.from_der(forge.resign(authority, certificate, put=[(san, False)]))


def test_the_common_name_must_agree(authority: Authority, certificate: Certificate) -> None:
    with pytest.raises(CertificateError, match="common name"):
        Certificate.from_der(forge.resign(authority, certificate, common_name="other"))


def test_the_key_usage_must_be_that_of_the_role(authority: Authority, certificate: Certificate) -> None:
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
    with pytest.raises(CertificateError, match="extended key usage"):
        Certificate.from_der(forge.resign(authority, certificate, put=[(both, False)]))


def test_another_curve_is_refused(authority: Authority, certificate: Certificate) -> None:
    other = ec.generate_private_key(ec.SECP384R1()).public_key()
    with pytest.raises(CertificateError, match="P-256"):
        Certificate.from_der(forge.resign(authority, certificate, public_key=other))


@given(st.binary(max_size=64))
def test_noise_is_refused(noise: bytes) -> None:
    for read in (Certificate.from_der, Certificate.from_pem, TrustStore):
        with pytest.raises(CertificateError):
            read(noise)


def test_two_certificates_in_one_file_are_refused(certificate: Certificate) -> None:
    with pytest.raises(CertificateError, match="2 certificates"):
        Certificate.from_pem(certificate.pem * 2)


# --- trust ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["node", None])
def test_a_valid_certificate_is_believed(
    trust: TrustStore, certificate: Certificate, clock: Clock, role: str | None
) -> None:
    trust.check(certificate, role=role, now=clock())


def test_another_authority_of_the_same_name_is_not(trust: TrustStore, stranger: Authority, clock: Clock) -> None:
    foreign = stranger.issue("node", "charite").certificate
    with pytest.raises(CertificateError, match="not issued by this consortium"):
        trust.check(foreign, role="node", now=clock())


def test_a_changed_certificate_is_not(trust: TrustStore, certificate: Certificate, clock: Clock) -> None:
    der = bytearray(certificate.der)
    der[-1] ^= 1  # In the authority's signature.
    with pytest.raises(CertificateError, match="not issued by this consortium"):
        trust.check(Certificate.from_der(bytes(der)), role="node", now=clock())


def test_dates(trust: TrustStore, certificate: Certificate) -> None:
    second = timedelta(seconds=1)
    trust.check(certificate, role=None, now=certificate.not_before)
    trust.check(certificate, role=None, now=certificate.not_after)
    with pytest.raises(CertificateError, match="expired"):
        trust.check(certificate, role=None, now=certificate.not_after + second)
    with pytest.raises(CertificateError, match="not valid before"):
        trust.check(certificate, role=None, now=certificate.not_before - second)


def test_the_role_must_be_the_wanted_one(trust: TrustStore, certificate: Certificate, clock: Clock) -> None:
    for role in ("coordinator", "operator"):
        with pytest.raises(CertificateError, match=f"a {role} is expected"):
            trust.check(certificate, role=role, now=clock())


def test_an_authority_is_no_participant(
    authority: Authority, trust: TrustStore, certificate: Certificate, clock: Clock
) -> None:
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    second = Certificate.from_der(forge.resign(authority, certificate, put=[(constraints, True)]))
    with pytest.raises(CertificateError, match="cannot be a participant"):
        trust.check(second, role="node", now=clock())


def test_a_leaf_cannot_be_the_root_of_trust(certificate: Certificate) -> None:
    with pytest.raises(CertificateError, match="not that of an authority"):
        TrustStore(certificate.pem)


# --- revocation -------------------------------------------------------------------------------------------


def test_a_revocation_takes_effect_at_once(
    authority: Authority, trust: TrustStore, certificate: Certificate, clock: Clock
) -> None:
    trust.check(certificate, role="node", now=clock())
    authority.revoke("charite")
    with pytest.raises(CertificateError, match="revoked"):
        trust.check(certificate, role="node", now=clock())


def test_a_list_can_be_given_as_bytes(authority: Authority, certificate: Certificate, clock: Clock) -> None:
    before = TrustStore(authority.ca_pem, crl_pem=authority.crl_path.read_bytes())
    authority.revoke(certificate.fingerprint)
    after = TrustStore(authority.ca_pem, crl_pem=authority.crl_path.read_bytes())
    before.check(certificate, role="node", now=clock())
    with pytest.raises(CertificateError, match="revoked"):
        after.check(certificate, role="node", now=clock())


def test_without_a_list_nothing_is_revoked(authority: Authority, certificate: Certificate, clock: Clock) -> None:
    authority.revoke("charite")
    store = TrustStore(authority.ca_pem)
    store.check(certificate, role="node", now=clock())
    assert not store.crl_stale(clock())


def test_an_old_list_does_not_replace_a_newer_one(
    authority: Authority,
    trust: TrustStore,
    certificate: Certificate,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    old = authority.crl_path.read_bytes()
    authority.revoke("charite")
    with pytest.raises(CertificateError, match="revoked"):
        trust.check(certificate, role="node", now=clock())
    authority.crl_path.write_bytes(old)
    for _ in range(2):
        with pytest.raises(CertificateError, match="revoked"):
            trust.check(certificate, role="node", now=clock())
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == ["revocation list 1 is older than 2 and was ignored"]


def test_a_kept_list_guards_the_next_start(authority: Authority, certificate: Certificate, clock: Clock) -> None:
    old = authority.crl_path.read_bytes()
    authority.revoke("charite")
    kept = authority.crl_path.read_bytes()
    authority.crl_path.write_bytes(old)
    store = TrustStore(authority.ca_pem, authority.crl_path, crl_pem=kept)
    with pytest.raises(CertificateError, match="revoked"):
        store.check(certificate, role="node", now=clock())


def test_a_list_of_the_same_number_takes_nothing_back(
    authority: Authority, certificate: Certificate, clock: Clock
) -> None:
    first = forge.revocation_list(authority, clock(), serials=[certificate.serial])
    authority.crl_path.write_bytes(forge.revocation_list(authority, clock()))
    store = TrustStore(authority.ca_pem, authority.crl_path, crl_pem=first)
    with pytest.raises(CertificateError, match="revoked"):
        store.check(certificate, role="node", now=clock())


def test_a_stale_list_is_still_used(
    authority: Authority, trust: TrustStore, certificate: Certificate, clock: Clock
) -> None:
    authority.revoke("charite")
    with pytest.raises(CertificateError, match="revoked"):
        trust.check(certificate, role="node", now=clock())
    assert not trust.crl_stale(clock())
    assert trust.crl_stale(clock.forward(days=31))
    with pytest.raises(CertificateError, match="revoked"):
        trust.check(certificate, role="node", now=clock())


def _tamper(pem: bytes) -> bytes:
    """Change the signature, keep the encoding."""
    lines = pem.splitlines()
    middle = bytearray(lines[-2])
    middle[4] = ord("A") if middle[4] != ord("A") else ord("B")
    return b"\n".join([*lines[:-2], bytes(middle), lines[-1], b""])


def test_an_unsound_list_closes_the_door_until_it_is_mended(
    authority: Authority, stranger: Authority, trust: TrustStore, certificate: Certificate, clock: Clock
) -> None:
    good = authority.crl_path.read_bytes()
    for content in (
        _tamper(good),
        stranger.crl_path.read_bytes(),
        b"",
        b"noise",
        forge.revocation_list(authority, clock(), issuer="Other"),
        forge.revocation_list(authority, clock(), extensions=()),
        forge.revocation_list(
            authority, clock(), extensions=[(x509.CRLNumber(9), False), (x509.DeltaCRLIndicator(1), True)]
        ),
    ):
        authority.crl_path.write_bytes(content)
        for _ in range(2):  # Also the second time: what was refused is not remembered as read.
            with pytest.raises(CertificateError, match="revocation list"):
                trust.check(certificate, role="node", now=clock())
        with pytest.raises(CertificateError, match="revocation list"):
            TrustStore(authority.ca_pem, authority.crl_path)
        with pytest.raises(CertificateError, match="revocation list"):
            TrustStore(authority.ca_pem, crl_pem=content)
    authority.crl_path.write_bytes(good)
    trust.check(certificate, role="node", now=clock())


def test_a_missing_list_closes_the_door(
    authority: Authority, trust: TrustStore, certificate: Certificate, clock: Clock
) -> None:
    authority.crl_path.unlink()
    with pytest.raises(CertificateError, match="cannot be read"):
        trust.check(certificate, role="node", now=clock())
    with pytest.raises(CertificateError, match="cannot be read"):
        TrustStore(authority.ca_pem, authority.crl_path)


def test_a_list_is_read_only_when_the_file_changes(
    authority: Authority,
    trust: TrustStore,
    certificate: Certificate,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = []
    take = TrustStore._take

    def counted(self: TrustStore, pem: bytes) -> None:
        reads.append(1)
        take(self, pem)

    monkeypatch.setattr(TrustStore, "_take", counted)
    trust.check(certificate, role="node", now=clock())
    assert reads == []
    os.utime(authority.crl_path, ns=(1, 1))
    trust.check(certificate, role="node", now=clock())
    trust.check(certificate, role="node", now=clock())
    assert reads == [1]
