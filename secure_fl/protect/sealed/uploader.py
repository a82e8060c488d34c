"""A node as an uploader: says who it is, seals its update under a key of its own, and shares that key."""

from __future__ import annotations

import hashlib

import numpy as np

from secure_fl.aggregation import RequestKind
from secure_fl.encoding.integers import Integers
from secure_fl.protect.bodies import as_bulk, read_bulky, say
from secure_fl.protect.cohort.meeting import note
from secure_fl.protect.cohort.signed import make_manifest
from secure_fl.protect.combining import CombineContribution, CombineHost
from secure_fl.protect.contract import Contribution, Message
from secure_fl.protect.primitives.field import uniform
from secure_fl.protect.sealed.groups import SealedGroup, sealed_groups
from secure_fl.protect.sealed.manifest import MANIFESTS
from secure_fl.protect.sealed.party import SealedParty
from secure_fl.protect.sealed.ring import DEGREE, Product
from secure_fl.protect.sealed.shares import split
from secure_fl.protect.uploads import scores
from secure_fl.protect.uploads.comparing import deal_sketch
from secure_fl.protect.uploads.manifest import UploadCohort
from secure_fl.protect.uploads.party import SKETCH
from secure_fl.protect.uploads.statements import row_hash, sign_commit
from secure_fl.randomness import KeyStream
from secure_fl.rpc.protect_uploads_pb2 import UploadAnswer, UploadEnvelope


class Uploader:
    """In a sum. Only in the process that trained: after a restart there is nothing to upload."""

    def __init__(self, party: SealedParty, contribution: Contribution) -> None:
        self._party = party
        self._blocks = dict(contribution.blocks)  # each goes as it is sealed: its memory is needed for what comes of it
        self._weight = contribution.weight
        self._sketch_shares: list[bytes] = []

    def advertise(self, _message: Message) -> Message:
        """Which blocks it holds and under which fresh keys, signed."""
        party = self._party
        party.require_trained()
        dealt = self._deal_sketch()
        self._sketch_shares = dealt.shares if dealt else []
        self._manifest = make_manifest(
            party.context,
            party.host,
            protocol=MANIFESTS.protocol,
            blocks=self._blocks,
            extension=party.extension(dealt, self._opened_before()),
        )
        return say(self._manifest)

    def upload(self, message: Message) -> Message:
        """Verify everybody; y = a·s + e + Δ·x for each group of blocks; share s among the holders; sign y."""
        party = self._party
        party.require_trained()
        roster = read_bulky(message)
        cohort = party.meet(roster, self._manifest)
        if party.context.whole:
            # Now, not when it is opened: that needs some holders only, and each member has to know of it.
            note(party.context, cohort, party.host, [cohort.names])
        self._before_upload(cohort)
        groups = sealed_groups(party.context, cohort, party.name)
        elements = np.empty(sum(group.size for group in groups), np.int32)
        parts = [elements[group.start : group.start + group.size] for group in groups]
        keys = [self._seal_group(group, part) for group, part in zip(groups, parts, strict=True)]
        digests = [hashlib.sha256(part.data).digest() for part in parts] if party.digests.per_group else []
        sketch, self._sketch_shares = self._sketch_shares, []
        bulk = as_bulk(elements)
        upload = hashlib.sha256(bulk).digest()
        answer = UploadAnswer(commit=sign_commit(party.me, cohort, upload, digests))
        for position, holder in enumerate(cohort.names):
            shares = [
                party.seal(key[position], holder, purpose=group.group.label)
                for group, key in zip(groups, keys, strict=True)
            ]
            sketched = party.seal(sketch[party.place(holder) - 1], holder, purpose=SKETCH) if sketch else b""
            answer.envelopes.append(UploadEnvelope(peer=holder, key_shares=shares, sketch_share=sketched))
        party.memory.keep(roster=roster, upload=answer.commit.upload)
        return say(answer, bulk=bulk, digest=upload)

    def _seal_group(self, group: SealedGroup, out: Integers) -> list[bytes]:
        """y = a·s + e + Δ·x into `out`, and the shares of s. The secret exists in this call only."""
        party = self._party
        errors = KeyStream(party.randomness.bytes(32))
        start = 0
        for block in group.group.blocks:
            values = self._blocks.pop(block)
            party.terms.encode(values, out[start : start + values.size], errors)
            start += values.size
        if party.context.kind is RequestKind.SUM:
            out[start:] = party.terms.encode_weight(self._weight, errors)
        secret = uniform(KeyStream(party.randomness.bytes(32)), DEGREE)
        Product(secret).seal(out, seed=group.seed)
        cohort = party.cohort
        return split(secret, threshold=cohort.threshold, holders=len(cohort.names), randomness=party.randomness)

    # --- what a combine has besides ---------------------------------------------------------------------------

    def _deal_sketch(self) -> scores.Dealing | None:
        return None

    def _opened_before(self) -> list[bytes]:
        return []

    def _before_upload(self, cohort: UploadCohort) -> None:
        """The last moment before anything leaves that depends on the data."""


class CombineUploader(Uploader):
    """In a combine: also with what this node has opened in the study and, where distances are opened, a sketch."""

    def __init__(self, party: SealedParty, contribution: CombineContribution, host: CombineHost) -> None:
        super().__init__(party, contribution)
        self._sketch = contribution.sketch
        self._history = host.history
        self._comparisons = host.comparisons

    def _opened_before(self) -> list[bytes]:
        return [row_hash(*row) for row in self._history.earlier()]

    def _before_upload(self, cohort: UploadCohort) -> None:
        # With the upload go shares of the sketch, and whoever is here may be told its distance: whether or not the
        # attempt comes to anything, and also if this node should never hear of it.
        if self._sketch_shares:
            self._comparisons.count([name for name in cohort.names if name != self._party.name])

    def _deal_sketch(self) -> scores.Dealing | None:
        return deal_sketch(self._party, self._sketch)
