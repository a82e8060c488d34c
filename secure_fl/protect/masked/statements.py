"""What members of a circle derive and sign once they know each other: masks, and what each is about to upload."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_fl.errors import ProtectionError
from secure_fl.identity.member import Member
from secure_fl.identity.signing import transcript, verify
from secure_fl.protect.masked.manifest import CircleCohort
from secure_fl.protect.primitives.agreement import agree
from secure_fl.rpc.protect_masked_pb2 import CircleCommit

_COMMIT = "circle upload"
_DIGEST_BYTES = 32


def mask_keys(mine: X25519PrivateKey, cohort: CircleCohort, me: str) -> tuple[list[bytes], list[bytes]]:
    """The keys of the masks this node adds, and of those it subtracts: one for each other member.

    Two members derive the same key, and one of them adds what the other subtracts. A key names both: a member may show
    another's public key as its own, in one of several encodings of the same point, and the secrets agreed with the two
    are then equal; masks made of them must not be.
    """
    plus: list[bytes] = []
    minus: list[bytes] = []
    for peer in cohort.names:
        if peer != me:
            pair = (name.encode() for name in sorted((me, peer)))
            key = agree(mine, cohort.said(peer).mask_key, salt=cohort.rho, info=transcript("circle mask", *pair))
            (plus if peer > me else minus).append(key)
    return plus, minus


def sign_commit(me: Member, cohort: CircleCohort, upload: bytes) -> CircleCommit:
    """I will upload just this, masked for just this circle."""
    return CircleCommit(node=me.name, upload=upload, signature=me.key.sign(_COMMIT, cohort.rho, upload))


def verify_commit(cohort: CircleCohort, commit: CircleCommit) -> None:
    """Raise unless a member committed to an upload, masked for the same circle."""
    if commit.node not in cohort.peers or len(commit.upload) != _DIGEST_BYTES:
        raise ProtectionError("a commit comes from outside the circle, or is none")
    verify(cohort.public_key(commit.node), commit.signature, _COMMIT, cohort.rho, commit.upload)


def verify_commits(cohort: CircleCohort, commits: Sequence[CircleCommit]) -> None:
    """Raise unless each member has committed, once and in order."""
    if tuple(commit.node for commit in commits) != cohort.names:
        raise ProtectionError("commits are not of the whole circle, once and in order")
    for commit in commits:
        verify_commit(cohort, commit)
