"""A node as its peers meet it: its certificate, what it signs with, and whom it believes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from secure_fl.identity.certificates import Certificate
from secure_fl.identity.signing import SigningKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Signs for this node, and checks the certificates of others against the consortium's CA and revocations."""

    certificate: Certificate
    key: SigningKey
    vouch: Callable[[Certificate], None]  # raises `CertificateError` for a peer nobody stands behind now

    @property
    def name(self) -> str:
        """The node's name in the roster."""
        return self.certificate.name
