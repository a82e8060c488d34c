"""A node as an opener of sums: it adds one half of the uploads up itself, takes the other half's sum, and decrypts.

Two openers, one of each side, make the same totals of the same uploads, or nothing is opened. Where a sum is opened of
whoever is there, more than half of the sites have to say that they were shown the same uploads: nobody opens a second
sum, whose difference from the first would show one site.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from secure_fl.errors import ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.bodies import say
from secure_fl.protect.cohort.signed import Group
from secure_fl.protect.contract import Message
from secure_fl.protect.encrypted.groups import group_values
from secure_fl.protect.encrypted.party import EncryptedParty
from secure_fl.protect.encrypted.sides import Side
from secure_fl.protect.encrypted.statements import require_one_list, require_vouched, sign_vouch
from secure_fl.protect.uploads.statements import Uploads
from secure_fl.rpc.protect_encrypted_pb2 import EncryptedCheck, EncryptedOpened, EncryptedOpening, EncryptedVouches

TOTAL = np.dtype("<i4")


class Opener:
    """With `recompute` it believes no half that nobody added up; without, whatever the coordinator says."""

    def __init__(self, party: EncryptedParty, *, recompute: bool) -> None:
        self._party = party
        self._recompute = recompute
        self._half = b""  # of its own side, of every group that is opened
        self._checked = b""  # the digest of the uploads that it is of

    def check(self, message: Message) -> Message:
        """Verify what is to be opened, remember it, and sign that; openers with the half that they added up."""
        party = self._party
        said = parse(EncryptedCheck, message.body)
        if said.rows or said.earlier:
            raise ProtectionError("a sum has no rows")
        uploads = party.uploads(said.commits)
        opened = self._released(uploads)
        digest = b""
        if self._recompute and self._opens(uploads):
            self._half = self._added(message.bulk, uploads, opened)
            self._checked = uploads.digest
            digest = hashlib.sha256(self._half).digest()
        party.note_opened(uploads, opened)
        if not self._recompute:
            return say(EncryptedVouches())
        vouch = sign_vouch(party.me, party.cohort, uploads.digest, side=party.side, half=digest)
        return say(EncryptedVouches(vouches=[vouch]))

    def open(self, message: Message) -> Message:
        """Decrypt the sums; whoever has bodies says them, whoever has seeds says their digest."""
        party = self._party
        said = parse(EncryptedOpening, message.body)
        uploads = party.uploads(said.commits)
        if not self._opens(uploads):
            raise ProtectionError("others open this sum")
        opened = self._released(uploads)
        body, mask = self._halves(said, memoryview(message.bulk), uploads)
        party.note_opened(uploads, opened)
        totals = self._decrypted(body, mask, uploads, opened)
        answer = EncryptedOpened(totals=hashlib.sha256(totals).digest())
        return say(answer, bulk=totals if party.side is Side.BODIES else b"")

    def _opens(self, uploads: Uploads) -> bool:
        openers = self._party.sides.openers(uploads.names, spare=not self._party.context.whole)
        return self._party.name in openers

    def _released(self, uploads: Uploads) -> Sequence[Group]:
        return self._party.cohort.releasable(self._party.cohort.groups, uploads.names)

    def _added(self, bulk: bytes | memoryview, uploads: Uploads, opened: Sequence[Group]) -> bytes:
        party = self._party
        needed = [(group, [name for name in uploads.names if name in group.holders]) for group in opened]
        return b"".join(
            party.add([(1, half) for half in halves.values()], values=group_values(party.context, group))
            for group, halves in party.halves(bulk, uploads, needed)
        )

    def _halves(self, said: EncryptedOpening, bulk: memoryview, uploads: Uploads) -> tuple[memoryview, memoryview]:
        """The bodies' sum and the masks' sum, of all groups."""
        party = self._party
        if not self._recompute:
            size = len(bulk) // 2
            return bulk[:size], bulk[size:]
        if uploads.digest != self._checked or len(bulk) != len(self._half):
            raise ProtectionError("the other half is of other uploads than those that this node added up")
        if not party.context.whole:  # Of a circle there is one list only.
            require_one_list(party.cohort, uploads.digest, said.vouches, sides=party.sides)
        other = party.side.other
        require_vouched(
            party.cohort,
            uploads.digest,
            said.vouches,
            among=[name for name in uploads.names if party.sides.of(name) is other],
            side=other,
            half=hashlib.sha256(bulk).digest(),
        )
        mine = memoryview(self._half)
        return (mine, bulk) if party.side is Side.BODIES else (bulk, mine)

    def _decrypted(self, body: memoryview, mask: memoryview, uploads: Uploads, opened: Sequence[Group]) -> memoryview:
        party = self._party
        sizes = [group_values(party.context, group) for group in opened]
        lengths = [party.terms.body_bytes(size) for size in sizes]
        if len(body) != sum(lengths) or len(mask) != sum(lengths):
            raise ProtectionError("the halves of the sums have other lengths than the sums")
        totals = np.empty(sum(sizes), TOTAL)
        start = position = 0
        for group, size, length in zip(opened, sizes, lengths, strict=True):
            weight = sum(name in group.holders for name in uploads.names)
            part = slice(position, position + length)
            totals[start : start + size] = party.cipher.open(body[part], mask[part], values=size, weight=weight)
            start, position = start + size, position + length
        return totals.data.cast("B") if totals.size else memoryview(b"")
