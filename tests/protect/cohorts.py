"""Rounds for tests of protections: contexts, contributions, an exact oracle, and a way to play a round."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

from coordinator.machine import RoundMachine
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import BlockShape, Layout, TensorShape
from secure_fl.encoding.weights import weight_floor
from secure_fl.identity.member import Member
from secure_fl.protect.combining import CombineContribution, CombineHost, node_half
from secure_fl.protect.contract import (
    Ask,
    Contribution,
    Message,
    NodeHalf,
    Opened,
    OpenedSums,
    Protection,
    RoundContext,
)
from secure_fl.protect.none import UnsafeNone
from secure_fl.protect.release.combinations import row_total, whole_weights
from secure_fl.protect.release.comparisons import Comparisons
from secure_fl.protect.release.guard import releasable
from secure_fl.protect.release.history import ProcessMemory
from secure_fl.randomness import Randomness, SystemRandomness, UnsafeSeededRandomness
from tests.protect.members import member

ROW_TOTAL = row_total(8)  # the same for any round with fewer than 17 nodes

NOBODY = UnsafeNone()  # whose name is in a context where it does not matter

Contributions: TypeAlias = Mapping[str, Contribution]
# Per block: the totals, the weight, the number of contributors.
PlainSums: TypeAlias = dict[str, tuple[list[int], int, int]]


@dataclass(frozen=True, slots=True)
class InMemory:
    """Bulk that rests in memory."""

    content: bytes | memoryview

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.content)

    @property
    def sha256(self) -> bytes:
        """Its digest."""
        return hashlib.sha256(self.content).digest()

    def read(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset`."""
        return bytes(self.content[offset : offset + count])


def layout(**sizes: int) -> Layout:
    """Blocks of one tensor each."""
    return Layout(
        tuple(BlockShape(name=n, tensors=(TensorShape(name="w", shape=(size,)),)) for n, size in sizes.items())
    )


def context(
    *nodes: str,
    blocks: Layout | None = None,
    kind: RequestKind = RequestKind.SUM,
    bits: int = 16,
    min_cohort: int = 3,
    compares: bool = False,
    whole: bool = False,
    partial: bool = True,
    attempt: int = 1,
    protection: Protection = NOBODY,
) -> RoundContext:
    """The first attempt at a round among `nodes`; with `whole`, which are a circle."""
    return RoundContext(
        study_id="5a" * 32,
        round=1,
        attempt=attempt,
        base_model=bytes(32),
        invited=nodes,
        roster=_roster(nodes),
        layout=layout(body=3, head=2) if blocks is None else blocks,
        kind=kind,
        bits=bits,
        colluders=1,
        min_cohort=min_cohort,
        compares=compares,
        whole=whole,
        partial=partial,
        protection=protection.name,
        payload_version=protection.payload_version,
        settings=protection.canonical_settings,
    )


def _roster(nodes: tuple[str, ...]) -> dict[str, str]:
    """Real certificates, except for a crowd that only adds."""
    if len(nodes) > 64:
        return dict.fromkeys(nodes, "0" * 64)
    return {node: member(node).certificate.fingerprint for node in nodes}


def contribution(weight: int = 64, row: Mapping[str, int] | None = None, **blocks: list[int]) -> CombineContribution:
    """One node's integers, block by block; of a row, the part over those who uploaded, in whole numbers."""
    values = {name: np.array(value, np.int32) for name, value in blocks.items()}
    wanted = row or {}
    return CombineContribution(
        blocks=values,
        weight=weight,
        attend=lambda there: whole_weights({peer: wanted[peer] for peer in there if peer in wanted}, ROW_TOTAL),
    )


def whole_sums(contributions: Contributions) -> PlainSums:
    """What a circle must open, in Python's integers: the blocks that every member holds."""
    opened: PlainSums = {}
    for name in set.intersection(*(set(mine.blocks) for mine in contributions.values())):
        columns = zip(*(mine.blocks[name].tolist() for mine in contributions.values()), strict=True)
        weight = sum(mine.weight for mine in contributions.values())
        opened[name] = ([sum(column) for column in columns], weight, len(contributions))
    return opened


@st.composite
def cases(draw: st.DrawFn, kind: RequestKind = RequestKind.SUM) -> tuple[RoundContext, Contributions]:
    """A round in which every node holds its own choice of blocks."""
    nodes = [f"n{i}" for i in range(draw(st.integers(3, 7)))]
    names = draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=3))
    shape = layout(**{name: draw(st.integers(0, 5)) for name in names})
    bits = draw(st.integers(4, 24))
    limit = 2 ** (bits - 1) - 1
    value = st.integers(-limit, limit) | st.sampled_from([-limit, limit])
    everybody: dict[str, Contribution] = {}
    minimum = draw(st.integers(3, len(nodes)))
    floor = weight_floor(minimum, 1)
    for node in nodes:
        held = draw(st.just(set(names)) | st.sets(st.sampled_from(names))) if names else set()
        blocks = {n: draw(st.lists(value, min_size=shape[n].size, max_size=shape[n].size)) for n in sorted(held)}
        if kind is RequestKind.SUM:
            everybody[node] = contribution(draw(st.integers(floor, 64)), {}, **blocks)
        else:
            peers = draw(st.just(nodes) | st.sets(st.sampled_from(nodes)).map(sorted))
            row = {peer: draw(st.integers(1, 16)) for peer in peers}
            everybody[node] = contribution(64, row, **blocks)
    return context(*nodes, blocks=shape, kind=kind, bits=bits, min_cohort=minimum), everybody


def exact_sums(context: RoundContext, contributions: Contributions) -> PlainSums:
    """What a sum must open, in Python's integers and without any of the product's code."""
    opened: PlainSums = {}
    for name in context.layout.names:
        held = [c for c in contributions.values() if name in c.blocks]
        if len(held) >= context.min_cohort:
            columns = zip(*(c.blocks[name].tolist() for c in held), strict=True)
            opened[name] = ([sum(column) for column in columns], sum(c.weight for c in held), len(held))
    return opened


def guarded_sums(about: RoundContext, contributions: Contributions) -> PlainSums:
    """Those of the exact sums whose cohorts together expose nobody; the guard has tests of its own."""
    names = sorted(contributions)
    blocks = about.layout.names
    cohorts = [tuple(name for name in names if block in contributions[name].blocks) for block in blocks]
    passes = releasable(cohorts, nodes=about.invited, colluders=about.colluders, minimum=about.min_cohort)
    sums = exact_sums(about, contributions)
    return {block: sums[block] for block, passed in zip(blocks, passes, strict=True) if passed}


def plain(opened: Ask | Opened | None) -> tuple[PlainSums, tuple[str, ...]]:
    """Opened sums as values that compare with `==`, and the cohort."""
    assert isinstance(opened, OpenedSums)
    return (
        {name: (b.total.tolist(), b.weight, b.contributors) for name, b in opened.blocks.items()},
        opened.cohort,
    )


def host(
    node: str | Member,
    randomness: Randomness | None = None,
    memory: ProcessMemory | None = None,
    comparisons: Comparisons | None = None,
) -> CombineHost:
    """What a node offers to a protection: with fresh randomness and nothing in its memory, unless given."""
    kept = memory or ProcessMemory()
    who = member(node) if isinstance(node, str) else node
    return CombineHost(
        me=who,
        randomness=randomness or SystemRandomness(),
        memory=kept,
        history=kept,
        comparisons=comparisons or kept,
    )


def halves(protection: Protection, context: RoundContext, contributions: Contributions) -> dict[str, NodeHalf]:
    """A node half for each contribution, with repeatable randomness."""
    return {
        node: node_half(protection, context, mine, host(node, UnsafeSeededRandomness(7, node)))
        for node, mine in contributions.items()
    }


def play(
    protection: Protection,
    context: RoundContext,
    contributions: Contributions,
    gone: Mapping[str, str] | None = None,
) -> Opened | None:
    """Drive a round as the coordinator does; `gone` says who vanishes instead of answering which phase."""
    machine = RoundMachine(protection, context)
    nodes = halves(protection, context, contributions)
    machine.begin()
    opened: Opened | None = None
    for phase in protection.phases(context.kind):
        assert machine.phase == phase
        for node in sorted(machine.waiting):
            if (gone or {}).get(node) == phase:
                machine.leave(node, "NotConnected")
                continue
            answer = nodes[node].answer(phase, machine.asked[node])
            # As on the wire: bulk comes beside the message, and rests on disk.
            machine.accept(node, phase, replace(answer, bulk=b""), InMemory(answer.bulk))
        opened = machine.close()
    return opened


def upload(body: bytes, bulk: bytes = b"") -> tuple[Message, InMemory]:
    """An answer as the coordinator half takes it."""
    return Message(body=body), InMemory(bulk)
