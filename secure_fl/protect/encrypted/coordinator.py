"""The coordinator's half of `encrypted`, as far as a sum and a combine have it in common: the key's envelopes, halves.

It never has the key. It hands on bodies to sites of one side and seeds to those of the other, and forms the sums of
both for those who must not see the parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

from secure_fl.errors import CohortTooSmallError, ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.bodies import say_bulky
from secure_fl.protect.cohort.signed import Group
from secure_fl.protect.contract import Ask, Bulk, Message, RoundContext
from secure_fl.protect.encrypted.coefficients import rows, widen
from secure_fl.protect.encrypted.groups import Part, encrypted_groups, group_values, key_id
from secure_fl.protect.encrypted.phases import KEY
from secure_fl.protect.encrypted.scheme import Scheme
from secure_fl.protect.encrypted.sides import Side, Sides
from secure_fl.protect.encrypted.statements import verify_vouch
from secure_fl.protect.encrypted.terms import Terms
from secure_fl.protect.primitives.envelopes import TAG_BYTES
from secure_fl.protect.uploads.coordinator import UploadCoordinator
from secure_fl.protect.uploads.phases import ADVERTISE, UPLOAD
from secure_fl.rpc.protect_encrypted_pb2 import EncryptedKeys, EncryptedStart, EncryptedVouch, EncryptedVouches
from secure_fl.rpc.protect_uploads_pb2 import UploadCommit

_DIGEST_BYTES = 32


class EncryptedCoordinator(UploadCoordinator):
    """The coordinator in one attempt."""

    def _prepare(self, context: RoundContext, *, recompute: bool) -> None:
        """What an attempt has from the beginning."""
        self._recompute = recompute
        self._terms = Terms.of(context)
        self._scheme = Scheme(self._terms)
        self._keys: EncryptedKeys | None = None
        self._bulks: dict[str, Bulk] = {}
        self._vouches: dict[str, list[EncryptedVouch]] = {}  # by checker

    @property
    def missing(self) -> int:
        """How many answers are worth waiting for: of a circle everybody's.

        Otherwise another attempt does without who is gone, and has another key maker.
        """
        if self._phase == ADVERTISE:
            return self._missing_manifests
        if self._phase == KEY:
            return int(self._keys is None) if self._context.whole else 0
        if self._phase == UPLOAD:
            return len(self._context.invited) - len(self._commits) if self._context.whole else 0
        return self._missing_later

    @property
    def _missing_later(self) -> int:
        """The same, once uploads are in: nothing is lost by waiting."""
        return 0

    # --- key --------------------------------------------------------------------------------------------------

    def _ask_for_key(self) -> Ask:
        self._cohort, self._roster = self._gathered()
        self._sides = Sides(self._cohort)
        return self._ask(KEY, {self._sides.key_maker: say_bulky(self._roster)})

    def _accept_key(self, node: str, message: Message, bulk: Bulk) -> None:
        said = parse(EncryptedKeys, message.body or bulk.read(0, bulk.size))
        others = [name for name in self._cohort.names if name != node]
        length = self._terms.chunk_bytes + TAG_BYTES
        if [envelope.peer for envelope in said.envelopes] != others or len(said.key_id) != _DIGEST_BYTES:
            raise ProtectionError(f"{node} did not seal the key to everybody, once and in order")
        if any(len(envelope.sealed) != length for envelope in said.envelopes):
            raise ProtectionError(f"{node} sealed something else than a key")
        self._keys = said

    def _ask_for_uploads(self) -> Ask:
        keys, self._keys = self._keys, None
        if keys is None:
            raise CohortTooSmallError(have=0, need=1, what="key makers")
        self._key_id = keys.key_id
        sealed = {envelope.peer: envelope.sealed for envelope in keys.envelopes}
        roster = self._roster.SerializeToString(deterministic=True)
        messages = {
            name: say_bulky(EncryptedStart(roster=roster, key_id=keys.key_id, sealed=sealed.get(name, b"")))
            for name in self._cohort.names
        }
        return self._ask(UPLOAD, messages)

    # --- upload -----------------------------------------------------------------------------------------------

    def _upload_bytes(self, node: str) -> int:
        groups = encrypted_groups(self._context, self._terms, self._cohort, node)
        return sum(part.size for group in groups for part in group.halves.values())

    def _share_bytes(self, _node: str, _place: int) -> Sequence[int]:
        return ()  # Nobody holds a share of any key.

    def _check_values(self, node: str, commit: UploadCommit, bulk: Bulk) -> None:
        if key_id(commit) != self._key_id:
            raise ProtectionError(f"{node} encrypted its upload under another key")
        for group in encrypted_groups(self._context, self._terms, self._cohort, node):
            for side, part in group.halves.items():
                raw = bulk.read(part.start, part.size)
                if hashlib.sha256(raw).digest() != commit.digests[part.digest]:
                    raise ProtectionError(f"{node} signed something else than it uploads")
                if side is Side.BODIES:
                    for row in rows(raw, self._terms, values=group.values, what="a body"):
                        widen(row, self._terms, what="a body")

    def _accept_upload(self, node: str, message: Message, bulk: Bulk) -> None:
        super()._accept_upload(node, message, bulk)
        self._bulks[node] = bulk

    # --- halves -----------------------------------------------------------------------------------------------

    def _parts(self, side: Side, needed: Sequence[tuple[Group, Sequence[str]]]) -> memoryview:
        """One side's halves of these uploads, in order, and once in memory: it is a whole circle's."""
        places = [(name, self._place(side, group, name)) for group, names in needed for name in names]
        parts, position = memoryview(bytearray(sum(place.size for _, place in places))), 0
        for name, place in places:
            parts[position : position + place.size] = self._bulks[name].read(place.start, place.size)
            position += place.size
        return parts

    def _part(self, side: Side, group: Group, name: str) -> bytes:
        place = self._place(side, group, name)
        return self._bulks[name].read(place.start, place.size)

    def _place(self, side: Side, group: Group, name: str) -> Part:
        groups = encrypted_groups(self._context, self._terms, self._cohort, name)
        return next(mine for mine in groups if mine.group == group).halves[side]

    def _sum(self, side: Side, group: Group, weights: Mapping[str, int]) -> bytes:
        """Σ w·half of one group."""
        add = self._scheme.add_bodies if side is Side.BODIES else self._scheme.add_seeds
        parts = ((weight, self._part(side, group, name)) for name, weight in sorted(weights.items()))
        return add(parts, values=group_values(self._context, group))

    # --- check ------------------------------------------------------------------------------------------------

    def _take_vouches(self, node: str, message: Message, about: bytes, recipients: Collection[str]) -> None:
        """A checker's words about the halves it was asked for, and about no others."""
        vouches = parse(EncryptedVouches, message.body).vouches
        if [vouch.recipient for vouch in vouches] != sorted(recipients):
            raise ProtectionError(f"{node} vouches for too much or too little")
        for vouch in vouches:
            if vouch.node != node:
                raise ProtectionError(f"{node} vouches in another's name")
            verify_vouch(self._cohort, about, vouch, side=self._sides.of(node))
            vouch.DiscardUnknownFields()
        self._vouches[node] = list(vouches)
