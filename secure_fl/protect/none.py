"""`none`: updates in the clear. For tests and as the oracle of the other protections, never for a deployment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Layout
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum, Integers, Totals
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.errors import ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.bodies import as_bulk, say
from secure_fl.protect.cohort.minima import holders, require_cohort, require_weight, require_whole
from secure_fl.protect.combining import (
    CombinationsSent,
    CombineContribution,
    CombineHost,
    CombiningNodeHalf,
    CombiningProtection,
    OpeningAsk,
)
from secure_fl.protect.contract import (
    Ask,
    Bulk,
    Contribution,
    CoordinatorHalf,
    Host,
    Message,
    NodeHalf,
    Opened,
    OpenedSums,
    RoundContext,
)
from secure_fl.protect.release.combinations import require_row, row_total, servable
from secure_fl.protect.release.guard import releasable
from secure_fl.protect.release.history import OpenedRow
from secure_fl.protect.release.sketch import LIMIT, SIZE, in_units, squared_distance
from secure_fl.rpc.protect_none_pb2 import PlainCombination, PlainDistances, PlainRow, PlainUpload

UPLOAD, ROW, OPEN = "upload", "row", "open"

_PIECE = 1 << 18  # elements added at a time, so that memory stays at one sum plus a constant


class UnsafeNone(CombiningProtection):
    """Named unsafe: the coordinator reads every update."""

    name: ClassVar[str] = "none"
    payload_version: ClassVar[int] = 1
    coordinator_sees_updates: ClassVar[bool] = True
    # For a combine each recipient weighs its peers after the upload, and gets its result.
    order: ClassVar[Mapping[RequestKind, tuple[str, ...]]] = {
        RequestKind.SUM: (UPLOAD,),
        RequestKind.COMBINE: (UPLOAD, ROW, OPEN),
    }
    carrier: ClassVar[str] = UPLOAD

    def node(self, context: RoundContext, contribution: Contribution, _host: Host) -> NodeHalf:
        """The node half of a sum."""
        return _PlainNode(context, contribution)

    def coordinator(self, context: RoundContext) -> CoordinatorHalf:
        """The coordinator half of a sum."""
        return _PlainSum(context)

    def combining_node(
        self, context: RoundContext, contribution: CombineContribution, host: CombineHost
    ) -> CombiningNodeHalf:
        """The node half of a combine."""
        return _PlainRecipient(context, contribution, host)

    def combining_coordinator(self, context: RoundContext, earlier: Sequence[OpenedRow]) -> CoordinatorHalf:
        """The coordinator half of a combine."""
        return _PlainCombine(context, earlier)

    def largest_upload(self, context: RoundContext) -> int:
        """Every block, at the width of the wire."""
        return context.layout.size * _wire_dtype(context.bits).itemsize

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
    """Uploads, and that is all there is to a sum."""

    def __init__(self, context: RoundContext, contribution: Contribution) -> None:
        self._context = context
        self._blocks = dict(contribution.blocks)  # each goes as it is written: its memory is needed
        self._weight = contribution.weight

    def answer(self, phase: str, _message: Message) -> Message:
        if phase != UPLOAD:
            raise ProtectionError(f"there is no phase {phase!r} in this round")
        return self._upload(b"")

    def _upload(self, sketch: bytes) -> Message:
        blocks = self._blocks
        held = Layout(tuple(shape for shape in self._context.layout if shape.name in blocks))
        dtype = _wire_dtype(self._context.bits)
        flat, start = np.empty(held.size, dtype), 0
        for shape in held:
            flat[start : start + shape.size] = blocks.pop(shape.name)
            start += shape.size
        return say(PlainUpload(blocks=held.names, weight=self._weight, sketch=sketch), bulk=as_bulk(flat))


class _PlainRecipient(_PlainNode):
    """Uploads, weighs its peers, and takes what they add up to."""

    def __init__(self, context: RoundContext, contribution: CombineContribution, host: CombineHost) -> None:
        super().__init__(context, contribution)
        self._me = host.me.name
        self._comparisons = host.comparisons
        self._attend = contribution.attend
        self._sketch = b"" if contribution.sketch is None else contribution.sketch.astype("<i4").tobytes()
        self._opened: dict[str, BlockSum] = {}

    def answer(self, phase: str, message: Message) -> Message:
        if phase == UPLOAD:
            if self._sketch:
                self._comparisons.count([name for name in self._context.invited if name != self._me])
            return self._upload(self._sketch)
        if phase == ROW:
            squared = parse(PlainDistances, message.body).squared
            return say(PlainRow(row=self._attend({peer: in_units(steps) for peer, steps in squared.items()})))
        if phase == OPEN:
            self._read_combination(message)
            return Message()
        raise ProtectionError(f"there is no phase {phase!r} in this round")

    def combination(self) -> Mapping[str, BlockSum]:
        return self._opened

    def _read_combination(self, message: Message) -> None:
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
        if not self._context.partial and layout.names != self._context.layout.names:
            raise ProtectionError(f"{node} leaves out blocks that every site of this study shares")
        if bulk.size != layout.size * self._dtype.itemsize:
            raise ProtectionError("the upload's length does not fit its blocks")
        require_weight(self._context, header.weight)
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
        FixedPoint(bits=context.bits, clip=1.0).require_room(contributors=len(context.invited), ring_bits=32)
        self._totals: dict[str, Totals] = {shape.name: np.zeros(shape.size, np.int32) for shape in context.layout}
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

    @property
    def missing(self) -> int:
        return len(self._context.invited) - len(self._declared) if self._context.whole else 0

    def close(self) -> Opened:
        context = self._context
        require_cohort(self._declared, context.min_cohort)
        require_whole(context, self._declared)
        declared = holders(self._declared)
        # In the layout's order, as every protection does: where either of two blocks may be opened, it is the first.
        held = {block: declared[block] for block in context.layout.names if block in declared}
        passed = (
            [len(nodes) == len(context.invited) for nodes in held.values()]
            if context.whole
            else releasable(
                list(held.values()), nodes=context.invited, colluders=context.colluders, minimum=context.min_cohort
            )
        )
        opened = {
            block: BlockSum(total=self._totals[block], weight=self._weights[block], contributors=len(nodes))
            for (block, nodes), passes in zip(held.items(), passed, strict=True)
            if passes
        }
        return OpenedSums(blocks=opened, cohort=tuple(sorted(self._declared)))


class _PlainCombine(_Uploads):
    """Keeps uploads where they rest and forms Σ_j w_ij·x_j for one recipient at a time."""

    missing = 0

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
            large = {node: row for node, row in sorted(self._rows.items()) if len(row) >= self._context.min_cohort}
            rows = servable(
                large, nodes=sorted(self._uploads), colluders=self._context.colluders, earlier=self._earlier
            )
            self._phase = OPEN
            # Whoever gets an empty message keeps its own model.
            messages = {node: self._combine(rows.get(node, {})) for node in sorted(self._rows)}
            self._recipients = rows.keys()
            return OpeningAsk(phase=OPEN, messages=messages, opens=rows)
        recipients = tuple(sorted(self._served & self._recipients))
        return CombinationsSent(recipients=recipients, cohort=tuple(sorted(self._declared)))

    def _accept_upload(self, node: str, message: Message, bulk: Bulk) -> None:
        header, layout = self._check(node, message, bulk)
        if len(header.sketch) != (4 * SIZE if self._context.compares else 0):
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
        return say(PlainDistances(squared=squared))

    def _combine(self, row: Mapping[str, int]) -> Message:
        if not row:
            return say(PlainCombination())
        blocks = [block for block, nodes in holders(self._declared).items() if all(peer in nodes for peer in row)]
        layout = self._context.layout.select(blocks)
        totals = {shape.name: np.zeros(shape.size, np.int64) for shape in layout}
        for peer, weight in row.items():
            header, bulk = self._uploads[peer]
            for block, start, piece in self._pieces(self._context.layout.select(header.blocks), bulk):
                if block in totals:
                    totals[block][start : start + piece.size] += np.int64(weight) * piece
        answer = PlainCombination(blocks=layout.names, weight=WEIGHT_UNITS * sum(row.values()), contributors=len(row))
        return say(answer, bulk=b"".join(totals[name].astype("<i8").tobytes() for name in layout.names))
