"""A protection with three phases, to test what drives protections. It is a double of the interface, not secure.

    advertise   each node says which blocks it holds, its weight, and a commitment to one fresh key per block
    upload      it is told who advertised what (as bulk); it sends its values plus pads, modulo 2³²
    reveal      it is told who uploaded; it sends the keys of those of its blocks that enough uploaders hold

The coordinator expands each revealed key into the pad and subtracts it: so it sees every node's update, as under
`none`, only later. What it shares with a secure protection is the shape: several phases, messages and bulk in both
directions, secrets that exist only in the node's memory, a node half that checks what it is told.

Who leaves when costs nobody but itself: an upload whose keys are not revealed stays where it rests, and is not
part of the sum. The result is therefore that of `none` over the nodes that answered every phase, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from secure_fl.aggregation import RequestKind
from secure_fl.encoding.integers import BlockSum, Totals
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.errors import ProtectionError
from secure_fl.protect.cohort.minima import holders, require_cohort
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
    Protection,
    RoundContext,
)
from secure_fl.randomness import KeyStream

ADVERTISE, UPLOAD, REVEAL = PHASES = ("advertise", "upload", "reveal")

_WORD = np.dtype("<u4")


class OneTimePad(Protection):
    """The protection `double`."""

    name: ClassVar[str] = "double"
    payload_version: ClassVar[int] = 1
    coordinator_sees_updates: ClassVar[bool] = True
    order: ClassVar[Mapping[RequestKind, tuple[str, ...]]] = {RequestKind.SUM: PHASES}
    carrier: ClassVar[str] = ADVERTISE  # it says its weight there

    def node(self, context: RoundContext, contribution: Contribution, host: Host) -> NodeHalf:
        """The node half; it draws its keys here, in the order of the layout."""
        return _PadNode(context, contribution, host)

    def coordinator(self, context: RoundContext) -> CoordinatorHalf:
        """The coordinator half."""
        return _PadCoordinator(context)

    def largest_upload(self, context: RoundContext) -> int:
        """One word per value."""
        return context.layout.size * _WORD.itemsize

    def explain(self, kind: RequestKind) -> tuple[str, ...]:
        """For `study show`."""
        return ("UNSAFE: a test double. The coordinator sees every site's update once its keys are revealed.",)


class _PadNode:
    def __init__(self, context: RoundContext, contribution: Contribution, host: Host) -> None:
        self._context = context
        self._me = host.me.name
        self._mine = contribution
        names = [name for name in context.layout.names if name in contribution.blocks]
        self._keys = {name: host.randomness.bytes(32) for name in names}
        self._declared: dict[str, list[str]] = {}
        self._phases = list(PHASES)

    def answer(self, phase: str, message: Message) -> Message:
        if not self._phases or phase != self._phases[0]:
            raise ProtectionError(f"phase {phase!r} is not the next one")
        answers = {ADVERTISE: self._advertise, UPLOAD: self._upload, REVEAL: self._reveal}
        answer = answers[phase](message)
        self._phases.pop(0)
        return answer

    def _advertise(self, _message: Message) -> Message:
        commitments = {name: _commitment(self._context, self._me, name, key) for name, key in self._keys.items()}
        return Message(body=_write({"blocks": commitments, "weight": self._mine.weight}))

    def _upload(self, message: Message) -> Message:
        declared = _read(message.bulk)
        self._require_peers(declared, among=self._context.invited)
        self._declared = declared
        words = (
            self._mine.blocks[name].astype(_WORD) + _pad(key, self._mine.blocks[name].size)
            for name, key in self._keys.items()
        )
        return Message(bulk=b"".join(word.tobytes() for word in words))

    def _reveal(self, message: Message) -> Message:
        survivors = _read(message.body).get("survivors")
        if not isinstance(survivors, list):
            raise ProtectionError("nobody is said to have uploaded")
        self._require_peers(survivors, among=self._declared)
        open_now = _openable(self._context, {node: self._declared[node] for node in survivors})
        return Message(body=_write({"keys": {name: key.hex() for name, key in self._keys.items() if name in open_now}}))

    def _require_peers(self, nodes: Iterable[str], *, among: Iterable[str]) -> None:
        """The coordinator's word is checked: enough nodes, all of them known, this one among them."""
        if not set(nodes) <= set(among) or self._me not in nodes:
            raise ProtectionError("the cohort has strangers in it, or lacks this node")
        require_cohort(nodes, self._context.min_cohort)


class _PadCoordinator:
    """Keeps uploads where they rest until their keys arrive, then adds one at a time."""

    missing = 0

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._phase = ADVERTISE
        self._commitments: dict[str, dict[str, str]] = {}
        self._weights: dict[str, int] = {}
        self._uploads: dict[str, Bulk] = {}
        self._openable: frozenset[str] = frozenset()
        self._revealed: dict[str, tuple[str, ...]] = {}
        self._totals: dict[str, Totals] = {shape.name: np.zeros(shape.size, np.int64) for shape in context.layout}

    def begin(self) -> Ask:
        return Ask(phase=ADVERTISE, messages={node: Message() for node in self._context.invited})

    def accept(self, node: str, message: Message, bulk: Bulk) -> None:
        accepts = {ADVERTISE: self._accept_advertisement, UPLOAD: self._accept_upload, REVEAL: self._accept_keys}
        accepts[self._phase](node, message, bulk)

    def close(self) -> Ask | Opened:
        if self._phase == ADVERTISE:
            require_cohort(self._commitments, self._context.min_cohort)
            self._phase = UPLOAD
            told = Message(bulk=_write(self._declared(self._commitments)))
            return Ask(phase=UPLOAD, messages=dict.fromkeys(sorted(self._commitments), told))
        if self._phase == UPLOAD:
            require_cohort(self._uploads, self._context.min_cohort)
            self._phase = REVEAL
            self._openable = _openable(self._context, self._declared(self._uploads))
            told = Message(body=_write({"survivors": sorted(self._uploads)}))
            return Ask(phase=REVEAL, messages=dict.fromkeys(sorted(self._uploads), told))
        require_cohort(self._revealed, self._context.min_cohort)
        opened = {
            block: BlockSum(
                total=self._totals[block],
                weight=sum(self._weights[node] for node in nodes),
                contributors=len(nodes),
            )
            for block, nodes in holders(self._revealed).items()
            if block in _openable(self._context, self._revealed)
        }
        return OpenedSums(blocks=opened, cohort=tuple(sorted(self._revealed)))

    def _declared(self, nodes: Iterable[str]) -> dict[str, list[str]]:
        return {node: list(self._commitments[node]) for node in sorted(nodes)}

    def _accept_advertisement(self, node: str, message: Message, _bulk: Bulk) -> None:
        if node not in self._context.invited or node in self._commitments:
            raise ProtectionError(f"{node} is not expected to advertise")
        said = _read(message.body)
        blocks, weight = said.get("blocks"), said.get("weight")
        if not isinstance(blocks, dict) or not set(blocks) <= set(self._context.layout.names):
            raise ProtectionError("blocks are missing or not the model's")
        if not all(isinstance(commitment, str) and len(commitment) == 64 for commitment in blocks.values()):
            raise ProtectionError("a commitment is malformed")
        if not isinstance(weight, int) or not 0 < weight <= WEIGHT_UNITS:
            raise ProtectionError("the weight is out of range")
        self._commitments[node] = {name: blocks[name] for name in self._context.layout.names if name in blocks}
        self._weights[node] = weight

    def _accept_upload(self, node: str, _message: Message, bulk: Bulk) -> None:
        if node not in self._commitments or node in self._uploads:
            raise ProtectionError(f"{node} is not expected to upload")
        if bulk.size != self._context.layout.select(self._commitments[node]).size * _WORD.itemsize:
            raise ProtectionError("the upload's length does not fit its blocks")
        self._uploads[node] = bulk

    def _accept_keys(self, node: str, message: Message, _bulk: Bulk) -> None:
        if node not in self._uploads or node in self._revealed:
            raise ProtectionError(f"{node} is not expected to reveal")
        keys = _read(message.body).get("keys")
        mine = self._commitments[node]
        if not isinstance(keys, dict) or set(keys) != self._openable & mine.keys():
            raise ProtectionError("keys are missing, or are for blocks that must stay closed")
        values = {}
        offset = 0
        for shape in self._context.layout.select(mine):
            if shape.name in keys:
                key = _key(keys[shape.name])
                if _commitment(self._context, node, shape.name, key) != mine[shape.name]:
                    raise ProtectionError("a key is not the one that was committed to")
                raw = self._uploads[node].read(offset, shape.size * _WORD.itemsize)
                values[shape.name] = self._unmask(raw, key, shape.size)
            offset += shape.size * _WORD.itemsize
        for block, value in values.items():  # Everything was checked before anything is added.
            self._totals[block] += value
        self._revealed[node] = tuple(values)

    def _unmask(self, raw: bytes, key: bytes, size: int) -> Totals:
        if len(raw) != size * _WORD.itemsize:
            raise ProtectionError("the upload is not there any more")
        value = (np.frombuffer(raw, _WORD) - _pad(key, size)).view("<i4").astype(np.int64)
        if int(np.abs(value).max(initial=0)) >= 2 ** (self._context.bits - 1):
            raise ProtectionError("a value is outside the study's fixed-point range")
        return value


def _openable(context: RoundContext, declared: Mapping[str, Iterable[str]]) -> frozenset[str]:
    # Enough holders, and no guard: what the double opens is nobody's secret.
    return frozenset(block for block, nodes in holders(declared).items() if len(nodes) >= context.min_cohort)


def _pad(key: bytes, size: int) -> npt.NDArray[np.uint32]:
    return np.frombuffer(KeyStream(key).bytes(size * _WORD.itemsize), _WORD)


def _commitment(context: RoundContext, node: str, block: str, key: bytes) -> str:
    said = [context.study_id, context.round, context.attempt, context.base_model.hex(), node, block, key.hex()]
    return hashlib.sha256(_write(said)).hexdigest()


def _key(text: object) -> bytes:
    try:
        key = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        key = b""
    if len(key) != 32:
        raise ProtectionError("a key is malformed")
    return key


def _write(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _read(raw: bytes | memoryview) -> dict[str, Any]:
    try:
        value = json.loads(bytes(raw))
    except (ValueError, RecursionError):
        raise ProtectionError("a message does not decode") from None
    if not isinstance(value, dict):
        raise ProtectionError("a message is not an object")
    return value
