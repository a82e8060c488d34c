"""Whether the consortium still stands behind the coordinator that a node is connected to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from secure_fl.errors import CertificateError
from secure_fl.identity.certificates import Certificate, TrustStore, utc_now

log = logging.getLogger(__name__)


class Standing:
    """Of one coordinator, for as long as one link to it lasts. What is lost once is not won back by the same link."""

    def __init__(self, coordinator: Certificate, trust: TrustStore, *, now: Callable[[], datetime] = utc_now) -> None:
        self._coordinator = coordinator
        self._trust = trust
        self._now = now
        self._lost = False

    def require(self) -> None:
        """Raise `CertificateError` once the coordinator is revoked or expired, or that can no longer be known.

        TLS looks at a certificate when a connection begins, and sessions last for weeks. So this is asked before every
        message that leaves and for every one that arrives; it costs a look at the date of the revocation list's file.
        """
        if self._lost:
            raise CertificateError("the coordinator lost this node's trust while they were connected")
        try:
            self._trust.check(self._coordinator, role="coordinator", now=self._now())
        except CertificateError as error:
            self._lost = True
            log.error("hanging up on the coordinator, and sending it nothing more: %s", error.message)
            raise
