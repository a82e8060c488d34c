"""What a checker signs: it added one half up itself, of just these uploads or rows, and this came of it."""

from __future__ import annotations

from collections.abc import Sequence

from secure_fl.errors import ProtectionError, SignatureError
from secure_fl.identity.member import Member
from secure_fl.identity.signing import verify
from secure_fl.protect.encrypted.sides import Side
from secure_fl.protect.uploads.manifest import UploadCohort
from secure_fl.rpc.protect_encrypted_pb2 import EncryptedVouch

_VOUCH = "encrypted half"


def sign_vouch(
    me: Member, cohort: UploadCohort, about: bytes, *, side: Side, half: bytes, recipient: str = ""
) -> EncryptedVouch:
    """`about` is the digest of the uploads of a sum, or of the rows of a combine; `half` that of the half."""
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


def _fields(
    cohort: UploadCohort, about: bytes, name: str, side: Side, recipient: str, half: bytes
) -> tuple[bytes, ...]:
    return (cohort.rho, about, name.encode(), side.value.encode(), recipient.encode(), half)
