"""A party is known by its signing key: a renewed certificate is the same party, another key is another one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from secure_fl.errors import CertificateError
from secure_fl.identity import credential
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import Certificate, Subject, TrustStore
from secure_fl.identity.credential import Credential, load_tls_key, make_renewal, make_request
from tests.identity.conftest import Clock
from tests.identity.forge import resign


def renewed(authority: Authority, before: Credential) -> Credential:
    """The same keys under a new certificate."""
    certificate = authority.issue_from_request(make_renewal(before), renew=True)
    return replace(before, certificate=certificate)


def test_a_renewed_certificate_is_the_same_party(authority: Authority, clock: Clock) -> None:
    before = authority.issue("node", "north", days=30)
    clock.forward(days=20)
    after = renewed(authority, before)
    assert after.certificate.fingerprint == before.certificate.fingerprint
    assert after.certificate.digest != before.certificate.digest
    assert after.certificate.serial != before.certificate.serial
    clock.forward(days=20)
    trust = TrustStore(authority.ca_pem, authority.crl_path)
    trust.check(after.certificate, role="node", now=clock())
    with pytest.raises(CertificateError, match="expired"):
        trust.check(before.certificate, role="node", now=clock())


def test_new_keys_are_another_party_under_the_same_name(authority: Authority) -> None:
    before = authority.issue("node", "north")
    other = authority.issue("node", "north", renew=True)
    assert other.certificate.name == before.certificate.name
    assert other.certificate.fingerprint != before.certificate.fingerprint


def test_a_coordinators_hosts_stay_or_are_replaced(authority: Authority) -> None:
    hub = authority.issue("coordinator", "hub", hosts=("old.example.org",))
    assert renewed(authority, hub).certificate.subject.hosts == ("old.example.org",)
    request = make_renewal(hub, hosts=("new.example.org",))
    moved = authority.issue_from_request(request, renew=True)
    assert (moved.subject.hosts, moved.fingerprint) == (("new.example.org",), hub.certificate.fingerprint)


@pytest.mark.parametrize("by", ["name", "fingerprint"])
def test_a_revocation_takes_every_certificate_of_the_key(authority: Authority, clock: Clock, by: str) -> None:
    before = authority.issue("node", "north")
    after = renewed(authority, before)
    authority.revoke("north" if by == "name" else before.certificate.fingerprint, reason="keyCompromise")
    trust = TrustStore(authority.ca_pem, authority.crl_path)
    for certificate in (before.certificate, after.certificate):
        with pytest.raises(CertificateError, match="revoked"):
            trust.check(certificate, role="node", now=clock())


def test_a_revoked_key_is_not_signed_again(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies know a site by its key: whoever stole it would be back in them with a new certificate."""
    stolen = authority.issue("node", "north")
    authority.revoke("north", reason="keyCompromise")
    with pytest.raises(CertificateError, match="was revoked"):
        renewed(authority, stolen)
    # And that one check is what stops it.
    monkeypatch.setattr(Authority, "_refuse_keys", lambda *_: None)
    back = renewed(authority, stolen).certificate
    TrustStore(authority.ca_pem, authority.crl_path).check(back, role="node", now=back.not_before)
    assert back.fingerprint == stolen.certificate.fingerprint


def test_a_key_is_one_partys(authority: Authority) -> None:
    """A site that wants to be two in a circle, and so to open the others' sum."""
    north = authority.issue("node", "north")
    subject = Subject(role="node", name="south")
    request = credential._request(subject, load_tls_key(north.tls_key.reveal()), north.signing_key)
    with pytest.raises(CertificateError, match="is that of node 'north'"):
        authority.issue_from_request(request)


def test_not_even_the_authority_makes_a_certificate_for_a_key_that_it_does_not_have(authority: Authority) -> None:
    """A fingerprint is easily copied. The signing key's signature over the thief's TLS key is not."""
    north = authority.issue("node", "north")
    thief = ec.generate_private_key(ec.SECP256R1()).public_key()
    with pytest.raises(CertificateError, match="not bound"):
        Certificate.from_der(resign(authority, north.certificate, public_key=thief))


@pytest.mark.parametrize("checked", [True, False], ids=["shipped", "without the check"])
@pytest.mark.parametrize("expired", [False, True], ids=["in time", "too late"])
def test_a_request_that_was_exchanged_on_its_way_renews_nobody(
    authority: Authority, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, checked: bool, expired: bool
) -> None:
    """A thief of mail sends a request of its own under the site's name, when a renewal is expected."""
    before = authority.issue("node", "north", days=30).certificate
    if expired:
        clock.forward(days=31)
    theirs, _, _ = make_request("node", "north")
    if not checked:
        monkeypatch.setattr(Authority, "_refuse_second", lambda *_, **__: None)
        thief = authority.issue_from_request(theirs, role="node", name="north", renew=True)
        # From now on the authority's list of sites has the thief in place of the site.
        assert authority.certificates("node")[-1] == thief != before
        return
    for renew in (True, False) if expired else (True,):
        with pytest.raises(CertificateError, match="another key than the one it is known by"):
            authority.check_request(theirs, role="node", name="north", renew=renew)
        with pytest.raises(CertificateError, match="another key than the one it is known by"):
            authority.issue_from_request(theirs, role="node", name="north", renew=renew)
