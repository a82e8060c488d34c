"""The coordinator of a sealed combine: forms combinations of what it cannot read, and opens none of them.

Uploads rest on disk, and one recipient's combination is formed at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from secure_fl.errors import CohortTooSmallError, ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.bodies import say, say_bulky
from secure_fl.protect.cohort.signed import Group
from secure_fl.protect.combining import CombinationsSent, OpeningAsk
from secure_fl.protect.contract import Ask, Bulk, Message, Opened, RoundContext
from secure_fl.protect.primitives.envelopes import TAG_BYTES
from secure_fl.protect.primitives.field import ELEMENT, read_elements, weighted_sum
from secure_fl.protect.release.combinations import require_row, row_total, servable
from secure_fl.protect.release.history import OpenedRow
from secure_fl.protect.sealed import scores
from secure_fl.protect.sealed.coordinator import PIECE, SealedCoordinator, Step
from secure_fl.protect.sealed.groups import group_values, sealed_groups, served_groups
from secure_fl.protect.sealed.manifest import answers_to_open, opened_before
from secure_fl.protect.sealed.phases import COMBINE, DELIVER, OPEN, ROW, SCORE
from secure_fl.protect.sealed.shares import VECTOR_BYTES
from secure_fl.protect.sealed.statements import known_rows, verify_row
from secure_fl.rpc.protect_sealed_pb2 import (
    SealedDelivery,
    SealedEnvelope,
    SealedEnvelopes,
    SealedReplies,
    SealedReply,
    SealedRow,
    SealedScores,
)


class CombineCoordinator(SealedCoordinator):
    """It sees who weighs whom how much; with `recompute` it hands on uploads, and recipients combine them."""

    def __init__(self, context: RoundContext, earlier: Sequence[OpenedRow], *, recompute: bool = False) -> None:
        super().__init__(context, digested=recompute)
        self._earlier = earlier
        self._recompute = recompute
        self._scores_needed = scores.answers_needed(len(context.invited), context.colluders)
        self._bulks: dict[str, Bulk] = {}
        self._replies: dict[str, dict[str, bytes]] = {}  # by holder and recipient
        self._rows: dict[str, SealedRow] = {}
        self._served: set[str] = set()

    def _step(self) -> Step:
        steps: tuple[Step, ...] = (
            (self._accept_manifest, self._ask_for_uploads),
            (self._accept_upload, self._ask_for_scores),
            (self._accept_replies, self._ask_for_rows),
            (self._accept_row, self._ask_for_rows_to_open),
            (self._accept_replies, self._ask_to_deliver),
            (self._accept_receipt, self._sent),
        )
        return dict(zip(COMBINE, steps, strict=True))[self._phase]

    @property
    def missing(self) -> int:
        """How many holders have to answer yet. Uploads are in and keys are shared: nothing is lost by waiting."""
        if self._phase == OPEN:
            return max(0, self._answers_to_open - len(self._replies))
        if self._phase == SCORE and self._context.compares:
            return max(0, self._scores_needed - len(self._replies))
        return 0

    @property
    def _answers_to_open(self) -> int:
        return answers_to_open(self._cohort, self._context.colluders)

    def _ask(self, phase: str, messages: Mapping[str, Message]) -> Ask:
        self._phase = phase
        return Ask(phase=phase, messages=messages)

    # --- advertise and upload ---------------------------------------------------------------------------------

    def _accept_manifest(self, node: str, message: Message, _bulk: Bulk) -> None:
        peer = self._gathering.check(node, message.body)
        known_rows(peer.said.opened, self._earlier)  # Holders will want to see them.
        self._gathering.add(peer)

    def _accept_upload(self, node: str, message: Message, bulk: Bulk) -> None:
        super()._accept_upload(node, message, bulk)
        self._bulks[node] = bulk

    # --- score ------------------------------------------------------------------------------------------------

    def _ask_for_scores(self) -> Ask:
        self._uploads = self._uploaded()
        messages: dict[str, Message] = {}
        if self._context.compares:
            for holder in self._cohort.names:
                envelopes = [
                    SealedEnvelope(peer=name, sketch_share=self._envelopes[name][holder].sketch_share)
                    for name in self._uploads.names
                ]
                messages[holder] = say_bulky(
                    SealedEnvelopes(commits=self._uploads.commits.values(), envelopes=envelopes)
                )
        return self._ask(SCORE, messages)

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
        return self._uploads.names if self._phase == SCORE else tuple(self._rows)

    def _reply_length(self, recipient: str) -> int:
        if self._phase == SCORE:
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
        return self._ask(ROW, messages)

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
        known = known_rows(opened_before(self._cohort), self._earlier)
        earlier = [SealedRow(node=name, row=row) for name, row in known]
        messages = self._openings(self._uploads, rows=list(self._rows.values()), earlier=earlier)
        self._phase = OPEN
        opens = {name: dict(row.row) for name, row in self._rows.items()}
        return OpeningAsk(phase=OPEN, messages=messages, opens=opens)

    # --- deliver ----------------------------------------------------------------------------------------------

    def _ask_to_deliver(self) -> Ask:
        if self.missing:
            raise CohortTooSmallError(have=len(self._replies), need=self._answers_to_open, what="holders")
        return self._ask(DELIVER, _Deliveries(tuple(self._rows), self._delivery))

    def _delivery(self, recipient: str) -> Message:
        row = dict(self._rows[recipient].row)
        body = SealedDelivery(
            commits=self._uploads.commits.values(), rows=list(self._rows.values()), replies=self._replies_for(recipient)
        )
        served = served_groups(self._cohort, row)
        return say(body, bulk=b"".join(part for group in served for part in self._group_bulk(group, row)))

    def _group_bulk(self, group: Group, row: Mapping[str, int]) -> Iterator[bytes]:
        """Σ w·y of one group or, where recipients recompute it, every y in it."""
        names = sorted(row)
        size = group_values(self._context, group)
        if self._recompute:
            for name in names:
                yield self._read(name, group, 0, size)
            return
        for start in range(0, size, PIECE):
            count = min(PIECE, size - start)
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
