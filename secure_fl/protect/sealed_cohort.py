"""Groups of blocks in a sealed round, and how messages too long for a body travel. Both halves derive the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import Message as Protobuf

from secure_fl.identity.signing import transcript
from secure_fl.limits import PAYLOAD_BYTES
from secure_fl.protect.base import Message, RequestKind, RoundContext
from secure_fl.protect.signed_cohort import Group, SignedCohort


@dataclass(frozen=True, slots=True)
class SealedGroup:
    """A group of blocks within one node's upload. It is the release group: one secret, opened under one matrix."""

    group: Group
    start: int  # of its elements
    size: int
    seed: bytes  # of the public elements

    @staticmethod
    def seed_of(cohort: SignedCohort, group: Group) -> bytes:
        """`a` is a hash of the epoch; a node's secrets differ from group to group, so it could be the same for all."""
        return hashlib.sha256(transcript("sealed elements", cohort.rho, group.label)).digest()


def group_values(context: RoundContext, group: Group) -> int:
    """Elements of a group: its blocks and, in a sum, one with the weight."""
    weight = 1 if context.kind is RequestKind.SUM else 0
    return sum(context.layout[block].size for block in group.blocks) + weight


def sealed_groups(context: RoundContext, cohort: SignedCohort, node: str) -> tuple[SealedGroup, ...]:
    """The groups of a node's upload, in order."""
    groups, start = [], 0
    for group in cohort.groups_of(node):
        size = group_values(context, group)
        groups.append(SealedGroup(group, start, size, SealedGroup.seed_of(cohort, group)))
        start += size
    return tuple(groups)


def served_groups(cohort: SignedCohort, row: Mapping[str, int]) -> tuple[Group, ...]:
    """The groups that a row combines: those that everybody in it holds."""
    return tuple(group for group in cohort.groups if row.keys() <= set(group.holders))


def say(message: Protobuf) -> Message:
    """As a body."""
    return Message(body=message.SerializeToString(deterministic=True))


def say_bulky(message: Protobuf) -> Message:
    """As a body or, where that would be too long, as bulk."""
    raw = message.SerializeToString(deterministic=True)
    return Message(body=raw) if len(raw) <= PAYLOAD_BYTES // 2 else Message(bulk=raw)


def read_bulky(message: Message) -> bytes:
    """The inverse."""
    return message.body or message.bulk
