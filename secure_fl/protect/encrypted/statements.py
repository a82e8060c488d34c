"""What a checker signs: it was shown just these uploads or rows, and this came of the half that it added up itself.

A checker that adds nothing up signs an empty half. It answers once in an attempt, so its word also says that it was
shown no other list.
"""

from __future__ import annotations

from collections.abc import Sequence

from secure_fl.errors import CohortTooSmallError, ProtectionError, SignatureError
from secure_fl.identity.member import Member
from secure_fl.identity.signing import verify
from secure_fl.protect.encrypted.sides import Side, Sides
from secure_fl.protect.uploads.manifest import UploadCohort
from secure_fl.rpc.protect_encrypted_pb2 import EncryptedVouch

_VOUCH = "encrypted half"


def sign_vouch(
    me: Member, cohort: UploadCohort, about: bytes, *, side: Side, half: bytes, recipient: str = ""
) -> EncryptedVouch:
    """`about` is the digest of the uploads of a sum, or of the rows of a combine; `half` that of the half, or empty."""
    signature = me.key.sign(_VOUCH, *_fields(cohort, about, me.name, side, recipient, half))
    return EncryptedVouch(node=me.name, recipient=recipient, half=half, signature=signature)


def verify_vouch(cohort: UploadCohort, about: bytes, vouch: EncryptedVouch, *, side: Side) -> None:
    """Raise `SignatureError` or `ProtectionError` unless a member of the cohort says so of this side's half."""
    if vouch.node not in cohort.peers:
        raise ProtectionError("somebody vouches from outside the round")
    fields = _fields(cohort, about, vouch.node, side, vouch.recipient, vouch.half)
    verify(cohort.public_key(vouch.node), vouch.signature, _VOUCH, *fields)


def require_vouched(
    cohort: UploadCohort,
    about: bytes,
    vouches: Sequence[EncryptedVouch],
    *,
    among: Sequence[str],
    side: Side,
    half: bytes,
    recipient: str = "",
) -> None:
    """Raise `ProtectionError` unless one of `among` vouches for this half."""
    for vouch in vouches:
        if vouch.node in among and vouch.recipient == recipient and vouch.half == half:
            try:
                verify_vouch(cohort, about, vouch, side=side)
            except SignatureError:
                continue
            return
    raise ProtectionError("nobody who added the other half up vouches for it")


def require_one_list(cohort: UploadCohort, about: bytes, vouches: Sequence[EncryptedVouch], *, sides: Sides) -> None:
    """Raise `CohortTooSmallError` unless so many were shown these uploads that no other list can have as many.

    Two sites are enough to open a sum. A coordinator that showed two of them all uploads, and two others all but one,
    would have that one from the difference.
    """
    seen: set[str] = set()
    for vouch in vouches:
        if vouch.node in cohort.peers and vouch.node not in seen:
            try:
                verify_vouch(cohort, about, vouch, side=sides.of(vouch.node))
            except SignatureError:
                continue
            seen.add(vouch.node)
    if len(seen) < cohort.threshold:
        raise CohortTooSmallError(have=len(seen), need=cohort.threshold, what="checkers")


def _fields(
    cohort: UploadCohort, about: bytes, name: str, side: Side, recipient: str, half: bytes
) -> tuple[bytes, ...]:
    return (cohort.rho, about, name.encode(), side.value.encode(), recipient.encode(), half)
