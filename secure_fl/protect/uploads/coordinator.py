"""The coordinator's half where uploads rest, as far as protections have it in common: who is there, who uploaded what.

It draws no randomness, so replaying the accepted messages after a crash rebuilds it. What it checks keeps malformed
answers out; what protects a node is in the node's half.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from secure_fl.errors import CohortTooSmallError, ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.bodies import say_bulky
from secure_fl.protect.cohort.meeting import Gathering
from secure_fl.protect.cohort.minima import require_cohort
from secure_fl.protect.combining import CombinationsSent
from secure_fl.protect.contract import Ask, Bulk, Message, Opened, RoundContext
from secure_fl.protect.primitives.envelopes import TAG_BYTES
from secure_fl.protect.release.combinations import require_row, row_total, servable
from secure_fl.protect.release.history import OpenedRow
from secure_fl.protect.uploads import scores
from secure_fl.protect.uploads.manifest import UploadCohort, UploadManifests, opened_before, origins
from secure_fl.protect.uploads.phases import ADVERTISE, ROW, SCORE
from secure_fl.protect.uploads.statements import Digests, Uploads, known_rows, verify_commit, verify_row
from secure_fl.protect.versions import usable
from secure_fl.rpc.protect_cohort_pb2 import Roster
from secure_fl.rpc.protect_uploads_pb2 import (
    UploadAnswer,
    UploadCommit,
    UploadEnvelope,
    UploadEnvelopes,
    UploadReplies,
    UploadReply,
    UploadRow,
    UploadScores,
)

# How a phase takes an answer, and how it ends.
Step: TypeAlias = tuple[Callable[[str, Message, Bulk], None], Callable[[], Ask | Opened]]


class UploadCoordinator(ABC):
    """The coordinator in one attempt."""

    _cohort: UploadCohort  # once everybody has advertised

    def __init__(self, context: RoundContext, manifests: UploadManifests, *, digests: Digests) -> None:
        self._context = context
        self._digests = digests
        self._phase = ADVERTISE
        self._gathering = Gathering(context, manifests)
        self._commits: dict[str, UploadCommit] = {}
        self._envelopes: dict[str, dict[str, UploadEnvelope]] = {}  # by uploader and holder

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

    @abstractmethod
    def _step(self) -> Step:
        """That of the current phase."""

    def _ask(self, phase: str, messages: Mapping[str, Message]) -> Ask:
        self._phase = phase
        return Ask(phase=phase, messages=messages)

    def _accept_manifest(self, node: str, message: Message, _bulk: Bulk) -> None:
        self._gathering.add(self._gathering.check(node, message.body))

    @property
    def _missing_manifests(self) -> int:
        """How many have to advertise yet: of a circle everybody, of sites at their own pace enough that fit."""
        if self._context.staleness is None:
            return self._gathering.missing
        return max(0, self._context.min_cohort - len(self._gathering.said.keys() - self._unusable()))

    def _unusable(self) -> set[str]:
        """Whose version too few of the others know: the sites would refuse a list with such a one in it."""
        said = {name: advert.origin for name, advert in self._gathering.said.items() if advert.origin is not None}
        return set(said) - usable(said, colluders=self._context.colluders)

    def _gathered(self) -> tuple[UploadCohort, Roster]:
        """Whoever advertised and fits together, and what everybody is told."""
        return self._gathering.close(without=self._unusable())

    def _bases(self, names: Iterable[str]) -> dict[str, int]:
        """The version that each of these trained from, where each joins at its own pace."""
        known = origins(self._cohort)
        return {name: known[name].made_from.number for name in names if name in known}

    # --- upload -----------------------------------------------------------------------------------------------

    def _accept_upload(self, node: str, message: Message, bulk: Bulk) -> None:
        said = parse(UploadAnswer, message.body)
        if said.commit.node != node or said.commit.upload != bulk.sha256:
            raise ProtectionError(f"{node} is committed to another upload")
        verify_commit(self._cohort, said.commit, digests=self._digests)
        if bulk.size != self._upload_bytes(node):
            raise ProtectionError("the upload's length does not fit its blocks")
        self._check_envelopes(node, said)
        self._check_values(node, said.commit, bulk)  # Everything is checked before anything is kept.
        self._envelopes[node] = {envelope.peer: envelope for envelope in said.envelopes}
        said.commit.DiscardUnknownFields()  # Everybody is sent everybody's commit.
        self._commits[node] = said.commit

    @abstractmethod
    def _upload_bytes(self, node: str) -> int:
        """How long a node's upload is."""

    @abstractmethod
    def _check_values(self, node: str, commit: UploadCommit, bulk: Bulk) -> None:
        """Raise `ProtectionError` for an upload that cannot be added to others."""

    @abstractmethod
    def _share_bytes(self, node: str, place: int) -> Sequence[int]:
        """How long the shares of keys are in a node's envelope to the holder at a place."""

    def _check_envelopes(self, node: str, said: UploadAnswer) -> None:
        if tuple(envelope.peer for envelope in said.envelopes) != self._cohort.names:
            raise ProtectionError(f"{node} did not write to every holder, once and in order")
        nodes = len(self._context.invited)
        sketch = scores.share_bytes(nodes) + TAG_BYTES if self._context.compares else 0
        for place, envelope in enumerate(said.envelopes, 1):
            lengths = [len(sealed) for sealed in envelope.key_shares]
            if lengths != list(self._share_bytes(node, place)) or len(envelope.sketch_share) != sketch:
                raise ProtectionError(f"{node} sealed too much or too little")

    def _uploaded(self) -> Uploads:
        """Who uploaded, once nobody else can. Every commit was verified as it came."""
        require_cohort(self._commits, self._context.min_cohort, what="uploads")
        commits = [self._commits[name] for name in sorted(self._commits)]
        return Uploads(self._cohort, commits, digests=self._digests)


class RowsCoordinator(UploadCoordinator):
    """In a combine: also who weighs whom how much, as far as the guard lets it through."""

    def __init__(
        self,
        context: RoundContext,
        manifests: UploadManifests,
        earlier: Sequence[OpenedRow],
        *,
        digests: Digests,
    ) -> None:
        super().__init__(context, manifests, digests=digests)
        self._earlier = earlier
        self._scores_needed = scores.answers_needed(len(context.invited), context.colluders)
        self._bulks: dict[str, Bulk] = {}
        self._replies: dict[str, dict[str, bytes]] = {}  # by holder and recipient
        self._rows: dict[str, UploadRow] = {}
        self._served: set[str] = set()

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
                    UploadEnvelope(peer=name, sketch_share=self._envelopes[name][holder].sketch_share)
                    for name in self._uploads.names
                ]
                messages[holder] = say_bulky(
                    UploadEnvelopes(commits=self._uploads.commits.values(), envelopes=envelopes)
                )
        return self._ask(SCORE, messages)

    @property
    def _missing_scores(self) -> int:
        """How many holders have to answer yet. Uploads are in and sketches are shared: nothing is lost by waiting."""
        return max(0, self._scores_needed - len(self._replies)) if self._context.compares else 0

    def _accept_replies(self, node: str, message: Message, bulk: Bulk) -> None:
        replies = parse(UploadReplies, message.body or bulk.read(0, bulk.size)).replies
        if [reply.peer for reply in replies] != sorted(self._recipients):
            raise ProtectionError(f"{node} did not answer to every recipient, once and in order")
        length = self._reply_length
        if any(len(reply.sealed) != length(reply.peer) for reply in replies):
            raise ProtectionError(f"{node} sealed too much or too little")
        self._replies[node] = {reply.peer: reply.sealed for reply in replies}

    @property
    def _recipients(self) -> tuple[str, ...]:
        return self._uploads.names if self._phase == SCORE else tuple(self._rows)

    def _reply_length(self, _recipient: str) -> int:
        return 8 * (len(self._uploads.names) - 1) + TAG_BYTES

    def _replies_for(self, recipient: str) -> list[UploadReply]:
        return [UploadReply(peer=holder, sealed=self._replies[holder][recipient]) for holder in sorted(self._replies)]

    # --- row --------------------------------------------------------------------------------------------------

    def _ask_for_rows(self) -> Ask:
        if self._missing_scores:
            raise CohortTooSmallError(have=len(self._replies), need=self._scores_needed, what="scores")
        messages = {
            name: say_bulky(UploadScores(commits=self._uploads.commits.values(), replies=self._replies_for(name)))
            for name in self._uploads.names
        }
        return self._ask(ROW, messages)

    def _accept_row(self, node: str, message: Message, _bulk: Bulk) -> None:
        row = parse(UploadRow, message.body)
        if row.node != node:
            raise ProtectionError(f"{node} asks for another node")
        verify_row(self._cohort, self._uploads, row)
        require_row(row.row, uploaded=self._uploads.names, total=row_total(len(self._context.invited)))
        self._rows[node] = UploadRow(node=node, row=row.row, signature=row.signature)

    def _ask_for_rows_to_open(self) -> Ask | Opened:
        """The largest matrix that the guard lets through; whoever is not in it keeps its own model."""
        self._replies.clear()
        large = {name: dict(row.row) for name, row in self._rows.items() if len(row.row) >= self._context.min_cohort}
        passed = servable(large, nodes=self._uploads.names, colluders=self._context.colluders, earlier=self._earlier)
        self._rows = {name: self._rows[name] for name in sorted(passed)}
        if not self._rows:
            return self._sent()
        return self._ask_for_openings()

    @abstractmethod
    def _ask_for_openings(self) -> Ask:
        """What opens the rows that are left."""

    def _earlier_rows(self) -> list[UploadRow]:
        """Every row that a manifest has a hash of."""
        known = known_rows(opened_before(self._cohort), self._earlier)
        return [UploadRow(node=name, row=row) for name, row in known]

    # --- deliver ----------------------------------------------------------------------------------------------

    def _accept_receipt(self, node: str, _message: Message, _bulk: Bulk) -> None:
        self._served.add(node)

    def _sent(self) -> CombinationsSent:
        return CombinationsSent(recipients=tuple(sorted(self._served)), cohort=self._uploads.names)


class WhenAsked(Mapping[str, Message]):
    """A message per node, formed when it is asked for: one with bulk in memory, not all of them."""

    def __init__(self, names: Sequence[str], form: Callable[[str], Message]) -> None:
        self._names = tuple(names)
        self._form = form

    def __getitem__(self, name: str) -> Message:
        if name not in self._names:
            raise KeyError(name)
        return self._form(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
