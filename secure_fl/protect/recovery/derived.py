"""What both halves of a masked round derive from who takes part: lengths, keys, commitments."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_fl.identity.signing import transcript
from secure_fl.protect.cohort.signed import Group
from secure_fl.protect.contract import RoundContext
from secure_fl.protect.primitives.agreement import agree
from secure_fl.protect.primitives.envelopes import TAG_BYTES
from secure_fl.protect.primitives.packing import Packing
from secure_fl.protect.primitives.shamir import SHARE_BYTES
from secure_fl.protect.recovery.manifest import RecoveryCohort

KEY_PURPOSE = b"key"  # of the envelope with a share of a mask key; one with a share of a seed has its group's label
SEALED_BYTES = SHARE_BYTES + TAG_BYTES


def packing_of(context: RoundContext, cohort: RecoveryCohort) -> Packing:
    """Lanes wide enough for a sum over everybody who advertised."""
    return Packing(bits=context.bits, contributors=len(cohort.names))


def group_words(context: RoundContext, packing: Packing, group: Group) -> int:
    """Words of one group: its blocks and the weight."""
    return sum(packing.words(context.layout[block].size) for block in group.blocks) + 1


def pair_key(mine: X25519PrivateKey, cohort: RecoveryCohort, me: str, peer: str, group: Group) -> bytes:
    """The key of the mask that two nodes have in common for one group.

    It names both. A node may show another's mask key as its own, in one of several encodings of the same point; the
    secrets agreed with the two are then equal, and the masks they give, with opposite signs, must not be.
    """
    pair = (name.encode() for name in sorted((me, peer)))
    return agree(mine, cohort.said(peer).mask_key, salt=cohort.rho, info=transcript("mask", *pair, group.label))


def seed_commitment(cohort: RecoveryCohort, node: str, group: Group, seed: bytes) -> bytes:
    """What binds a node to a seed before it is opened; the seed has 256 bits, so the hash hides it."""
    return hashlib.sha256(b"".join((cohort.rho, node.encode(), b"\x00", group.label, seed))).digest()


def share_commitment(cohort: RecoveryCohort, dealer: str, holder: str, purpose: bytes, share: bytes) -> bytes:
    """Which share `dealer` dealt to `holder`. Without t others it has 256 bits of its own, so the hash hides it."""
    names = (dealer.encode(), holder.encode())
    return hashlib.sha256(transcript("masked share", cohort.rho, *names, purpose, share)).digest()
