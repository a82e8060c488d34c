"""The node's half of `sealed`. A node is an uploader, a holder of others' keys and, in a combine, a recipient.

advertise   say which blocks I hold and under which fresh keys, signed
upload      verify everybody; y = a·s + e + Δ·x for each group of blocks; share s among the holders; sign y
score       as a holder: shares of distances between sketches, each sealed to its recipient
row         as a recipient: open my distances, weigh my peers, sign the row
open        as a holder: verify uploads and rows, run the guard, decide for ever, and only then give shares of Σ w·s
deliver     as a recipient: open my combination
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_fl.errors import ProtectionError, RestartedError, SecureFLError
from secure_fl.identity.member import Member
from secure_fl.identity.signing import transcript
from secure_fl.protect import merkle, sealed_scores
from secure_fl.protect.base import BlockSum, Contribution, Integers, Message, RequestKind, RoundContext
from secure_fl.protect.combining import check_rows
from secure_fl.protect.memory import Memory
from secure_fl.protect.sealed_cohort import (
    SealedGroup,
    group_values,
    read_bulky,
    say,
    say_bulky,
    sealed_groups,
    served_groups,
)
from secure_fl.protect.sealed_envelopes import Envelopes
from secure_fl.protect.sealed_field import ELEMENT, Elements, read_elements, uniform, weighted_sum
from secure_fl.protect.sealed_memory import SealedMemories
from secure_fl.protect.sealed_ring import DEGREE, Product
from secure_fl.protect.sealed_shares import VECTOR_BYTES, combine, expand_share, split
from secure_fl.protect.sealed_statements import Rows, Uploads, known_rows, row_hash, sign_commit, sign_row
from secure_fl.protect.sealed_terms import Terms
from secure_fl.protect.signed_cohort import Group, SignedCohort, make_manifest
from secure_fl.protect.sketch import in_units
from secure_fl.protect.weights import WEIGHT_UNITS
from secure_fl.randomness import KeyStream, Randomness
from secure_fl.rpc.protect_cohort_pb2 import Roster
from secure_fl.rpc.protect_sealed_pb2 import (
    SealedCommit,
    SealedDelivery,
    SealedEnvelope,
    SealedEnvelopes,
    SealedOpening,
    SealedReplies,
    SealedReply,
    SealedScores,
    SealedSums,
    SealedUpload,
)
from secure_fl.wire import parse

SKETCH = b"sketch"

log = logging.getLogger(__name__)


class SealedNode:
    """One node in one attempt. What it must not forget is in its memory before it is said."""

    def __init__(
        self, context: RoundContext, me: Member, contribution: Contribution, randomness: Randomness, memory: Memory
    ) -> None:
        self._context = context
        self._me = me
        self._mine = contribution
        self._randomness = randomness
        self._terms = Terms.of(context)
        self._memory = SealedMemories(memory, me, context, randomness)
        self._envelope_key = X25519PrivateKey.from_private_bytes(self._memory.now.envelope_key)
        self._reply_key = X25519PrivateKey.from_private_bytes(self._memory.now.reply_key)
        self._opened: dict[str, BlockSum] = {}
        self._restored = self._memory.restored
        self._position = -1
        self._acts: dict[str, Callable[[Message], Message]] = {
            "advertise": self._advertise,
            "upload": self._upload,
            "score": self._score,
            "row": self._row,
            "open": self._open,
            "deliver": self._deliver,
        }
        self._combines = context.kind is RequestKind.COMBINE
        self._phases = list(self._acts) if self._combines else ["advertise", "upload", "open"]
        self._met: SignedCohort | None = None
        if self._restored:
            self._met = self._read_roster(self._memory.now.roster)

    def answer(self, phase: str, message: Message) -> Message:
        """Answer a phase. Time runs forwards only; a restart forgets how far, but not what was decided."""
        position = self._phases.index(phase) if phase in self._phases else -1
        if position <= self._position:
            raise ProtectionError(f"phase {phase!r} is not the next one")
        self._position = position
        return self._acts[phase](message)

    def combination(self) -> Mapping[str, BlockSum]:
        """What was opened here, of a combine."""
        return self._opened

    # --- advertise --------------------------------------------------------------------------------------------

    def _advertise(self, _message: Message) -> Message:
        if self._restored:
            raise RestartedError("this node has no memory of what it trained for this attempt")
        dealt = self._deal_sketch()
        self._sketch_shares = dealt.shares if dealt else []
        manifest = make_manifest(
            self._context,
            self._me,
            protocol="sealed",
            blocks=self._mine.blocks,
            keys={"envelope_key": self._envelope_key, "reply_key": self._reply_key},
            sketch=(dealt.hashes, dealt.proof) if dealt else (b"", b""),
            opened=[row_hash(*row) for row in self._memory.disk.earlier()] if self._combines else [],
        )
        self._manifest = manifest
        return say(manifest)

    def _read_roster(self, raw: bytes) -> SignedCohort:
        """Everybody who takes part, verified and vouched for now."""
        manifests = parse(Roster, raw).manifests
        return SignedCohort(self._context, manifests, protocol="sealed").vouched(self._me.vouch)

    @property
    def _cohort(self) -> SignedCohort:
        if self._met is None:
            raise ProtectionError("this node was never told who takes part")
        return self._met

    @cached_property
    def _envelopes(self) -> Envelopes:
        """Under the envelope key: to and from holders, and as a holder to recipients."""
        return Envelopes(self._envelope_key, rho=self._cohort.rho)

    @cached_property
    def _answers(self) -> Envelopes:
        """Under the reply key: what holders answer this node as a recipient."""
        return Envelopes(self._reply_key, rho=self._cohort.rho)

    # --- upload -----------------------------------------------------------------------------------------------

    def _upload(self, message: Message) -> Message:
        if self._restored:
            raise RestartedError("this node has no memory of what it trained for this attempt")
        raw = read_bulky(message)
        cohort = self._read_roster(raw)
        if self._manifest not in parse(Roster, raw).manifests:
            raise ProtectionError("this node's own manifest is missing or was changed")
        self._met = cohort
        groups = sealed_groups(self._context, self._cohort, self._me.name)
        elements = np.empty(sum(group.size for group in groups), np.int32)
        keys = [self._seal_group(group, elements[group.start : group.start + group.size]) for group in groups]
        bulk = elements.tobytes()
        roots = [merkle.root(elements[g.start : g.start + g.size].data) for g in groups if self._recomputes]
        sketch, self._sketch_shares = self._sketch_shares, []
        answer = SealedUpload(commit=sign_commit(self._me, self._cohort, hashlib.sha256(bulk).digest(), roots))
        for position, holder in enumerate(self._cohort.names):
            shares = [
                self._seal(key[position], holder, purpose=group.label)
                for group, key in zip((g.group for g in groups), keys, strict=True)
            ]
            sketched = self._seal(sketch[self._place(holder) - 1], holder, purpose=SKETCH) if sketch else b""
            answer.envelopes.append(SealedEnvelope(peer=holder, key_shares=shares, sketch_share=sketched))
        self._memory.keep(roster=raw, upload=answer.commit.upload)
        return Message(body=answer.SerializeToString(deterministic=True), bulk=bulk)

    def _seal_group(self, group: SealedGroup, out: Integers) -> list[bytes]:
        """y = a·s + e + Δ·x into `out`, and the shares of s. The secret exists in this call only."""
        errors = KeyStream(self._randomness.bytes(32))
        start = 0
        for block in group.group.blocks:
            values = self._mine.blocks[block]
            self._terms.encode(values, out[start : start + values.size], errors)
            start += values.size
        if self._context.kind is RequestKind.SUM:
            out[start:] = self._terms.encode_weight(self._mine.weight, errors)
        secret = uniform(KeyStream(self._randomness.bytes(32)), DEGREE)
        Product(secret).seal(out, seed=group.seed)
        cohort = self._cohort
        return split(secret, threshold=cohort.threshold, holders=len(cohort.names), randomness=self._randomness)

    def _deal_sketch(self) -> sealed_scores.Dealing | None:
        """Before the cohort is known: a share for everybody invited."""
        if not self._context.attention:
            return None
        if self._mine.sketch is None:
            raise ProtectionError("this round weighs peers by their features, and there are none")
        return sealed_scores.deal(
            self._mine.sketch,
            nodes=len(self._context.invited),
            colluders=self._context.colluders,
            label=self._label(self._me.name),
            randomness=KeyStream(self._randomness.bytes(32)),
        )

    def _label(self, node: str) -> bytes:
        return transcript("sketch", self._context.binding, node.encode())

    def _place(self, node: str) -> int:
        """Where a node stands on the polynomials of sketches: among everybody invited."""
        return self._context.invited.index(node) + 1

    @property
    def _recomputes(self) -> bool:
        return self._context.recompute and self._context.kind is RequestKind.COMBINE

    def _seal(self, plain: bytes, holder: str, *, purpose: bytes) -> bytes:
        return self._envelopes.seal(
            plain,
            theirs=self._cohort.peers[holder].envelope_key,
            sender=self._me.name,
            recipient=holder,
            purpose=purpose,
        )

    def _unseal(self, sealed: bytes, sender: str, *, purpose: bytes) -> bytes:
        return self._envelopes.unseal(
            sealed,
            theirs=self._cohort.peers[sender].envelope_key,
            sender=sender,
            recipient=self._me.name,
            purpose=purpose,
        )

    # --- score ------------------------------------------------------------------------------------------------

    def _score(self, message: Message) -> Message:
        if not self._context.attention:
            raise ProtectionError("this round weighs nobody by features")
        said = parse(SealedEnvelopes, read_bulky(message))
        uploads = self._uploads(said.commits)
        shares = {
            envelope.peer: self._unseal(envelope.sketch_share, envelope.peer, purpose=SKETCH)
            for envelope in self._from_everybody(uploads, said.envelopes)
        }
        for name, share in shares.items():
            peer = self._cohort.peers[name]
            sealed_scores.check_share(
                share,
                self._place(self._me.name),
                hashes=peer.sketch_hashes,
                proof=peer.sketch_proof,
                label=self._label(name),
                nodes=len(self._context.invited),
            )
        answers = sealed_scores.score(shares, order=self._context.invited)
        self._memory.decide("score", _asked(uploads.digest, said.envelopes))
        return say_bulky(self._replies(answers, purpose=b"score" + uploads.digest))

    def _uploads(self, commits: Sequence[SealedCommit]) -> Uploads:
        """Who uploaded, verified; of this node, nothing but its own upload is believed."""
        uploads = Uploads(self._context, self._cohort, commits)
        mine = uploads.commits.get(self._me.name)
        if mine is not None and mine.upload != self._memory.now.upload:
            raise ProtectionError("this node is said to have uploaded something else than it did")
        return uploads

    def _from_everybody(self, uploads: Uploads, envelopes: Sequence[SealedEnvelope]) -> Sequence[SealedEnvelope]:
        if tuple(envelope.peer for envelope in envelopes) != uploads.names:
            raise ProtectionError("envelopes are not from everybody who uploaded, once and in order")
        return envelopes

    def _replies(self, plain: Mapping[str, bytes], *, purpose: bytes) -> SealedReplies:
        """To each recipient, under its reply key."""
        replies = [
            SealedReply(
                peer=recipient,
                sealed=self._envelopes.seal(
                    plain[recipient],
                    theirs=self._cohort.peers[recipient].reply_key,
                    sender=self._me.name,
                    recipient=recipient,
                    purpose=purpose,
                ),
            )
            for recipient in sorted(plain)
        ]
        return SealedReplies(replies=replies)

    def _open_replies(self, replies: Sequence[SealedReply], *, purpose: bytes) -> dict[str, bytes]:
        """From holders."""
        holders = [reply.peer for reply in replies]
        if holders != sorted(set(holders)) or not set(holders) <= set(self._cohort.names):
            raise ProtectionError("answers are repeated, out of order, or from outside the round")
        return {
            reply.peer: self._answers.unseal(
                reply.sealed,
                theirs=self._cohort.peers[reply.peer].envelope_key,
                sender=reply.peer,
                recipient=self._me.name,
                purpose=purpose,
            )
            for reply in replies
        }

    # --- row --------------------------------------------------------------------------------------------------

    def _row(self, message: Message) -> Message:
        said = parse(SealedScores, read_bulky(message))
        uploads = self._uploads(said.commits)
        if self._me.name not in uploads.commits:
            raise ProtectionError("a row is asked of a node that did not upload")
        self._memory.decide("row", _asked(uploads.digest, said.replies))
        row: Mapping[str, int] = {}
        try:
            row = self._mine.attend(self._distances(uploads, said.replies))
        except ProtectionError as error:
            # It goes on as a holder: others need it. Without a row nothing is opened here.
            log.warning("no combination is asked for: %s", error.message)
        return say(sign_row(self._me, self._cohort, uploads, row))

    def _distances(self, uploads: Uploads, replies: Sequence[SealedReply]) -> dict[str, float]:
        """The squared distances to everybody who uploaded; zeros where features do not count."""
        if not self._context.attention:
            return dict.fromkeys(uploads.names, 0.0)
        answers = self._open_replies(replies, purpose=b"score" + uploads.digest)
        squared = sealed_scores.open_scores(
            {self._place(holder): answer for holder, answer in answers.items()},
            [name for name in uploads.names if name != self._me.name],
            nodes=len(self._context.invited),
            colluders=self._context.colluders,
        )
        return {name: in_units(squared.get(name, 0)) for name in uploads.names}

    # --- open -------------------------------------------------------------------------------------------------

    def _open(self, message: Message) -> Message:
        said = parse(SealedOpening, read_bulky(message))
        uploads = self._uploads(said.commits)
        if self._context.kind is RequestKind.SUM:
            return self._open_sum(said, uploads)
        return self._open_rows(said, uploads)

    def _open_sum(self, said: SealedOpening, uploads: Uploads) -> Message:
        if said.rows:
            raise ProtectionError("a sum has no rows")
        opened = self._cohort.releasable(self._cohort.groups, uploads.names)
        shares = self._key_shares(uploads, said.envelopes)
        sums = [
            weighted_sum([1] * len(present), (shares[name, group.index] for name in present), size=DEGREE)
            for group in opened
            for present in [[name for name in uploads.names if name in group.holders]]
        ]
        self._memory.decide("open", _asked(uploads.digest, said.envelopes))
        return say(SealedSums(shares=[total.tobytes() for total in sums]))

    def _open_rows(self, said: SealedOpening, uploads: Uploads) -> Message:
        rows = Rows(self._context, self._cohort, uploads, said.rows)
        # Also what this node was not asked to open, but somebody here was.
        shown = [(row.node, dict(row.row)) for row in said.earlier]
        earlier = known_rows(self._cohort.opened, [*self._memory.disk.earlier(), *shown])
        check_rows(rows.of, nodes=uploads.names, colluders=self._context.colluders, earlier=earlier)
        shares = self._key_shares(uploads, said.envelopes)
        plain = {}
        for recipient, row in rows.of.items():
            served = served_groups(self._cohort, row)
            totals = [
                weighted_sum(list(row.values()), (shares[name, group.index] for name in row), size=DEGREE)
                for group in served
            ]
            plain[recipient] = b"".join(total.tobytes() for total in totals)
        self._memory.decide("open", _asked(rows.digest, said.envelopes))
        self._memory.disk.opened(rows.of)
        return say_bulky(self._replies(plain, purpose=b"open" + rows.digest))

    def _key_shares(self, uploads: Uploads, envelopes: Sequence[SealedEnvelope]) -> dict[tuple[str, int], Elements]:
        """This holder's shares of everybody's keys, by uploader and group."""
        shares: dict[tuple[str, int], Elements] = {}
        for envelope in self._from_everybody(uploads, envelopes):
            groups = self._cohort.groups_of(envelope.peer)
            if len(envelope.key_shares) != len(groups):
                raise ProtectionError(f"{envelope.peer} shared too many or too few keys")
            for group, sealed in zip(groups, envelope.key_shares, strict=True):
                plain = self._unseal(sealed, envelope.peer, purpose=group.label)
                shares[envelope.peer, group.index] = expand_share(plain)
        return shares

    # --- deliver ----------------------------------------------------------------------------------------------

    def _deliver(self, message: Message) -> Message:
        try:
            self._opened = self._open_combination(message)
        except SecureFLError as error:
            # The coordinator does not learn whether it opened: that would be an oracle.
            log.warning("the combination does not open: %s", error.message)
        return Message()

    def _open_combination(self, message: Message) -> dict[str, BlockSum]:
        said = parse(SealedDelivery, message.body)
        uploads = self._uploads(said.commits)
        rows = Rows(self._context, self._cohort, uploads, said.rows)
        row = rows.of.get(self._me.name)
        if row is None:
            raise ProtectionError("a combination was sent that this node did not ask for")
        served = served_groups(self._cohort, row)
        keys = self._opened_keys(said.replies, rows, len(served))
        elements = self._combined(message.bulk, uploads, row, served)
        opened: dict[str, BlockSum] = {}
        start = 0
        for group, key in zip(served, keys, strict=True):
            size = group_values(self._context, group)
            part = elements[start : start + size]
            Product(key).unseal(part, seed=SealedGroup.seed_of(self._cohort, group))
            totals = self._terms.decode(part)
            at = 0
            for block in group.blocks:
                values = self._context.layout[block].size
                opened[block] = BlockSum(
                    total=totals[at : at + values], weight=WEIGHT_UNITS * sum(row.values()), contributors=len(row)
                )
                at += values
            start += size
        return opened

    def _opened_keys(self, replies: Sequence[SealedReply], rows: Rows, groups: int) -> list[Elements]:
        """Σ w·s of each group, from the holders' shares."""
        plain = self._open_replies(replies, purpose=b"open" + rows.digest)
        if any(len(shares) != groups * VECTOR_BYTES for shares in plain.values()):
            raise ProtectionError("a holder gave too many or too few shares")
        return [
            combine(
                {
                    self._cohort.index(holder): read_elements(shares[index * VECTOR_BYTES : (index + 1) * VECTOR_BYTES])
                    for holder, shares in plain.items()
                },
                threshold=self._cohort.threshold,
            )
            for index in range(groups)
        ]

    def _combined(self, bulk: bytes, uploads: Uploads, row: Mapping[str, int], served: Sequence[Group]) -> Elements:
        """Σ w·y: as the coordinator says, or recomputed from everybody's upload."""
        sizes = [group_values(self._context, group) for group in served]
        if not self._recomputes:
            if len(bulk) != ELEMENT.itemsize * sum(sizes):
                raise ProtectionError("a combination of the wrong length arrived")
            return read_elements(bulk).copy()
        if len(bulk) != ELEMENT.itemsize * sum(sizes) * len(row):
            raise ProtectionError("uploads of the wrong length arrived")
        view, position, parts = memoryview(bulk), 0, []
        for group, size in zip(served, sizes, strict=True):
            vectors = []
            for name in sorted(row):
                raw = view[position : position + ELEMENT.itemsize * size]
                index = self._cohort.groups_of(name).index(group)
                if merkle.root(raw) != uploads.commits[name].roots[index]:
                    raise ProtectionError(f"what is said to be {name}'s upload is not what it signed")
                vectors.append(read_elements(bytes(raw)))
                position += len(raw)
            parts.append(weighted_sum([row[name] for name in sorted(row)], vectors, size=size))
        return np.concatenate(parts) if parts else np.empty(0, ELEMENT)


def _asked(digest: bytes, parts: Iterable[SealedEnvelope | SealedReply]) -> bytes:
    """All that an answer depends on: what was signed, and what nobody signed, the envelopes or replies.

    Those too: what is sealed under one key must be one message, and other replies would have other distances weighed.
    """
    fields = (part.SerializeToString(deterministic=True) for part in parts)
    return hashlib.sha256(transcript("sealed question", digest, *fields)).digest()
