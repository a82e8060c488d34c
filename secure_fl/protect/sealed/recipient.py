"""A node as a recipient of a combine: in the end it opens what nobody else does."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from secure_fl.encoding.integers import BlockSum
from secure_fl.errors import ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.cohort.signed import Group
from secure_fl.protect.contract import Message
from secure_fl.protect.primitives.field import ELEMENT, Elements, read_elements, weighted_sum
from secure_fl.protect.sealed.groups import SealedGroup, group_values, served_groups
from secure_fl.protect.sealed.manifest import answers_to_open
from secure_fl.protect.sealed.party import SealedParty
from secure_fl.protect.sealed.ring import Product
from secure_fl.protect.sealed.shares import VECTOR_BYTES, interpolate
from secure_fl.protect.uploads.recipient import Recipient, combined_blocks
from secure_fl.protect.uploads.statements import Rows, Uploads, open_purpose
from secure_fl.rpc.protect_sealed_pb2 import SealedDelivery
from secure_fl.rpc.protect_uploads_pb2 import UploadReply


class SealedRecipient(Recipient):
    """Opens it with the key that holders gave shares of."""

    def __init__(self, party: SealedParty) -> None:
        self._party = party

    def _open(self, message: Message) -> dict[str, BlockSum]:
        party = self._party
        said = parse(SealedDelivery, message.body)
        uploads = party.uploads(said.commits)
        rows = Rows(party.context, party.cohort, uploads, said.rows)
        row = rows.of.get(party.name)
        if row is None:
            raise ProtectionError("a combination was sent that this node did not ask for")
        served = served_groups(party.cohort, row)
        keys = self._keys(said.replies, rows, len(served))
        sizes = [group_values(party.context, group) for group in served]
        if party.digests.per_group:
            elements = self._recomputed(message.bulk, uploads, row, dict(zip(served, sizes, strict=True)))
        else:
            elements = _combined(message.bulk, sum(sizes))
        opened: dict[str, BlockSum] = {}
        start = 0
        for group, size, key in zip(served, sizes, keys, strict=True):
            opened |= self._unseal_group(group, elements[start : start + size], key, row)
            start += size
        return opened

    def _unseal_group(
        self, group: Group, elements: Elements, key: Elements, row: Mapping[str, int]
    ) -> dict[str, BlockSum]:
        party = self._party
        Product(key).unseal(elements, seed=SealedGroup.seed_of(party.cohort, group))
        totals = party.terms.decode(elements, weights=sum(row.values()))
        return combined_blocks(party.context, group, totals, row)

    def _keys(self, replies: Sequence[UploadReply], rows: Rows, groups: int) -> list[Elements]:
        """Σ w·s of each group, from the holders' shares."""
        plain = self._party.unseal_replies(replies, purpose=open_purpose(rows))
        if any(len(shares) != groups * VECTOR_BYTES for shares in plain.values()):
            raise ProtectionError("a holder gave too many or too few shares")
        cohort = self._party.cohort
        need = answers_to_open(cohort, self._party.context.colluders)
        if len(plain) < need:
            raise ProtectionError(f"{len(plain)} holders' shares of a combination's key, {need} are needed")
        return [
            interpolate(
                {
                    cohort.index(holder): read_elements(shares[index * VECTOR_BYTES : (index + 1) * VECTOR_BYTES])
                    for holder, shares in plain.items()
                },
                threshold=cohort.threshold,
            )
            for index in range(groups)
        ]

    def _recomputed(
        self, bulk: bytes | memoryview, uploads: Uploads, row: Mapping[str, int], served: Mapping[Group, int]
    ) -> Elements:
        """Σ w·y from everybody's upload, each checked against what its node signed."""
        if len(bulk) != ELEMENT.itemsize * sum(served.values()) * len(row):
            raise ProtectionError("uploads of the wrong length arrived")
        view, position, parts = memoryview(bulk), 0, []
        for group, size in served.items():
            vectors = []
            for name in sorted(row):
                raw = view[position : position + ELEMENT.itemsize * size]
                index = self._party.cohort.groups_of(name).index(group)
                if hashlib.sha256(raw).digest() != uploads.commits[name].digests[index]:
                    raise ProtectionError(f"what is said to be {name}'s upload is not what it signed")
                vectors.append(read_elements(bytes(raw)))
                position += len(raw)
            parts.append(weighted_sum([row[name] for name in sorted(row)], vectors, size=size))
        return np.concatenate(parts) if parts else np.empty(0, ELEMENT)


def _combined(bulk: bytes | memoryview, size: int) -> Elements:
    """Σ w·y as the coordinator says."""
    if len(bulk) != ELEMENT.itemsize * size:
        raise ProtectionError("a combination of the wrong length arrived")
    return read_elements(bulk).copy()
