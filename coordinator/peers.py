"""Who is behind a call: identity from the TLS certificate, checked again on every call."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any

import grpc.aio

from secure_fl.errors import CertificateError
from secure_fl.identity.certificates import Certificate, TrustStore, utc_now
from secure_fl.operations.waiting import REVOKED

_REMEMBERED = 4096  # certificates; TLS lets only those in that the consortium signed


class Peers:
    """TLS has checked a certificate's chain; role, dates and revocation are checked here."""

    def __init__(self, trust: TrustStore, *, now: Callable[[], datetime] = utc_now) -> None:
        self._trust = trust
        self._now = now
        self._seen: dict[str, Certificate] = {}  # by fingerprint, also those that were turned away

    def require(self, context: grpc.aio.ServicerContext[Any, Any], *, roles: frozenset[str]) -> Certificate:
        """The peer of a call, or `CertificateError`."""
        leaf = next(iter(context.auth_context().get("x509_pem_cert", ())), None)
        if leaf is None:
            raise CertificateError("a call without a client certificate")
        peer = _certificate(leaf)
        if len(self._seen) < _REMEMBERED:
            self._seen[peer.fingerprint] = peer
        self.check(peer, roles=roles)
        return peer

    def check(self, peer: Certificate, *, roles: frozenset[str]) -> None:
        """Raise `CertificateError` unless the consortium stands behind this peer now, in one of these roles."""
        if peer.role not in roles:
            raise CertificateError(f"{peer.name} is a {peer.role}, which may not call this")
        self._trust.check(peer, role=peer.role, now=self._now())

    def standing(self, fingerprint: str) -> str:
        """Why a certificate that was shown here counts for nothing now, as a code; empty for one that counts.

        Empty, too, for one that nobody has shown since this process began.
        """
        if (peer := self._seen.get(fingerprint)) is None:
            return ""
        try:
            if self._trust.revoked(peer):
                return REVOKED
            self._trust.check(peer, role=peer.role, now=self._now())
        except CertificateError as error:
            return error.code
        return ""


@lru_cache(maxsize=1024)
def _certificate(pem: bytes) -> Certificate:
    """Parsed once: a peer shows the same one with every call. Whether it is still valid is asked every time."""
    return Certificate.from_pem(pem)
