"""The coordinator's half of `sealed`, as far as a sum and a combine have it in common: who is there, who uploaded what.

It draws no randomness, so replaying the accepted messages after a crash rebuilds it. What it checks keeps malformed
answers out; what protects a node is in the node's half.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from secure_fl.errors import CohortTooSmallError, ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.bodies import say_bulky
from secure_fl.protect.cohort.meeting import Gathering
from secure_fl.protect.cohort.minima import require_cohort
from secure_fl.protect.contract import Ask, Bulk, Message, Opened, RoundContext
from secure_fl.protect.primitives.envelopes import TAG_BYTES
from secure_fl.protect.primitives.field import ELEMENT, Elements, read_elements
from secure_fl.protect.sealed import scores
from secure_fl.protect.sealed.groups import sealed_groups
from secure_fl.protect.sealed.manifest import MANIFESTS
from secure_fl.protect.sealed.phases import ADVERTISE, UPLOAD
from secure_fl.protect.sealed.shares import SEED_BYTES, VECTOR_BYTES
from secure_fl.protect.sealed.statements import Uploads, verify_commit
from secure_fl.protect.sealed.terms import Terms
from secure_fl.rpc.protect_sealed_pb2 import SealedCommit, SealedEnvelope, SealedOpening, SealedRow, SealedUpload

PIECE = 1 << 18  # elements read at a time

# How a phase takes an answer, and how it ends.
Step: TypeAlias = tuple[Callable[[str, Message, Bulk], None], Callable[[], Ask | Opened]]


class SealedCoordinator(ABC):
    """The coordinator in one attempt."""

    def __init__(self, context: RoundContext, *, digested: bool = False) -> None:
        self._context = context
        self._digested = digested
        self._terms = Terms.of(context)
        self._phase = ADVERTISE
        self._gathering = Gathering(context, MANIFESTS)
        self._commits: dict[str, SealedCommit] = {}
        self._envelopes: dict[str, dict[str, SealedEnvelope]] = {}  # by uploader and holder

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

    # --- advertise --------------------------------------------------------------------------------------------

    def _accept_manifest(self, node: str, message: Message, _bulk: Bulk) -> None:
        self._gathering.add(self._gathering.check(node, message.body))

    def _ask_for_uploads(self) -> Ask:
        self._cohort, roster = self._gathering.close()
        self._phase = UPLOAD
        return Ask(phase=UPLOAD, messages=dict.fromkeys(self._cohort.names, say_bulky(roster)))

    # --- upload -----------------------------------------------------------------------------------------------

    def _accept_upload(self, node: str, message: Message, bulk: Bulk) -> None:
        said = parse(SealedUpload, message.body)
        groups = sealed_groups(self._context, self._cohort, node)
        if said.commit.node != node or said.commit.upload != bulk.sha256:
            raise ProtectionError(f"{node} is committed to another upload")
        verify_commit(self._cohort, said.commit, digested=self._digested)
        if bulk.size != ELEMENT.itemsize * sum(group.size for group in groups):
            raise ProtectionError("the upload's length does not fit its blocks")
        self._check_envelopes(node, said, len(groups))
        for _ in _pieces(bulk):  # Everything is checked before anything is kept.
            pass
        self._envelopes[node] = {envelope.peer: envelope for envelope in said.envelopes}
        said.commit.DiscardUnknownFields()  # Everybody is sent everybody's commit.
        self._commits[node] = said.commit

    def _check_envelopes(self, node: str, said: SealedUpload, groups: int) -> None:
        if tuple(envelope.peer for envelope in said.envelopes) != self._cohort.names:
            raise ProtectionError(f"{node} did not write to every holder, once and in order")
        nodes = len(self._context.invited)
        sketch = scores.share_bytes(nodes) + TAG_BYTES if self._context.compares else 0
        for place, envelope in enumerate(said.envelopes, 1):
            share = SEED_BYTES if place < self._cohort.threshold else VECTOR_BYTES
            lengths = [len(sealed) for sealed in envelope.key_shares]
            if lengths != [share + TAG_BYTES] * groups or len(envelope.sketch_share) != sketch:
                raise ProtectionError(f"{node} sealed too much or too little")

    def _uploaded(self) -> Uploads:
        """Who uploaded, once nobody else can. Every commit was verified as it came."""
        require_cohort(self._commits, self._context.min_cohort, what="uploads")
        commits = [self._commits[name] for name in sorted(self._commits)]
        return Uploads(self._cohort, commits, digested=self._digested)

    # --- open -------------------------------------------------------------------------------------------------

    def _openings(
        self, uploads: Uploads, *, rows: Sequence[SealedRow] = (), earlier: Sequence[SealedRow] = ()
    ) -> dict[str, Message]:
        """What each holder is asked to open."""
        messages = {}
        for holder in self._cohort.names:
            envelopes = [
                SealedEnvelope(peer=name, key_shares=self._envelopes[name][holder].key_shares) for name in uploads.names
            ]
            opening = SealedOpening(commits=uploads.commits.values(), envelopes=envelopes, rows=rows, earlier=earlier)
            messages[holder] = say_bulky(opening)
        self._envelopes.clear()
        return messages

    def _require_holders(self, have: int) -> None:
        if have < self._cohort.threshold:
            raise CohortTooSmallError(have=have, need=self._cohort.threshold, what="holders")


def _pieces(bulk: Bulk) -> Iterator[Elements]:
    """An upload in pieces, each of elements below q."""
    for offset in range(0, bulk.size, ELEMENT.itemsize * PIECE):
        raw = bulk.read(offset, min(ELEMENT.itemsize * PIECE, bulk.size - offset))
        yield read_elements(raw)
