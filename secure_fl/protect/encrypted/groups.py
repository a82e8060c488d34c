"""Where the halves of each group of blocks lie in an upload: all bodies, then all seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secure_fl.aggregation import RequestKind
from secure_fl.encoding.integers import Integers
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.protect.cohort.signed import Group
from secure_fl.protect.contract import RoundContext
from secure_fl.protect.encrypted.sides import Side
from secure_fl.protect.encrypted.terms import Terms
from secure_fl.protect.uploads.manifest import UploadCohort
from secure_fl.protect.uploads.statements import Digests
from secure_fl.rpc.protect_uploads_pb2 import UploadCommit

# What a node signs besides the digest of its upload: the key's id and, per group, the digests of bodies and seeds.
DIGESTS = Digests(fixed=1, per_group=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One group's half in one node's upload."""

    start: int
    size: int
    digest: int  # its place among the digests of a commit


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptedGroup:
    """A group of blocks in one node's upload."""

    group: Group
    values: int  # those of its blocks and, in a sum, those of the weight
    halves: Mapping[Side, Part]


def group_values(context: RoundContext, group: Group) -> int:
    """How many values a group has."""
    weight = weight_values(0, value_limit(context.bits)).size if context.kind is RequestKind.SUM else 0
    return sum(context.layout[block].size for block in group.blocks) + weight


def weight_values(weight: int, limit: int) -> Integers:
    """A node's weight as values that fit the study's grid, and add up to it: one, unless values are very short."""
    count = -(-WEIGHT_UNITS // limit)
    return np.array([max(0, min(limit, weight - limit * place)) for place in range(count)], np.int32)


def value_limit(bits: int) -> int:
    """The largest magnitude of a value."""
    return int(2 ** (bits - 1)) - 1


def half_bytes(terms: Terms, side: Side, values: int) -> int:
    """How long one upload's half is."""
    return terms.body_bytes(values) if side is Side.BODIES else terms.seeds_bytes(values)


def encrypted_groups(
    context: RoundContext, terms: Terms, cohort: UploadCohort, node: str
) -> tuple[EncryptedGroup, ...]:
    """The groups of a node's upload, in order."""
    groups = cohort.groups_of(node)
    values = [group_values(context, group) for group in groups]
    start = 0
    parts: list[dict[Side, Part]] = [{} for _ in groups]
    for offset, side in enumerate((Side.BODIES, Side.SEEDS)):
        for index, count in enumerate(values):
            size = half_bytes(terms, side, count)
            parts[index][side] = Part(start=start, size=size, digest=DIGESTS.fixed + 2 * index + offset)
            start += size
    return tuple(
        EncryptedGroup(group=group, values=count, halves=halves)
        for group, count, halves in zip(groups, values, parts, strict=True)
    )


def key_id(commit: UploadCommit) -> bytes:
    """Of the key that an upload is encrypted under."""
    return commit.digests[0]


def wanted(
    cohort: UploadCohort, rows: Mapping[str, Mapping[str, int]], handled: Sequence[str]
) -> tuple[tuple[Group, tuple[str, ...]], ...]:
    """Of whom, and of which groups, a half is needed for the combinations of the `handled` recipients."""
    needed: list[tuple[Group, tuple[str, ...]]] = []
    for group in cohort.groups:
        served = [rows[recipient] for recipient in handled if serves(group, rows[recipient])]
        names = {name for row in served for name in row}
        if names:
            needed.append((group, tuple(sorted(names))))
    return tuple(needed)


def serves(group: Group, row: Mapping[str, int]) -> bool:
    """Whether everybody in a row holds a group: then its combination is opened."""
    return row.keys() <= set(group.holders)
