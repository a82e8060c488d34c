"""The node's half of `masked` with recovery. Every promise to the site is a check here, before anything is said.

advertise    say which blocks I hold and under which fresh keys, signed
share        verify everybody; split my mask key and my seeds among them
upload       verify who shared; send my values under self masks and pairwise masks
consistency  verify who uploaded; sign that list
unmask       verify that enough others signed the same list; give exactly one kind of share about each peer
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_fl.errors import ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.bodies import as_bulk, say
from secure_fl.protect.cohort.meeting import meet, note
from secure_fl.protect.cohort.signed import Group, make_manifest, names_digest
from secure_fl.protect.contract import Contribution, Host, Message, RoundContext
from secure_fl.protect.primitives.envelopes import Envelopes
from secure_fl.protect.primitives.masks import add_masks
from secure_fl.protect.primitives.packing import WORD, Packing, Words
from secure_fl.protect.primitives.shamir import read_share, split
from secure_fl.protect.recovery.derived import (
    KEY_PURPOSE,
    group_words,
    packing_of,
    pair_key,
    seed_commitment,
    share_commitment,
)
from secure_fl.protect.recovery.manifest import MANIFESTS
from secure_fl.protect.recovery.phases import PHASES
from secure_fl.protect.recovery.statements import (
    sign_survivors,
    sign_upload,
    survivors_digest,
    verify_survivors,
    verify_upload,
)
from secure_fl.protect.turns import Act, InTurn
from secure_fl.rpc.protect_recovery_pb2 import (
    RecoveryAgreement,
    RecoveryAgreements,
    RecoveryCommit,
    RecoveryEnvelope,
    RecoveryEnvelopes,
    RecoverySeedShares,
    RecoveryShare,
    RecoveryShares,
    RecoverySurvivors,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    """What this node holds of one peer's secrets."""

    key: bytes
    seeds: Mapping[int, bytes]  # by group


class RecoveryNode(InTurn):
    """One node in one attempt."""

    def __init__(self, context: RoundContext, contribution: Contribution, host: Host) -> None:
        self._context = context
        self._host = host
        self._me = host.me
        self._blocks = dict(contribution.blocks)  # each goes as it is masked: its memory is needed for what comes of it
        self._weight = contribution.weight
        self._randomness = host.randomness
        # Two keys: the mask key is opened when this node drops out, and must then open nothing else.
        self._mask_key = X25519PrivateKey.from_private_bytes(host.randomness.bytes(32))
        self._envelope_key = X25519PrivateKey.from_private_bytes(host.randomness.bytes(32))
        self._seeds: dict[int, bytes] = {}
        self._held: dict[str, _Held] = {}
        self._sharers: tuple[str, ...] = ()
        self._survivors: tuple[str, ...] = ()
        self._agreed = self._upload_digest = self._sharers_digest = b""
        super().__init__(PHASES)

    @classmethod
    def _acts(cls) -> Sequence[Act]:
        return cls._advertise, cls._share, cls._upload, cls._agree, cls._unmask

    # --- advertise --------------------------------------------------------------------------------------------

    def _advertise(self, _message: Message) -> Message:
        self._manifest = make_manifest(
            self._context,
            self._host,
            protocol=MANIFESTS.protocol,
            blocks=self._blocks,
            extension=MANIFESTS.write(mask_key=self._mask_key, envelope_key=self._envelope_key),
        )
        return say(self._manifest)

    # --- share ------------------------------------------------------------------------------------------------

    def _share(self, message: Message) -> Message:
        self._cohort = meet(self._context, message.body, MANIFESTS, host=self._host, mine=self._manifest)
        self._envelopes = Envelopes(self._envelope_key, rho=self._cohort.rho)
        groups = self._cohort.groups_of(self._me.name)
        self._seeds = {group.index: self._randomness.bytes(32) for group in groups}
        key_shares = self._split(self._mask_key.private_bytes_raw())
        seed_shares = {index: self._split(seed) for index, seed in self._seeds.items()}
        answer = RecoveryEnvelopes(commitments=[self._commitment(group) for group in groups])
        for position, name in enumerate(self._cohort.names):
            seeds = {index: shares[position] for index, shares in seed_shares.items()}
            if name == self._me.name:
                self._held[name] = _Held(key_shares[position], seeds)
                continue
            dealt = [(KEY_PURPOSE, key_shares[position]), *((group.label, seeds[group.index]) for group in groups)]
            key, *rest = (self._seal(share, name, purpose=purpose) for purpose, share in dealt)
            commitments = [share_commitment(self._cohort, self._me.name, name, *one) for one in dealt]
            answer.envelopes.append(
                RecoveryEnvelope(peer=name, key_share=key, seed_shares=rest, commitments=commitments)
            )
        return say(answer)

    def _split(self, secret: bytes) -> list[bytes]:
        cohort = self._cohort
        return split(secret, threshold=cohort.threshold, parties=len(cohort.names), randomness=self._randomness)

    def _commitment(self, group: Group) -> bytes:
        return seed_commitment(self._cohort, self._me.name, group, self._seeds[group.index])

    def _seal(self, share: bytes, peer: str, *, purpose: bytes) -> bytes:
        theirs, me = self._cohort.said(peer).envelope_key, self._me.name
        return self._envelopes.seal(share, theirs=theirs, sender=me, recipient=peer, purpose=purpose)

    def _unseal(self, sealed: bytes, peer: str, *, purpose: bytes) -> bytes:
        theirs, me = self._cohort.said(peer).envelope_key, self._me.name
        return self._envelopes.unseal(sealed, theirs=theirs, sender=peer, recipient=me, purpose=purpose)

    # --- upload -----------------------------------------------------------------------------------------------

    def _upload(self, message: Message) -> Message:
        delivered = parse(RecoveryEnvelopes, message.body).envelopes
        sharers = sorted([self._me.name, *(envelope.peer for envelope in delivered)])
        self._cohort.require_quorum(sharers, what="shares")
        for envelope in delivered:
            if (held := self._read(envelope)) is not None:
                self._held[envelope.peer] = held
        self._sharers, self._sharers_digest = tuple(sharers), names_digest(sharers)
        bulk = as_bulk(self._masked())
        self._upload_digest = hashlib.sha256(bulk).digest()
        commit = sign_upload(self._me, self._cohort, self._sharers_digest, self._upload_digest)
        return say(RecoveryCommit(signature=commit), bulk=bulk, digest=self._upload_digest)

    def _read(self, envelope: RecoveryEnvelope) -> _Held | None:
        """What `sender` dealt to this node, if that is what it committed to.

        With nothing of it this node goes on, and says so when it is asked: sitting out, it would be the one who is
        missing. It is no less safe for that; a share that it does not have it cannot be talked into giving.
        """
        sender = envelope.peer
        groups = self._cohort.groups_of(sender)
        if not len(envelope.seed_shares) == len(envelope.commitments) - 1 == len(groups):
            raise ProtectionError(f"{sender} shared too many or too few seeds")
        try:
            key, *seeds = (
                self._dealt(sealed, sender, commitment, purpose=purpose)
                for sealed, commitment, purpose in zip(
                    (envelope.key_share, *envelope.seed_shares),
                    envelope.commitments,
                    (KEY_PURPOSE, *(group.label for group in groups)),
                    strict=True,
                )
            )
        except ProtectionError as error:
            log.warning("nothing is held of what %s shared: %s", sender, error)
            return None
        return _Held(key, {group.index: seed for group, seed in zip(groups, seeds, strict=True)})

    def _dealt(self, sealed: bytes, sender: str, commitment: bytes, *, purpose: bytes) -> bytes:
        """One share, if it is one, and the one that `sender` committed to: given later, it is given as it is now."""
        share = self._unseal(sealed, sender, purpose=purpose)
        read_share(share)
        if share_commitment(self._cohort, sender, self._me.name, purpose, share) != commitment:
            raise ProtectionError(f"{sender} committed to another share")
        return share

    def _masked(self) -> Words:
        """y_i = x_i + stream(seed_i) + Σ_{j>i} stream(k_ij) − Σ_{j<i} stream(k_ij), group by group."""
        packing = packing_of(self._context, self._cohort)
        groups = [group for group in self._cohort.uploaded(self._sharers) if self._me.name in group.holders]
        sizes = [group_words(self._context, packing, group) for group in groups]
        words: Words = np.empty(sum(sizes), WORD)
        start = 0
        for group, size in zip(groups, sizes, strict=True):
            part = words[start : start + size]
            self._pack(packing, group, part)
            after, before = self._pair_keys(group)
            add_masks(part, plus=[self._seeds[group.index], *after], minus=before)
            start += size
        return words

    def _pack(self, packing: Packing, group: Group, out: Words) -> None:
        """The group's blocks, then one word with this node's weight."""
        start = 0
        for block in group.blocks:
            values = self._blocks.pop(block)
            size = packing.words(values.size)
            packing.pack(values, out[start : start + size])
            start += size
        out[start] = self._weight

    def _pair_keys(self, group: Group) -> tuple[list[bytes], list[bytes]]:
        after: list[bytes] = []
        before: list[bytes] = []
        for peer in group.holders:
            if peer in self._sharers and peer != self._me.name:
                key = pair_key(self._mask_key, self._cohort, self._me.name, peer, group)
                (after if peer > self._me.name else before).append(key)
        return after, before

    # --- consistency ------------------------------------------------------------------------------------------

    def _agree(self, message: Message) -> Message:
        survivors = parse(RecoverySurvivors, message.body).survivors
        names = [survivor.node for survivor in survivors]
        self._cohort.require_quorum(names, what="survivors")
        if not set(names) <= set(self._sharers):
            raise ProtectionError("a survivor never shared")
        mine = [survivor.upload for survivor in survivors if survivor.node == self._me.name]
        if mine != [self._upload_digest]:
            raise ProtectionError("this node uploaded, and is not said to have done so with its own upload")
        for survivor in survivors:
            verify_upload(self._cohort, self._sharers_digest, survivor)
        self._survivors, self._agreed = tuple(names), survivors_digest(survivors)
        return say(
            RecoveryAgreement(node=self._me.name, signature=sign_survivors(self._me, self._cohort, self._agreed))
        )

    # --- unmask -----------------------------------------------------------------------------------------------

    def _unmask(self, message: Message) -> Message:
        agreements = parse(RecoveryAgreements, message.body).agreements
        names = [agreement.node for agreement in agreements]
        self._cohort.require_quorum(names, what="agreements")
        if not set(names) <= set(self._survivors):
            raise ProtectionError("somebody agreed who did not survive")
        for agreement in agreements:
            verify_survivors(self._cohort, agreement.node, self._agreed, agreement.signature)
        opened = self._cohort.releasable(self._cohort.uploaded(self._sharers), self._survivors)
        sums = [tuple(name for name in self._survivors if name in group.holders) for group in opened]
        note(self._context, self._cohort, self._host, sums)
        answer = RecoveryShares()
        for name in self._sharers:
            held = self._held.get(name)
            if held is None:
                answer.shares.append(RecoveryShare(node=name))
            elif name in self._survivors:
                shares = [held.seeds[group.index] for group in opened if name in group.holders]
                answer.shares.append(RecoveryShare(node=name, seeds=RecoverySeedShares(shares=shares)))
            else:
                answer.shares.append(RecoveryShare(node=name, key=held.key))
        self._held.clear()
        self._seeds.clear()
        return say(answer)
