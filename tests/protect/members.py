"""Enrolled nodes for tests of protections, made once per name by a real authority."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import Certificate, TrustStore, utc_now
from secure_fl.identity.member import Member


@cache
def authority() -> Authority:
    """The consortium of the tests."""
    return Authority.create(Path(tempfile.mkdtemp()) / "pki", consortium="test", days=30)


@cache
def trust() -> TrustStore:
    """What its members believe."""
    return TrustStore(authority().ca_pem)


@cache
def member(name: str) -> Member:
    """A node of that name; the same one every time."""
    return enrol(name)


def enrol(name: str, *, role: str = "node") -> Member:
    """A fresh certificate for a name."""
    credential = authority().issue(role, name, days=30)
    return Member(certificate=credential.certificate, key=credential.signing_key, vouch=vouch)


def vouch(peer: Certificate) -> None:
    """As a node does."""
    trust().check(peer, role="node", now=utc_now())
