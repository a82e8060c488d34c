"""What a node signs after its manifest: that it uploaded, and who it believes did. Each is bound to the transcript."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from secure_fl.identity.member import Member
from secure_fl.identity.signing import transcript, verify
from secure_fl.protect.recovery.manifest import RecoveryCohort
from secure_fl.rpc.protect_recovery_pb2 import RecoverySurvivor

_COMMIT, _AGREEMENT = "masked upload", "masked survivors"


def sign_upload(me: Member, cohort: RecoveryCohort, sharers: bytes, digest: bytes) -> bytes:
    """I am alive for all my blocks: this upload, masked towards these peers, by the digest of their names."""
    return me.key.sign(_COMMIT, cohort.rho, sharers, digest)


def verify_upload(cohort: RecoveryCohort, sharers: bytes, survivor: RecoverySurvivor) -> None:
    """Raise `SignatureError` unless the node itself committed to this upload, masked towards the same peers."""
    verify(cohort.public_key(survivor.node), survivor.signature, _COMMIT, cohort.rho, sharers, survivor.upload)


def survivors_digest(survivors: Sequence[RecoverySurvivor]) -> bytes:
    """Who survived, with which upload."""
    fields = (field for survivor in survivors for field in (survivor.node.encode(), survivor.upload))
    return hashlib.sha256(transcript("masked survivor list", *fields)).digest()


def sign_survivors(me: Member, cohort: RecoveryCohort, digest: bytes) -> bytes:
    """I was told of these survivors, and will answer about no others."""
    return me.key.sign(_AGREEMENT, cohort.rho, digest)


def verify_survivors(cohort: RecoveryCohort, node: str, digest: bytes, signature: bytes) -> None:
    """Raise `SignatureError` unless `node` was told of the same survivors."""
    verify(cohort.public_key(node), signature, _AGREEMENT, cohort.rho, digest)
