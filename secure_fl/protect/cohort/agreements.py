"""That a site agrees to sums of changing sites, in words that others can be shown when it is not there.

Before a site helps to open a sum it asks who would be shown by the difference from earlier ones, and whether those
agreed. Where sites join at their own pace, whoever is meant is often busy, and some may never have met it. So each
signs its agreement once for the study, and the coordinator passes on what it was given: it can hold one back, which
opens less, and make none up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from secure_fl.errors import CertificateError
from secure_fl.identity.certificates import Certificate
from secure_fl.identity.member import Member
from secure_fl.identity.signing import verify
from secure_fl.protect.past import CHANGING_COHORTS
from secure_fl.rpc.protect_cohort_pb2 import Agreement, Manifest

_DOMAIN = f"agreement to {CHANGING_COHORTS}"


def sign_agreement(me: Member, study_id: str) -> bytes:
    """This site agrees, in this study and for as long as it lasts."""
    return me.key.sign(_DOMAIN, study_id.encode(), me.name.encode())


def verify_agreement(certificate: Certificate, signature: bytes, study_id: str) -> None:
    """Raise `SignatureError` unless the site of this certificate agrees."""
    verify(certificate.signing_public, signature, _DOMAIN, study_id.encode(), certificate.name.encode())


def agreement_in(manifest: Manifest) -> Agreement:
    """What a manifest that was accepted says, to be passed on."""
    return Agreement(certificate=manifest.certificate, signature=manifest.agreement)


def who_agreed(agreements: Iterable[Agreement], *, study_id: str, roster: Mapping[str, str]) -> frozenset[str]:
    """Names of sites of the study's roster that signed these. Raises `CertificateError` or `SignatureError`."""
    names = set()
    for agreement in agreements:
        certificate = Certificate.from_der(agreement.certificate)
        if roster.get(certificate.name) != certificate.fingerprint:
            raise CertificateError(f"{certificate.name} shows a certificate that is not the roster's")
        verify_agreement(certificate, agreement.signature, study_id)
        names.add(certificate.name)
    return frozenset(names)
