"""The node's half of `masked`. Every promise to the site is a check here, before anything is said.

advertise    say which blocks I hold and under which fresh keys, signed
share        verify everybody; split my mask key and my seeds among them
upload       verify who shared; send my values under self masks and pairwise masks
consistency  verify who uploaded; sign that list
unmask       verify that enough others signed the same list; give exactly one kind of share about each peer
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_fl.errors import ProtectionError
from secure_fl.identity.member import Member
from secure_fl.identity.signing import transcript
from secure_fl.protect.base import BlockSum, Contribution, Message, RoundContext
from secure_fl.protect.envelopes import KEY_KIND, Envelopes
from secure_fl.protect.masked_statements import (
    sign_survivors,
    sign_upload,
    survivors_digest,
    verify_survivors,
    verify_upload,
)
from secure_fl.protect.masks import add_masks, agree
from secure_fl.protect.packing import WORD, Packing, Words
from secure_fl.protect.shamir import read_share, split
from secure_fl.protect.signed_cohort import Group, SignedCohort, make_manifest
from secure_fl.randomness import Randomness
from secure_fl.rpc.protect_cohort_pb2 import Roster
from secure_fl.rpc.protect_masked_pb2 import (
    MaskedAgreement,
    MaskedAgreements,
    MaskedCommit,
    MaskedEnvelope,
    MaskedEnvelopes,
    MaskedSeedShares,
    MaskedShare,
    MaskedShares,
    MaskedSurvivors,
)
from secure_fl.wire import parse


@dataclass(frozen=True, slots=True)
class _Held:
    """What this node holds of one peer's secrets."""

    key: bytes
    seeds: Mapping[int, bytes]  # by group


class MaskedNode:
    """One node in one attempt. It goes through the phases once and forwards only."""

    def __init__(self, context: RoundContext, me: Member, contribution: Contribution, randomness: Randomness) -> None:
        self._context = context
        self._me = me
        self._mine = contribution
        self._randomness = randomness
        # Two keys: the mask key is opened when this node drops out, and must then open nothing else.
        self._mask_key = X25519PrivateKey.from_private_bytes(randomness.bytes(32))
        self._envelope_key = X25519PrivateKey.from_private_bytes(randomness.bytes(32))
        self._seeds: dict[int, bytes] = {}
        self._held: dict[str, _Held] = {}
        self._sharers: tuple[str, ...] = ()
        self._survivors: tuple[str, ...] = ()
        self._agreed = self._upload_digest = b""
        self._todo: list[tuple[str, Callable[[Message], Message]]] = [
            ("advertise", self._advertise),
            ("share", self._share),
            ("upload", self._upload),
            ("consistency", self._agree),
            ("unmask", self._unmask),
        ]

    def answer(self, phase: str, message: Message) -> Message:
        """Answer the next phase; a second request for a phase, or one out of turn, gets nothing."""
        if not self._todo or self._todo[0][0] != phase:
            raise ProtectionError(f"phase {phase!r} is not the next one")
        _, act = self._todo.pop(0)  # Before it acts: a phase that failed is not tried again on other terms.
        try:
            return act(message)
        except BaseException:
            self._todo.clear()
            raise

    def combination(self) -> Mapping[str, BlockSum]:
        """`masked` opens sums, at the coordinator."""
        return {}

    # --- advertise --------------------------------------------------------------------------------------------

    def _advertise(self, _message: Message) -> Message:
        self._manifest = make_manifest(
            self._context,
            self._me,
            blocks=self._mine.blocks,
            protocol="masked",
            keys={"mask_key": self._mask_key, "envelope_key": self._envelope_key},
        )
        return _say(self._manifest)

    # --- share ------------------------------------------------------------------------------------------------

    def _share(self, message: Message) -> Message:
        manifests = parse(Roster, message.body).manifests
        if self._manifest not in manifests:
            raise ProtectionError("this node's own manifest is missing or was changed")
        self._cohort = SignedCohort(self._context, manifests, protocol="masked").vouched(self._me.vouch)
        groups = self._cohort.groups_of(self._me.name)
        self._seeds = {group.index: self._randomness.bytes(32) for group in groups}
        key_shares = self._split(self._mask_key.private_bytes_raw())
        seed_shares = {index: self._split(seed) for index, seed in self._seeds.items()}
        answer = MaskedEnvelopes(commitments=[self._commitment(group) for group in groups])
        for position, name in enumerate(self._cohort.names):
            seeds = {index: shares[position] for index, shares in seed_shares.items()}
            if name == self._me.name:
                self._held[name] = _Held(key_shares[position], seeds)
                continue
            envelopes = self._envelopes(sender=self._me.name, recipient=name)
            answer.envelopes.append(
                MaskedEnvelope(
                    peer=name,
                    key_share=envelopes.seal(key_shares[position], kind=KEY_KIND, position=0),
                    seed_shares=[
                        envelopes.seal(seeds[group.index], kind=group.label, position=1 + group.index)
                        for group in groups
                    ],
                )
            )
        return _say(answer)

    def _split(self, secret: bytes) -> list[bytes]:
        cohort = self._cohort
        return split(secret, threshold=cohort.threshold, parties=len(cohort.names), randomness=self._randomness)

    def _commitment(self, group: Group) -> bytes:
        return seed_commitment(self._cohort, self._me.name, group, self._seeds[group.index])

    def _envelopes(self, *, sender: str, recipient: str) -> Envelopes:
        peer = recipient if sender == self._me.name else sender
        theirs = self._cohort.peers[peer].envelope_key
        return Envelopes(self._envelope_key, theirs, rho=self._cohort.rho, sender=sender, recipient=recipient)

    # --- upload -----------------------------------------------------------------------------------------------

    def _upload(self, message: Message) -> Message:
        delivered = parse(MaskedEnvelopes, message.body).envelopes
        sharers = sorted([self._me.name, *(envelope.peer for envelope in delivered)])
        self._cohort.require_quorum(sharers, what="shares")
        for envelope in delivered:
            self._held[envelope.peer] = self._open(envelope)
        self._sharers = tuple(sharers)
        words = self._masked()
        bulk = words.tobytes()
        self._upload_digest = hashlib.sha256(bulk).digest()
        commit = sign_upload(self._me, self._cohort, self._sharers, self._upload_digest)
        return Message(body=MaskedCommit(signature=commit).SerializeToString(), bulk=bulk)

    def _open(self, envelope: MaskedEnvelope) -> _Held:
        sender = envelope.peer
        groups = self._cohort.groups_of(sender)
        if len(envelope.seed_shares) != len(groups):
            raise ProtectionError(f"{sender} shared too many or too few seeds")
        envelopes = self._envelopes(sender=sender, recipient=self._me.name)
        key = envelopes.open(envelope.key_share, kind=KEY_KIND, position=0)
        seeds = {
            group.index: envelopes.open(sealed, kind=group.label, position=1 + group.index)
            for group, sealed in zip(groups, envelope.seed_shares, strict=True)
        }
        for share in (key, *seeds.values()):
            read_share(share)  # Noticed now, while everybody can still be left out, and not when it is needed.
        return _Held(key, seeds)

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
            values = self._mine.blocks[block]
            size = packing.words(values.size)
            packing.pack(values, out[start : start + size])
            start += size
        out[start] = self._mine.weight

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
        survivors = parse(MaskedSurvivors, message.body).survivors
        names = [survivor.node for survivor in survivors]
        self._cohort.require_quorum(names, what="survivors")
        if not set(names) <= set(self._sharers):
            raise ProtectionError("a survivor never shared")
        mine = [survivor.upload for survivor in survivors if survivor.node == self._me.name]
        if mine != [self._upload_digest]:
            raise ProtectionError("this node uploaded, and is not said to have done so with its own upload")
        for survivor in survivors:
            verify_upload(self._cohort, self._sharers, survivor)
        self._survivors, self._agreed = tuple(names), survivors_digest(survivors)
        return _say(MaskedAgreement(node=self._me.name, signature=sign_survivors(self._me, self._cohort, self._agreed)))

    # --- unmask -----------------------------------------------------------------------------------------------

    def _unmask(self, message: Message) -> Message:
        agreements = parse(MaskedAgreements, message.body).agreements
        names = [agreement.node for agreement in agreements]
        self._cohort.require_quorum(names, what="agreements")
        if not set(names) <= set(self._survivors):
            raise ProtectionError("somebody agreed who did not survive")
        for agreement in agreements:
            verify_survivors(self._cohort, agreement.node, self._agreed, agreement.signature)
        opened = self._cohort.releasable(self._cohort.uploaded(self._sharers), self._survivors)
        answer = MaskedShares()
        for name in self._sharers:
            held = self._held[name]
            if name in self._survivors:
                shares = [held.seeds[group.index] for group in opened if name in group.holders]
                answer.shares.append(MaskedShare(node=name, seeds=MaskedSeedShares(shares=shares)))
            else:
                answer.shares.append(MaskedShare(node=name, key=held.key))
        self._held.clear()
        self._seeds.clear()
        return _say(answer)


# --- what both halves derive ----------------------------------------------------------------------------------


def packing_of(context: RoundContext, cohort: SignedCohort) -> Packing:
    """Lanes wide enough for a sum over everybody who advertised."""
    return Packing(bits=context.bits, contributors=len(cohort.names))


def group_words(context: RoundContext, packing: Packing, group: Group) -> int:
    """Words of one group: its blocks and the weight."""
    return sum(packing.words(context.layout[block].size) for block in group.blocks) + 1


def pair_key(mine: X25519PrivateKey, cohort: SignedCohort, me: str, peer: str, group: Group) -> bytes:
    """The key of the mask that two nodes have in common for one group.

    It names both. A node may show another's mask key as its own, in one of several encodings of the same point; the
    secrets agreed with the two are then equal, and the masks they give, with opposite signs, must not be.
    """
    pair = (name.encode() for name in sorted((me, peer)))
    return agree(mine, cohort.peers[peer].mask_key, salt=cohort.rho, info=transcript("mask", *pair, group.label))


def seed_commitment(cohort: SignedCohort, node: str, group: Group, seed: bytes) -> bytes:
    """What binds a node to a seed before it is opened; the seed has 256 bits, so the hash hides it."""
    return hashlib.sha256(b"".join((cohort.rho, node.encode(), b"\x00", group.label, seed))).digest()


def _say(message: object) -> Message:
    return Message(body=message.SerializeToString(deterministic=True))  # type: ignore[attr-defined]
