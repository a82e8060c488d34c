"""The coordinator's half of `masked` with recovery: adds masked words, and in the end takes the masks off the sum.

It holds one sum per group, never an upload. It draws no randomness, so replaying the accepted messages after a crash
rebuilds it. What it checks keeps malformed answers out; what protects a node is in the node's half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_fl.encoding.integers import BlockSum
from secure_fl.errors import ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.bodies import say
from secure_fl.protect.cohort.meeting import Gathering
from secure_fl.protect.cohort.minima import require_weight
from secure_fl.protect.cohort.signed import Group, names_digest
from secure_fl.protect.contract import Ask, Bulk, Message, Opened, OpenedSums, RoundContext
from secure_fl.protect.primitives.masks import add_masks
from secure_fl.protect.primitives.packing import WORD, Words
from secure_fl.protect.primitives.recovery import Recovery
from secure_fl.protect.primitives.shamir import SHARE_BYTES, read_share
from secure_fl.protect.recovery.derived import (
    KEY_PURPOSE,
    SEALED_BYTES,
    group_words,
    packing_of,
    pair_key,
    seed_commitment,
    share_commitment,
)
from secure_fl.protect.recovery.manifest import MANIFESTS
from secure_fl.protect.recovery.phases import ADVERTISE, CONSISTENCY, PHASES, SHARE, UNMASK, UPLOAD
from secure_fl.protect.recovery.statements import survivors_digest, verify_survivors, verify_upload
from secure_fl.rpc.protect_recovery_pb2 import (
    RecoveryAgreement,
    RecoveryAgreements,
    RecoveryCommit,
    RecoveryEnvelope,
    RecoveryEnvelopes,
    RecoveryShares,
    RecoverySurvivor,
    RecoverySurvivors,
)

_PIECE = 1 << 17  # words read and added at a time


class RecoveryCoordinator:
    """The coordinator in one attempt."""

    missing = 0  # whoever is gone takes its seeds along: waiting helps nobody

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._gathering = Gathering(context, MANIFESTS)
        self._envelopes: dict[str, RecoveryEnvelopes] = {}
        self._survivors: dict[str, RecoverySurvivor] = {}
        self._agreements: dict[str, RecoveryAgreement] = {}
        self._dealt: dict[tuple[str, str], tuple[bytes, ...]] = {}  # dealer and holder → commitments to the shares
        self._shares: dict[str, _Shares] = {}
        self._torn = False
        self._phase = ADVERTISE

    def begin(self) -> Ask:
        """Everybody invited may advertise."""
        return Ask(phase=ADVERTISE, messages=dict.fromkeys(self._context.invited, Message()))

    def accept(self, node: str, message: Message, bulk: Bulk) -> None:
        """Take one answer to the current phase."""
        take, _ = self._step()
        take(node, message, bulk)

    def close(self) -> Ask | Opened:
        """End the current phase with whoever answered."""
        _, end = self._step()
        return end()

    def _step(self) -> tuple[Callable[[str, Message, Bulk], None], Callable[[], Ask | Opened]]:
        """How the current phase takes an answer, and how it ends."""
        steps: tuple[tuple[Callable[[str, Message, Bulk], None], Callable[[], Ask | Opened]], ...] = (
            (self._accept_manifest, self._ask_for_shares),
            (self._accept_envelopes, self._ask_for_uploads),
            (self._accept_upload, self._ask_for_agreement),
            (self._accept_agreement, self._ask_for_unmasking),
            (self._accept_shares, self._open),
        )
        return dict(zip(PHASES, steps, strict=True))[self._phase]

    def _ask(self, phase: str, messages: Mapping[str, Message]) -> Ask:
        self._phase = phase
        return Ask(phase=phase, messages=messages)

    # --- advertise --------------------------------------------------------------------------------------------

    def _accept_manifest(self, node: str, message: Message, _bulk: Bulk) -> None:
        self._gathering.add(self._gathering.check(node, message.body))

    def _ask_for_shares(self) -> Ask:
        self._cohort, roster = self._gathering.close()
        return self._ask(SHARE, dict.fromkeys(self._cohort.names, say(roster)))

    # --- share ------------------------------------------------------------------------------------------------

    def _accept_envelopes(self, node: str, message: Message, _bulk: Bulk) -> None:
        said = parse(RecoveryEnvelopes, message.body)
        groups = len(self._cohort.groups_of(node))
        if [envelope.peer for envelope in said.envelopes] != [name for name in self._cohort.names if name != node]:
            raise ProtectionError(f"{node} did not write to everybody, once and in order")
        for envelope in said.envelopes:
            sealed = (envelope.key_share, *envelope.seed_shares)
            if len(sealed) != 1 + groups or any(len(share) != SEALED_BYTES for share in sealed):
                raise ProtectionError(f"{node} sealed too much or too little")
            if len(envelope.commitments) != 1 + groups or any(len(one) != 32 for one in envelope.commitments):
                raise ProtectionError(f"{node} is not committed to its shares")
        if len(said.commitments) != groups or any(len(commitment) != 32 for commitment in said.commitments):
            raise ProtectionError(f"{node} is not committed to its seeds")
        self._envelopes[node] = said

    def _ask_for_uploads(self) -> Ask:
        self._sharers = tuple(sorted(self._envelopes))
        self._sharers_digest = names_digest(self._sharers)
        self._cohort.require_quorum(self._sharers, what="shares")
        self._packing = packing_of(self._context, self._cohort)
        self._groups = self._cohort.uploaded(self._sharers)
        self._sums: dict[int, Words] = {
            group.index: np.zeros(group_words(self._context, self._packing, group), WORD) for group in self._groups
        }
        inbox: dict[str, list[RecoveryEnvelope]] = {name: [] for name in self._sharers}
        for sender in self._sharers:
            for envelope in self._envelopes[sender].envelopes:
                if envelope.peer in inbox:
                    self._dealt[sender, envelope.peer] = tuple(envelope.commitments)
                    forwarded = RecoveryEnvelope(peer=sender, key_share=envelope.key_share)
                    forwarded.seed_shares.extend(envelope.seed_shares)
                    forwarded.commitments.extend(envelope.commitments)
                    inbox[envelope.peer].append(forwarded)
            del self._envelopes[sender].envelopes[:]  # delivered; the commitments stay
        messages = {name: say(RecoveryEnvelopes(envelopes=envelopes)) for name, envelopes in inbox.items()}
        return self._ask(UPLOAD, messages)

    # --- upload -----------------------------------------------------------------------------------------------

    def _accept_upload(self, node: str, message: Message, bulk: Bulk) -> None:
        groups = [group for group in self._groups if node in group.holders]
        if bulk.size != WORD.itemsize * sum(self._sums[group.index].size for group in groups):
            raise ProtectionError("the upload's length does not fit its blocks")
        signature = parse(RecoveryCommit, message.body).signature
        survivor = RecoverySurvivor(node=node, upload=bulk.sha256, signature=signature)
        verify_upload(self._cohort, self._sharers_digest, survivor)
        self._torn, before = True, self._torn  # A disk may fail half-way, and what was added cannot be taken back.
        offset = 0
        for group in groups:
            total = self._sums[group.index]
            for start in range(0, total.size, _PIECE):
                piece = total[start : start + _PIECE]
                piece += np.frombuffer(bulk.read(offset, piece.nbytes), WORD)
                offset += piece.nbytes
        self._torn = before
        self._survivors[node] = survivor

    def _ask_for_agreement(self) -> Ask:
        if self._torn:
            raise ProtectionError("an upload could be read in part only: the sums are void")
        names = sorted(self._survivors)
        self._cohort.require_quorum(names, what="uploads")
        survivors = [self._survivors[name] for name in names]
        self._agreed = survivors_digest(survivors)
        return self._ask(CONSISTENCY, dict.fromkeys(names, say(RecoverySurvivors(survivors=survivors))))

    # --- consistency ------------------------------------------------------------------------------------------

    def _accept_agreement(self, node: str, message: Message, _bulk: Bulk) -> None:
        agreement = parse(RecoveryAgreement, message.body)
        if agreement.node != node:
            raise ProtectionError(f"{node} agrees for another node")
        verify_survivors(self._cohort, node, self._agreed, agreement.signature)
        # Not the message itself: everybody is sent this, and what else was in it would be sent along.
        self._agreements[node] = RecoveryAgreement(node=node, signature=agreement.signature)

    def _ask_for_unmasking(self) -> Ask:
        names = sorted(self._agreements)
        self._cohort.require_quorum(names, what="agreements")
        self._opened = self._cohort.releasable(self._groups, self._survivors)
        # As many as a node asks for, and no more for everybody to verify.
        quorum = names[: max(self._cohort.threshold, self._cohort.minimum)]
        told = say(RecoveryAgreements(agreements=[self._agreements[name] for name in quorum]))
        return self._ask(UNMASK, dict.fromkeys(names, told))

    # --- unmask -----------------------------------------------------------------------------------------------

    def _accept_shares(self, node: str, message: Message, _bulk: Bulk) -> None:
        said = parse(RecoveryShares, message.body).shares
        if tuple(share.node for share in said) != self._sharers:
            raise ProtectionError(f"{node} did not answer about everybody, once and in order")
        shares = _Shares()
        for share in said:
            alive = share.node in self._survivors
            kind = share.WhichOneof("kind")
            if kind is None and share.node != node:
                continue  # It says that it was dealt nothing it could open.
            if kind != ("seeds" if alive else "key"):
                raise ProtectionError(f"{node} gave the wrong kind of share about {share.node}")
            shares.about.add(share.node)
            if alive:
                wanted = [group.index for group in self._opened if share.node in group.holders]
                if len(share.seeds.shares) != len(wanted):
                    raise ProtectionError(f"{node} gave too many or too few shares about {share.node}")
                for index, seed in zip(wanted, share.seeds.shares, strict=True):
                    shares.seeds[share.node, index] = read_share(seed)
            else:
                shares.keys[share.node] = read_share(share.key)
        self._shares[node] = shares

    def _open(self) -> OpenedSums:
        self._cohort.require_quorum(sorted(self._shares), what="unmasking")
        recovery = Recovery(
            {name: self._cohort.index(name) for name in self._cohort.names},
            self._shares,
            threshold=self._cohort.threshold,
            colluders=self._context.colluders,
        )
        # All of them before anything else: whoever is to blame is named at once, also where the attempt is void.
        gone = {name: self._mask_key(recovery, name) for name in self._sharers if name not in self._survivors}
        seeds = {
            (name, group.index): self._seed(recovery, name, group)
            for group in self._opened
            for name in group.holders
            if name in self._survivors
        }
        recovery.require_everything()
        keys = {name: X25519PrivateKey.from_private_bytes(key) for name, key in gone.items()}
        blocks: dict[str, BlockSum] = {}
        for group in self._opened:
            self._unmask(group, seeds, keys)
            blocks |= self._decode(group)
            del self._sums[group.index]  # one model at a time
        return OpenedSums(blocks=blocks, cohort=tuple(sorted(self._survivors)), blamed=recovery.blamed)

    def _unmask(
        self, group: Group, seeds: Mapping[tuple[str, int], bytes], gone: Mapping[str, X25519PrivateKey]
    ) -> None:
        """Subtract the survivors' self masks, and what is left of their masks towards those who are gone."""
        alive = [name for name in group.holders if name in self._survivors]
        plus: list[bytes] = []
        minus = [seeds[name, group.index] for name in alive]
        for name in group.holders:
            if name in gone:
                for survivor in alive:
                    # A survivor added the mask towards a later name and subtracted it towards an earlier one.
                    key = pair_key(gone[name], self._cohort, name, survivor, group)
                    (minus if name > survivor else plus).append(key)
        add_masks(self._sums[group.index], plus=plus, minus=minus)

    def _seed(self, recovery: Recovery, node: str, group: Group) -> bytes:
        position = self._cohort.groups_of(node).index(group)
        commitment = self._envelopes[node].commitments[position]
        return recovery.secret(
            node,
            {name: held.seeds[node, group.index] for name, held in self._shares.items() if node in held.about},
            is_dealt=lambda holder, share: self._is_dealt(node, holder, group.label, 1 + position, share),
            is_secret=lambda seed: seed_commitment(self._cohort, node, group, seed) == commitment,
        )

    def _mask_key(self, recovery: Recovery, node: str) -> bytes:
        shown = self._cohort.said(node).mask_key
        return recovery.secret(
            node,
            {name: held.keys[node] for name, held in self._shares.items() if node in held.about},
            is_dealt=lambda holder, share: self._is_dealt(node, holder, KEY_PURPOSE, 0, share),
            is_secret=lambda key: X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw() == shown,
        )

    def _is_dealt(self, dealer: str, holder: str, purpose: bytes, position: int, share: int) -> bool:
        """Whether this is the share that `dealer` committed to and `holder` took."""
        raw = share.to_bytes(SHARE_BYTES, "little")
        commitment = share_commitment(self._cohort, dealer, holder, purpose, raw)
        return commitment == self._dealt[dealer, holder][position]

    def _decode(self, group: Group) -> dict[str, BlockSum]:
        words = self._sums[group.index]
        count = sum(name in self._survivors for name in group.holders)
        weight = int(words[-1])
        require_weight(self._context, weight, contributors=count)
        blocks: dict[str, BlockSum] = {}
        start = 0
        for block in group.blocks:
            values = self._context.layout[block].size
            size = self._packing.words(values)
            total = self._packing.unpack(words[start : start + size], values, contributors=count)
            blocks[block] = BlockSum(total=total, weight=weight, contributors=count)
            start += size
        return blocks


class _Shares:
    """What one node gave: seeds of those alive, keys of those gone."""

    def __init__(self) -> None:
        self.about: set[str] = set()  # of whom it held anything
        self.seeds: dict[tuple[str, int], int] = {}
        self.keys: dict[str, int] = {}
