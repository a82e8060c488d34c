"""`none`: updates in the clear. For tests and as the oracle of the other protections, never for a deployment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from secure_fl.blocks import Layout
from secure_fl.errors import ProtectionError
from secure_fl.identity.member import Member
from secure_fl.protect.base import (
    Ask,
    BlockSum,
    Bulk,
    CombinationsSent,
    Contribution,
    CoordinatorHalf,
    Integers,
    Message,
    NodeHalf,
    Opened,
    OpenedSums,
    RequestKind,
    RoundContext,
    Totals,
)
from secure_fl.protect.cohort import holders, require_cohort
from secure_fl.protect.combining import require_row, row_total, servable
from secure_fl.protect.fixed_point import FixedPoint
from secure_fl.protect.guard import releasable
from secure_fl.protect.memory import Memory, OpenedRow
from secure_fl.protect.sketch import LIMIT, SIZE, in_units, squared_distance
from secure_fl.protect.weights import WEIGHT_UNITS, weight_floor
from secure_fl.randomness import Randomness
from secure_fl.rpc.protect_none_pb2 import PlainCombination, PlainDistances, PlainRow, PlainUpload
from secure_fl.wire import parse

UPLOAD = "upload"
ROW = "row"
OPEN = "open"

_PIECE = 1 << 18  # elements added at a time, so that memory stays at one sum plus a constant


class UnsafeNone:
    """Named unsafe: the coordinator reads every update."""

    name: ClassVar[str] = "none"
    serves: ClassVar[frozenset[RequestKind]] = frozenset(RequestKind)
    coordinator_sees_updates: ClassVar[bool] = True
    payload_version: ClassVar[int] = 1
    bits: ClassVar[int] = 16
    carrier: ClassVar[str] = UPLOAD

    def phases(self, kind: RequestKind) -> tuple[str, ...]:
        """One upload; for a combine each recipient then weighs its peers and gets its result."""
        return (UPLOAD,) if kind is RequestKind.SUM else (UPLOAD, ROW, OPEN)

    def node(
        self,
        context: RoundContext,
        me: Member,  # noqa: ARG002
        contribution: Contribution,
        randomness: Randomness,  # noqa: ARG002
        memory: Memory | None = None,  # noqa: ARG002
    ) -> NodeHalf:
        """The node half."""
        return _PlainNode(context, contribution)

    def coordinator(self, context: RoundContext, earlier: Sequence[OpenedRow] = ()) -> CoordinatorHalf:
        """The coordinator half."""
        return _PlainCombine(context, earlier) if context.kind is RequestKind.COMBINE else _PlainSum(context)

    def largest_upload(self, context: RoundContext) -> int:
        """Every block, at the width of the wire."""
        return context.layout.size * _wire_dtype(context.bits).itemsize

    def quorum(self, nodes: int, *, colluders: int, min_cohort: int) -> int:  # noqa: ARG002
        """As many as an opened value needs."""
        return min_cohort

    def require_room(self, kind: RequestKind, *, nodes: int, bits: int) -> None:  # noqa: ARG002
        """Sums stay within 32 bits, so that whoever takes its place has room, too."""
        FixedPoint(bits=bits, clip=1.0).require_room(contributors=nodes, ring_bits=32)

    def noise(self, context: RoundContext) -> int:  # noqa: ARG002
        """None: sums are exact."""
        return 0

    def explain(self, kind: RequestKind) -> tuple[str, ...]:
        """Plain words for a plain protection."""
        return (
            "UNSAFE: the coordinator sees every site's update in the clear. Use it for tests only.",
            "The coordinator also sees each site's quantised weight and which blocks it holds.",
            "Other sites see only the shared model"
            + (" and their own combination." if kind is RequestKind.COMBINE else "."),
        )


def _wire_dtype(bits: int) -> np.dtype[np.signedinteger]:
    return np.dtype("<i2") if bits <= 16 else np.dtype("<i4")


def _named(layout: Layout, blocks: Sequence[str]) -> Layout:
    """The part of the layout that a message names: each block once, in order, or `ProtectionError`."""
    wanted = set(blocks)
    part = Layout(tuple(shape for shape in layout if shape.name in wanted))
    if part.names != tuple(blocks):
        raise ProtectionError("blocks are unknown, repeated or out of order")
    return part


class _PlainNode:
    def __init__(self, context: RoundContext, contribution: Contribution) -> None:
        self._context = context
        self._contribution = contribution
        self._opened: dict[str, BlockSum] = {}

    def answer(self, phase: str, message: Message) -> Message:
        if phase == UPLOAD:
            return self._upload()
        if phase == ROW and self._context.kind is RequestKind.COMBINE:
            squared = parse(PlainDistances, message.body).squared
            row = self._contribution.attend({peer: in_units(steps) for peer, steps in squared.items()})
            return Message(body=PlainRow(row=row).SerializeToString(deterministic=True))
        if phase == OPEN and self._context.kind is RequestKind.COMBINE:
            self._open(message)
            return Message()
        raise ProtectionError(f"none has no phase {phase!r}")

    def combination(self) -> Mapping[str, BlockSum]:
        return self._opened

    def _upload(self) -> Message:
        mine = self._contribution
        names = [name for name in self._context.layout.names if name in mine.blocks]
        header = PlainUpload(blocks=names, weight=mine.weight)
        if mine.sketch is not None:
            header.sketch = mine.sketch.astype("<i4").tobytes()
        dtype = _wire_dtype(self._context.bits)
        return Message(
            body=header.SerializeToString(deterministic=True),
            bulk=b"".join(mine.blocks[name].astype(dtype).tobytes() for name in names),
        )

    def _open(self, message: Message) -> None:
        header = parse(PlainCombination, message.body)
        if not header.blocks:
            return
        layout = _named(self._context.layout, header.blocks)
        if len(message.bulk) != 8 * layout.size:
            raise ProtectionError("a combination of the wrong length arrived")
        flat = np.frombuffer(message.bulk, "<i8")
        ends = np.cumsum([shape.size for shape in layout])
        for shape, end in zip(layout, ends, strict=True):
            self._opened[shape.name] = BlockSum(
                total=flat[end - shape.size : end], weight=header.weight, contributors=header.contributors
            )


class _Uploads:
    """Checks shared by both requests: who said what, and that the bulk has the length it must have."""

    missing = 0

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._dtype = _wire_dtype(context.bits)
        self._declared: dict[str, tuple[str, ...]] = {}

    def begin(self) -> Ask:
        return Ask(phase=UPLOAD, messages={node: Message() for node in self._context.invited})

    def _check(self, node: str, message: Message, bulk: Bulk) -> tuple[PlainUpload, Layout]:
        if node not in self._context.invited or node in self._declared:
            raise ProtectionError(f"{node} is not expected to answer")
        header = parse(PlainUpload, message.body)
        layout = _named(self._context.layout, header.blocks)
        if bulk.size != layout.size * self._dtype.itemsize:
            raise ProtectionError("the upload's length does not fit its blocks")
        # A weight below the floor would let another node stand out in the sum.
        if not weight_floor(self._context.min_cohort, self._context.colluders) <= header.weight <= WEIGHT_UNITS:
            raise ProtectionError("the weight is out of range")
        return header, layout

    def _pieces(self, layout: Layout, bulk: Bulk) -> Iterator[tuple[str, int, Integers]]:
        """The upload in order, a piece at a time: block, offset in the block, values."""
        limit = 2 ** (self._context.bits - 1) - 1
        position = 0
        for shape in layout:
            for start in range(0, shape.size, _PIECE):
                count = min(_PIECE, shape.size - start)
                raw = bulk.read(position, count * self._dtype.itemsize)
                if len(raw) != count * self._dtype.itemsize:
                    raise ProtectionError("the upload breaks off")
                piece = np.frombuffer(raw, self._dtype).astype(np.int32)
                # Not np.abs: the most negative integer is its own absolute value, and would pass.
                if piece.min(initial=0) < -limit or piece.max(initial=0) > limit:
                    raise ProtectionError("a value is outside the study's fixed-point range")
                position += len(raw)
                yield shape.name, start, piece


class _PlainSum(_Uploads):
    """Adds each upload to running totals as it arrives: memory is one model, however many nodes."""

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self._totals: dict[str, Totals] = {shape.name: np.zeros(shape.size, np.int64) for shape in context.layout}
        self._weights: dict[str, int] = dict.fromkeys(self._totals, 0)

    def accept(self, node: str, message: Message, bulk: Bulk) -> None:
        header, layout = self._check(node, message, bulk)
        for _ in self._pieces(layout, bulk):  # Everything is checked before anything is added.
            pass
        for block, start, piece in self._pieces(layout, bulk):
            self._totals[block][start : start + piece.size] += piece
        for block in layout.names:
            self._weights[block] += header.weight
        self._declared[node] = layout.names

    def close(self) -> Opened:
        context = self._context
        require_cohort(self._declared, context.min_cohort)
        held = holders(self._declared)
        passed = releasable(
            list(held.values()), nodes=context.invited, colluders=context.colluders, minimum=context.min_cohort
        )
        opened = {
            block: BlockSum(total=self._totals[block], weight=self._weights[block], contributors=len(nodes))
            for (block, nodes), passes in zip(held.items(), passed, strict=True)
            if passes
        }
        return OpenedSums(blocks=opened, cohort=tuple(sorted(self._declared)))


class _PlainCombine(_Uploads):
    """Keeps uploads where they rest and forms Σ_j w_ij·x_j for one recipient at a time."""

    def __init__(self, context: RoundContext, earlier: Sequence[OpenedRow]) -> None:
        super().__init__(context)
        self._earlier = earlier
        self._phase = UPLOAD
        self._uploads: dict[str, tuple[PlainUpload, Bulk]] = {}
        self._sketches: dict[str, Integers] = {}
        self._rows: dict[str, dict[str, int]] = {}
        self._served: set[str] = set()

    def accept(self, node: str, message: Message, bulk: Bulk) -> None:
        if self._phase == UPLOAD:
            self._accept_upload(node, message, bulk)
        elif self._phase == ROW and node in self._uploads and node not in self._rows:
            row = dict(parse(PlainRow, message.body).row)
            require_row(row, uploaded=self._uploads, total=row_total(len(self._context.invited)))
            self._rows[node] = row
        elif self._phase == OPEN and node in self._uploads and node not in self._served:
            self._served.add(node)
        else:
            raise ProtectionError(f"{node} is not expected to answer")

    def close(self) -> Ask | Opened:
        if self._phase == UPLOAD:
            require_cohort(self._declared, self._context.min_cohort)
            self._phase = ROW
            return Ask(phase=ROW, messages={node: self._distances(node) for node in sorted(self._uploads)})
        if self._phase == ROW:
            large = {node: row for node, row in self._rows.items() if len(row) >= self._context.min_cohort}
            rows = servable(
                large, nodes=sorted(self._uploads), colluders=self._context.colluders, earlier=self._earlier
            )
            self._phase = OPEN
            # Whoever gets an empty message keeps its own model.
            messages = {node: self._combine(rows.get(node, {})) for node in sorted(self._rows)}
            self._recipients = rows.keys()
            return Ask(phase=OPEN, messages=messages, opens=rows)
        recipients = tuple(sorted(self._served & self._recipients))
        return CombinationsSent(recipients=recipients, cohort=tuple(sorted(self._declared)))

    def _accept_upload(self, node: str, message: Message, bulk: Bulk) -> None:
        header, layout = self._check(node, message, bulk)
        if len(header.sketch) != (4 * SIZE if self._context.attention else 0):
            raise ProtectionError("the sketch has another length than the round's")
        sketch = np.frombuffer(header.sketch, "<i4")
        if sketch.min(initial=0) < -LIMIT or sketch.max(initial=0) > LIMIT:
            raise ProtectionError("the sketch is out of range")
        for _ in self._pieces(layout, bulk):
            pass
        self._declared[node] = layout.names
        self._uploads[node] = (header, bulk)
        self._sketches[node] = sketch

    def _distances(self, node: str) -> Message:
        mine = self._sketches[node]
        squared = {peer: squared_distance(mine, theirs) for peer, theirs in self._sketches.items()}
        return Message(body=PlainDistances(squared=squared).SerializeToString(deterministic=True))

    def _combine(self, row: Mapping[str, int]) -> Message:
        if not row:
            return Message(body=PlainCombination().SerializeToString())
        blocks = [block for block, nodes in holders(self._declared).items() if all(peer in nodes for peer in row)]
        layout = self._context.layout.select(blocks)
        totals = {shape.name: np.zeros(shape.size, np.int64) for shape in layout}
        for peer, weight in row.items():
            header, bulk = self._uploads[peer]
            for block, start, piece in self._pieces(self._context.layout.select(header.blocks), bulk):
                if block in totals:
                    totals[block][start : start + piece.size] += np.int64(weight) * piece
        answer = PlainCombination(blocks=layout.names, weight=WEIGHT_UNITS * sum(row.values()), contributors=len(row))
        return Message(
            body=answer.SerializeToString(deterministic=True),
            bulk=b"".join(totals[name].astype("<i8").tobytes() for name in layout.names),
        )
