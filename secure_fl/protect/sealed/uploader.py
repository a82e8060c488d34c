"""A node as an uploader: says who it is, seals its update under a key of its own, and shares that key."""

from __future__ import annotations

import hashlib

import numpy as np

from secure_fl.aggregation import RequestKind
from secure_fl.encoding.integers import Integers
from secure_fl.protect.bodies import as_bulk, read_bulky, say
from secure_fl.protect.combining import CombineHost
from secure_fl.protect.contract import Contribution, Message
from secure_fl.protect.primitives.field import uniform
from secure_fl.protect.sealed.groups import SealedGroup, sealed_groups
from secure_fl.protect.sealed.party import SealedParty
from secure_fl.protect.sealed.ring import DEGREE, Product
from secure_fl.protect.sealed.shares import split
from secure_fl.protect.uploads.statements import sign_commit
from secure_fl.protect.uploads.uploader import Advertiser
from secure_fl.randomness import KeyStream
from secure_fl.rpc.protect_uploads_pb2 import UploadAnswer, UploadEnvelope


class Uploader(Advertiser):
    """Only in the process that trained: after a restart there is nothing to upload."""

    def __init__(self, party: SealedParty, contribution: Contribution, combining: CombineHost | None = None) -> None:
        super().__init__(party, contribution, combining)
        self._party = party

    def advertise(self, message: Message) -> Message:
        """As every uploader, where there is anything to upload."""
        self._party.require_trained()
        return super().advertise(message)

    def upload(self, message: Message) -> Message:
        """Verify everybody; y = a·s + e + Δ·x for each group of blocks; share s among the holders; sign y."""
        party = self._party
        party.require_trained()
        roster = read_bulky(message)
        cohort = party.meet(roster, self._manifest)
        party.note_circle()
        self._count_comparisons()
        groups = sealed_groups(party.context, cohort, party.name)
        elements = np.empty(sum(group.size for group in groups), np.int32)
        parts = [elements[group.start : group.start + group.size] for group in groups]
        keys = [self._seal_group(group, part) for group, part in zip(groups, parts, strict=True)]
        digests = [hashlib.sha256(part.data).digest() for part in parts] if party.digests.per_group else []
        bulk = as_bulk(elements)
        upload = hashlib.sha256(bulk).digest()
        answer = UploadAnswer(commit=sign_commit(party.me, cohort, upload, digests))
        sketches = self._sealed_sketches()
        for position, holder in enumerate(cohort.names):
            shares = [
                party.seal(key[position], holder, purpose=group.group.label)
                for group, key in zip(groups, keys, strict=True)
            ]
            answer.envelopes.append(UploadEnvelope(peer=holder, key_shares=shares, sketch_share=sketches[holder]))
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
