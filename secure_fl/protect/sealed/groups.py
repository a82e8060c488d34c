"""Groups of blocks in a sealed round. Both halves derive the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from secure_fl.aggregation import RequestKind
from secure_fl.identity.signing import transcript
from secure_fl.protect.cohort.signed import Group
from secure_fl.protect.contract import RoundContext
from secure_fl.protect.uploads.manifest import UploadCohort


@dataclass(frozen=True, slots=True)
class SealedGroup:
    """A group of blocks within one node's upload. It is the release group: one secret, opened under one matrix."""

    group: Group
    start: int  # of its elements
    size: int
    seed: bytes  # of the public elements

    @staticmethod
    def seed_of(cohort: UploadCohort, group: Group) -> bytes:
        """`a` is a hash of the epoch; a node's secrets differ from group to group, so it could be the same for all."""
        return hashlib.sha256(transcript("sealed elements", cohort.rho, group.label)).digest()


def group_values(context: RoundContext, group: Group) -> int:
    """Elements of a group: its blocks and, in a sum, one with the weight."""
    weight = 1 if context.kind is RequestKind.SUM else 0
    return sum(context.layout[block].size for block in group.blocks) + weight


def sealed_groups(context: RoundContext, cohort: UploadCohort, node: str) -> tuple[SealedGroup, ...]:
    """The groups of a node's upload, in order."""
    groups, start = [], 0
    for group in cohort.groups_of(node):
        size = group_values(context, group)
        groups.append(SealedGroup(group, start, size, SealedGroup.seed_of(cohort, group)))
        start += size
    return tuple(groups)


def served_groups(cohort: UploadCohort, row: Mapping[str, int]) -> tuple[Group, ...]:
    """The groups that a row combines: those that everybody in it holds."""
    return tuple(group for group in cohort.groups if row.keys() <= set(group.holders))
