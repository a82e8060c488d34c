"""The coordinator's half of `sealed`: adds or combines what it cannot read, and opens sums, but no combination.

A sum is added as uploads arrive; for a combine they rest on disk, and one recipient's combination is formed at a time.
It draws no randomness, so replaying the accepted messages after a crash rebuilds it. What it checks keeps malformed
answers out; what protects a node is in the node's half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from secure_fl.errors import CohortTooSmallError, ProtectionError
from secure_fl.protect import sealed_scores
from secure_fl.protect.base import (
    Ask,
    BlockSum,
    Bulk,
    CombinationsSent,
    Message,
    Opened,
    OpenedSums,
    RequestKind,
    RoundContext,
)
from secure_fl.protect.cohort import require_cohort
from secure_fl.protect.combining import require_row, row_total, servable
from secure_fl.protect.memory import OpenedRow
from secure_fl.protect.sealed_cohort import (
    SealedGroup,
    group_values,
    say_bulky,
    sealed_groups,
    served_groups,
)
from secure_fl.protect.sealed_envelopes import TAG_BYTES
from secure_fl.protect.sealed_field import ELEMENT, Elements, add, read_elements, weighted_sum
from secure_fl.protect.sealed_ring import Product
from secure_fl.protect.sealed_shares import SEED_BYTES, VECTOR_BYTES, combine
from secure_fl.protect.sealed_statements import Uploads, known_rows, verify_commit, verify_row
from secure_fl.protect.sealed_terms import Terms
from secure_fl.protect.signed_cohort import Group, SignedCohort, read_manifest
from secure_fl.protect.weights import WEIGHT_UNITS, weight_floor
from secure_fl.rpc.protect_cohort_pb2 import Manifest, Roster
from secure_fl.rpc.protect_sealed_pb2 import (
    SealedCommit,
    SealedDelivery,
    SealedEnvelope,
    SealedEnvelopes,
    SealedOpening,
    SealedReplies,
    SealedReply,
    SealedRow,
    SealedScores,
    SealedSums,
    SealedUpload,
)
from secure_fl.wire import parse

_PIECE = 1 << 18  # elements read at a time


class SealedCoordinator:
    """The coordinator in one attempt."""

    def __init__(self, context: RoundContext, earlier: Sequence[OpenedRow] = ()) -> None:
        self._context = context
        self._earlier = earlier
        self._terms = Terms.of(context)
        self._phase = "advertise"
        self._manifests: dict[str, Manifest] = {}
        self._keys: set[bytes] = set()
        self._commits: dict[str, SealedCommit] = {}
        self._envelopes: dict[str, dict[str, SealedEnvelope]] = {}  # by uploader and holder
        self._bulks: dict[str, Bulk] = {}
        self._sums: dict[int, Elements] = {}
        self._torn = False
        self._replies: dict[str, dict[str, bytes]] = {}  # by holder and recipient
        self._rows: dict[str, SealedRow] = {}
        self._shares: dict[str, list[Elements]] = {}
        self._served: set[str] = set()

    def begin(self) -> Ask:
        """Everybody invited may advertise."""
        return Ask(phase="advertise", messages=dict.fromkeys(self._context.invited, Message()))

    def accept(self, node: str, message: Message, bulk: Bulk) -> None:
        """Take one answer to the current phase."""
        accepts: dict[str, Callable[[str, Message, Bulk], None]] = {
            "advertise": self._accept_manifest,
            "upload": self._accept_upload,
            "score": self._accept_replies,
            "row": self._accept_row,
            "open": self._accept_sums if self._context.kind is RequestKind.SUM else self._accept_replies,
            "deliver": self._accept_receipt,
        }
        accepts[self._phase](node, message, bulk)

    def close(self) -> Ask | Opened:
        """End the current phase with whoever answered."""
        closes: dict[str, Callable[[], Ask | Opened]] = {
            "advertise": self._ask_for_uploads,
            "upload": self._ask_for_openings if self._context.kind is RequestKind.SUM else self._ask_for_scores,
            "score": self._ask_for_rows,
            "row": self._ask_for_rows_to_open,
            "open": self._open if self._context.kind is RequestKind.SUM else self._ask_to_deliver,
            "deliver": self._sent,
        }
        return closes[self._phase]()

    @property
    def missing(self) -> int:
        """How many holders have to answer yet. Uploads are in and keys are shared: nothing is lost by waiting."""
        if self._phase == "open":
            return max(0, self._cohort.threshold - len(self._shares or self._replies))
        if self._phase == "score" and self._context.attention:
            return max(0, self._scores_needed - len(self._replies))
        return 0

    def _ask(self, phase: str, messages: Mapping[str, Message]) -> Ask:
        self._phase = phase
        opens = {name: dict(row.row) for name, row in self._rows.items()} if phase == "open" else {}
        return Ask(phase=phase, messages=messages, opens=opens)

    # --- advertise --------------------------------------------------------------------------------------------

    def _accept_manifest(self, node: str, message: Message, _bulk: Bulk) -> None:
        manifest = parse(Manifest, message.body)
        peer = read_manifest(self._context, manifest, protocol="sealed")
        keys = {peer.reply_key, peer.envelope_key}
        if peer.name != node or node in self._manifests or len(keys) < 2 or keys & self._keys:
            raise ProtectionError(f"{node} speaks for another node, twice, or with another's key")
        known_rows(peer.opened, self._earlier)  # Holders will want to see them.
        self._manifests[node] = manifest
        self._keys |= keys

    def _ask_for_uploads(self) -> Ask:
        require_cohort(self._manifests, self._context.min_cohort)
        manifests = [self._manifests[name] for name in sorted(self._manifests)]
        self._cohort = SignedCohort(self._context, manifests, protocol="sealed")
        self._scores_needed = sealed_scores.answers_needed(len(self._context.invited), self._context.colluders)
        if self._context.kind is RequestKind.SUM:
            self._sums = {g.index: np.zeros(group_values(self._context, g), ELEMENT) for g in self._cohort.groups}
        told = say_bulky(Roster(manifests=manifests))
        return self._ask("upload", dict.fromkeys(self._cohort.names, told))

    # --- upload -----------------------------------------------------------------------------------------------

    def _accept_upload(self, node: str, message: Message, bulk: Bulk) -> None:
        said = parse(SealedUpload, message.body)
        groups = sealed_groups(self._context, self._cohort, node)
        if said.commit.node != node or said.commit.upload != bulk.sha256:
            raise ProtectionError(f"{node} is committed to another upload")
        verify_commit(self._context, self._cohort, said.commit)
        if bulk.size != ELEMENT.itemsize * sum(group.size for group in groups):
            raise ProtectionError("the upload's length does not fit its blocks")
        self._check_envelopes(node, said, len(groups))
        for _ in _pieces(bulk):  # Everything is checked before anything is added.
            pass
        self._envelopes[node] = {envelope.peer: envelope for envelope in said.envelopes}
        said.commit.DiscardUnknownFields()  # Everybody is sent everybody's commit.
        self._commits[node] = said.commit
        if self._context.kind is RequestKind.COMBINE:
            self._bulks[node] = bulk
            return
        self._torn, before = True, self._torn  # A disk may fail half-way, and what was added cannot be taken back.
        for group in groups:
            self._add(group, bulk)
        self._torn = before

    def _check_envelopes(self, node: str, said: SealedUpload, groups: int) -> None:
        if tuple(envelope.peer for envelope in said.envelopes) != self._cohort.names:
            raise ProtectionError(f"{node} did not write to every holder, once and in order")
        nodes = len(self._context.invited)
        sketch = sealed_scores.share_bytes(nodes) + TAG_BYTES if self._context.attention else 0
        for place, envelope in enumerate(said.envelopes, 1):
            share = SEED_BYTES if place < self._cohort.threshold else VECTOR_BYTES
            lengths = [len(sealed) for sealed in envelope.key_shares]
            if lengths != [share + TAG_BYTES] * groups or len(envelope.sketch_share) != sketch:
                raise ProtectionError(f"{node} sealed too much or too little")

    def _add(self, group: SealedGroup, bulk: Bulk) -> None:
        total = self._sums[group.group.index]
        for start in range(0, group.size, _PIECE):
            part = total[start : start + _PIECE]
            raw = bulk.read(ELEMENT.itemsize * (group.start + start), part.nbytes)
            add(part, read_elements(raw))

    def _require_uploads(self) -> Uploads:
        if self._torn:
            raise ProtectionError("an upload could be read in part only: the sums are void")
        require_cohort(self._commits, self._context.min_cohort, what="uploads")
        return Uploads(self._context, self._cohort, [self._commits[name] for name in sorted(self._commits)])

    # --- score ------------------------------------------------------------------------------------------------

    def _ask_for_scores(self) -> Ask:
        self._uploads = self._require_uploads()
        messages: dict[str, Message] = {}
        if self._context.attention:
            for holder in self._cohort.names:
                envelopes = [
                    SealedEnvelope(peer=name, sketch_share=self._envelopes[name][holder].sketch_share)
                    for name in self._uploads.names
                ]
                messages[holder] = say_bulky(
                    SealedEnvelopes(commits=self._uploads.commits.values(), envelopes=envelopes)
                )
        return self._ask("score", messages)

    def _accept_replies(self, node: str, message: Message, bulk: Bulk) -> None:
        replies = parse(SealedReplies, message.body or bulk.read(0, bulk.size)).replies
        if [reply.peer for reply in replies] != sorted(self._recipients):
            raise ProtectionError(f"{node} did not answer to every recipient, once and in order")
        length = self._reply_length
        if any(len(reply.sealed) != length(reply.peer) for reply in replies):
            raise ProtectionError(f"{node} sealed too much or too little")
        self._replies[node] = {reply.peer: reply.sealed for reply in replies}

    @property
    def _recipients(self) -> tuple[str, ...]:
        return self._uploads.names if self._phase == "score" else tuple(self._rows)

    def _reply_length(self, recipient: str) -> int:
        if self._phase == "score":
            return 8 * (len(self._uploads.names) - 1) + TAG_BYTES
        return VECTOR_BYTES * len(served_groups(self._cohort, self._rows[recipient].row)) + TAG_BYTES

    def _replies_for(self, recipient: str) -> list[SealedReply]:
        return [SealedReply(peer=holder, sealed=self._replies[holder][recipient]) for holder in sorted(self._replies)]

    # --- row --------------------------------------------------------------------------------------------------

    def _ask_for_rows(self) -> Ask:
        if self.missing:
            raise CohortTooSmallError(have=len(self._replies), need=self._scores_needed, what="scores")
        messages = {
            name: say_bulky(SealedScores(commits=self._uploads.commits.values(), replies=self._replies_for(name)))
            for name in self._uploads.names
        }
        return self._ask("row", messages)

    def _accept_row(self, node: str, message: Message, _bulk: Bulk) -> None:
        row = parse(SealedRow, message.body)
        if row.node != node:
            raise ProtectionError(f"{node} asks for another node")
        verify_row(self._cohort, self._uploads, row)
        require_row(row.row, uploaded=self._uploads.names, total=row_total(len(self._context.invited)))
        self._rows[node] = SealedRow(node=node, row=row.row, signature=row.signature)

    def _ask_for_rows_to_open(self) -> Ask | Opened:
        """The largest matrix that the guard lets through; whoever is not in it keeps its own model."""
        self._replies.clear()
        large = {name: dict(row.row) for name, row in self._rows.items() if len(row.row) >= self._context.min_cohort}
        passed = servable(large, nodes=self._uploads.names, colluders=self._context.colluders, earlier=self._earlier)
        self._rows = {name: self._rows[name] for name in sorted(passed)}
        if not self._rows:
            return self._sent()
        return self._ask_for_openings()

    # --- open -------------------------------------------------------------------------------------------------

    def _ask_for_openings(self) -> Ask:
        if self._context.kind is RequestKind.SUM:
            self._uploads = self._require_uploads()
            self._opened = self._cohort.releasable(self._cohort.groups, self._uploads.names)
        earlier = [SealedRow(node=name, row=row) for name, row in known_rows(self._cohort.opened, self._earlier)]
        messages = {}
        for holder in self._cohort.names:
            envelopes = [
                SealedEnvelope(peer=name, key_shares=self._envelopes[name][holder].key_shares)
                for name in self._uploads.names
            ]
            messages[holder] = say_bulky(
                SealedOpening(
                    commits=self._uploads.commits.values(),
                    envelopes=envelopes,
                    rows=list(self._rows.values()),
                    earlier=earlier,
                )
            )
        self._envelopes.clear()
        return self._ask("open", messages)

    def _accept_sums(self, node: str, message: Message, _bulk: Bulk) -> None:
        shares = parse(SealedSums, message.body).shares
        if len(shares) != len(self._opened) or any(len(share) != VECTOR_BYTES for share in shares):
            raise ProtectionError(f"{node} gave too many or too few shares")
        self._shares[node] = [read_elements(share) for share in shares]

    def _require_holders(self, have: int) -> None:
        if have < self._cohort.threshold:
            raise CohortTooSmallError(have=have, need=self._cohort.threshold, what="holders")

    def _open(self) -> OpenedSums:
        self._require_holders(len(self._shares))
        blocks: dict[str, BlockSum] = {}
        for position, group in enumerate(self._opened):
            shares = {self._cohort.index(holder): held[position] for holder, held in self._shares.items()}
            key = combine(shares, threshold=self._cohort.threshold)
            elements = self._sums.pop(group.index)  # one group at a time
            Product(key).unseal(elements, seed=SealedGroup.seed_of(self._cohort, group))
            blocks |= self._decode(group, elements)
        return OpenedSums(blocks=blocks, cohort=self._uploads.names)

    def _decode(self, group: Group, elements: Elements) -> dict[str, BlockSum]:
        count = sum(name in self._uploads.commits for name in group.holders)
        weight = self._terms.decode_weight(elements[-1:])
        floor = weight_floor(self._context.min_cohort, self._context.colluders)
        if not count * floor <= weight <= count * WEIGHT_UNITS:
            raise ProtectionError("the opened weight is not that of the uploaders: a node sent nonsense")
        blocks: dict[str, BlockSum] = {}
        start = 0
        for block in group.blocks:
            size = self._context.layout[block].size
            total = self._terms.decode(elements[start : start + size])
            blocks[block] = BlockSum(total=total, weight=weight, contributors=count)
            start += size
        return blocks

    # --- deliver ----------------------------------------------------------------------------------------------

    def _ask_to_deliver(self) -> Ask:
        self._require_holders(len(self._replies))
        return self._ask("deliver", _Deliveries(tuple(self._rows), self._delivery))

    def _delivery(self, recipient: str) -> Message:
        row = dict(self._rows[recipient].row)
        body = SealedDelivery(
            commits=self._uploads.commits.values(), rows=list(self._rows.values()), replies=self._replies_for(recipient)
        )
        served = served_groups(self._cohort, row)
        parts = [part for group in served for part in self._group_bulk(group, row)]
        return Message(body=body.SerializeToString(deterministic=True), bulk=b"".join(parts))

    def _group_bulk(self, group: Group, row: Mapping[str, int]) -> Iterator[bytes]:
        """Σ w·y of one group or, where recipients recompute it, every y in it."""
        names = sorted(row)
        if self._context.recompute:
            for name in names:
                yield self._read(name, group, 0, group_values(self._context, group))
            return
        size = group_values(self._context, group)
        for start in range(0, size, _PIECE):
            count = min(_PIECE, size - start)
            vectors = (read_elements(self._read(name, group, start, count)) for name in names)
            yield weighted_sum([row[name] for name in names], vectors, size=count).tobytes()

    def _read(self, name: str, group: Group, start: int, count: int) -> bytes:
        mine = next(g for g in sealed_groups(self._context, self._cohort, name) if g.group == group)
        return self._bulks[name].read(ELEMENT.itemsize * (mine.start + start), ELEMENT.itemsize * count)

    def _accept_receipt(self, node: str, _message: Message, _bulk: Bulk) -> None:
        self._served.add(node)

    def _sent(self) -> CombinationsSent:
        return CombinationsSent(recipients=tuple(sorted(self._served)), cohort=self._uploads.names)


class _Deliveries(Mapping[str, Message]):
    """A message per recipient, formed when it is asked for: one combination in memory, not all of them."""

    def __init__(self, recipients: tuple[str, ...], form: Callable[[str], Message]) -> None:
        self._recipients = recipients
        self._form = form

    def __getitem__(self, recipient: str) -> Message:
        if recipient not in self._recipients:
            raise KeyError(recipient)
        return self._form(recipient)

    def __contains__(self, recipient: object) -> bool:
        return recipient in self._recipients

    def __iter__(self) -> Iterator[str]:
        return iter(self._recipients)

    def __len__(self) -> int:
        return len(self._recipients)


def _pieces(bulk: Bulk) -> Iterator[Elements]:
    """An upload in pieces, each of elements below q."""
    for offset in range(0, bulk.size, ELEMENT.itemsize * _PIECE):
        raw = bulk.read(offset, min(ELEMENT.itemsize * _PIECE, bulk.size - offset))
        yield read_elements(raw)


def largest_upload(context: RoundContext) -> int:
    """Every block and weight in groups of their own, or a holder's answer to everybody about all of them."""
    groups = len(context.layout.names) + 1
    elements = ELEMENT.itemsize * (context.layout.size + groups)
    replies = len(context.invited) * (groups * VECTOR_BYTES + 1024)
    return max(elements, replies)
