"""One aggregation of random updates under each protection: what it costs whom, and whether the sum is right.

The halves are the ones that run in production, driven in one process without a network: seconds are CPU seconds of each
party's own work, encoding included; bytes are what would be sent. Dropouts vanish after they were told who takes part
and before they upload, which is when they cost the others most. Memory is the coordinator's alone: its half draws no
randomness, so the recorded answers are replayed to a second one while allocations are traced.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from secure_fl import protect
from secure_fl.blocks import BlockShape, Layout, TensorShape, Vector
from secure_fl.errors import UsageError
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import TrustStore, utc_now
from secure_fl.identity.member import Member
from secure_fl.protect.base import (
    Ask,
    Contribution,
    CoordinatorHalf,
    Message,
    OpenedSums,
    Protection,
    RequestKind,
    RoundContext,
)
from secure_fl.protect.cohort import smallest_cohort
from secure_fl.protect.fixed_point import FixedPoint
from secure_fl.protect.weights import WEIGHT_UNITS
from secure_fl.randomness import KeyStream, SystemRandomness

_BLOCK = "model"
_UPLOAD = "upload"  # the phase every protection moves its bulk in
_CLIP, _BITS, _COLLUDERS = 1.0, 16, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one protection costs, the best of several runs."""

    seconds_total: float
    seconds_node_max: float
    seconds_coordinator: float
    bytes_up_per_node: int
    bytes_per_parameter: float
    max_error: float
    exact: bool
    peak_memory_bytes: int


@dataclass(slots=True)
class _Seconds:
    """CPU seconds by party."""

    coordinator: float = 0.0
    nodes: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of_node(self, name: str) -> Iterator[None]:
        begun = time.process_time()
        yield
        self.nodes[name] = self.nodes.get(name, 0.0) + time.process_time() - begun

    @contextmanager
    def of_coordinator(self) -> Iterator[None]:
        begun = time.process_time()
        yield
        self.coordinator += time.process_time() - begun

    @property
    def total(self) -> float:
        return self.coordinator + sum(self.nodes.values())


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """An upload where production has it, too."""

    path: Path
    size: int
    sha256: bytes

    def read(self, offset: int, count: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(count)


@dataclass(frozen=True, slots=True)
class _Answer:
    node: str
    message: Message
    bulk: _OnDisk


class Aggregation:
    """The same members and the same updates for every protection."""

    def __init__(self, *, nodes: int, parameters: int, dropouts: int, folder: Path) -> None:
        if dropouts < 0 or nodes - dropouts < smallest_cohort(RequestKind.SUM, _COLLUDERS):
            raise UsageError(
                f"{nodes} nodes with {dropouts} dropouts leave too few to open anything",
                advice="more --nodes or fewer --dropouts",
            )
        self._folder = folder
        self._members = _enrol(folder, nodes)
        self._gone = frozenset(list(self._members)[:dropouts])
        rng = np.random.default_rng(0)  # test data, not secrets
        self._updates: dict[str, Vector] = {
            name: rng.uniform(-_CLIP, _CLIP, parameters).astype(np.float32) for name in self._members
        }
        self._codec = FixedPoint(bits=_BITS, clip=_CLIP)
        block = BlockShape(name=_BLOCK, tensors=(TensorShape(name="w", shape=(parameters,)),))
        self._context = RoundContext(
            study_id="0" * 64,
            round=1,
            attempt=1,
            base_model=bytes(32),
            invited=tuple(self._members),
            roster={name: member.certificate.fingerprint for name, member in self._members.items()},
            layout=Layout((block,)),
            kind=RequestKind.SUM,
            bits=_BITS,
            colluders=_COLLUDERS,
            min_cohort=smallest_cohort(RequestKind.SUM, _COLLUDERS),
        )

    def measure(self, protection: Protection, *, repeat: int, note: Callable[[], None]) -> Figures:
        """Run `repeat` times and keep the quickest."""
        best: _Seconds | None = None
        for _ in range(repeat):
            seconds = _Seconds()
            opened, answers, exact, error = self._run(protection, seconds)
            if best is None or seconds.total < best.total:
                best = seconds
            note()
        if best is None:
            raise UsageError("--repeat is at least 1")
        sent = dict.fromkeys(opened.cohort, 0)
        for answer in (answer for phase in answers for answer in phase if answer.node in sent):
            sent[answer.node] += len(answer.message.body) + answer.bulk.size
        up = max(sent.values())
        return Figures(
            seconds_total=best.total,
            seconds_node_max=max(best.nodes.values()),
            seconds_coordinator=best.coordinator,
            bytes_up_per_node=up,
            bytes_per_parameter=up / max(1, self._context.layout.size),
            max_error=error,
            exact=exact,
            peak_memory_bytes=self._replay(protection, answers),
        )

    def _run(self, protection: Protection, seconds: _Seconds) -> tuple[OpenedSums, list[list[_Answer]], bool, float]:
        with seconds.of_coordinator():
            half = protection.coordinator(self._context)
            now: Ask | object = half.begin()
        nodes = {}
        encoded = {}
        for name, member in self._members.items():
            with seconds.of_node(name):
                stream = KeyStream(SystemRandomness().bytes(32))
                values, _ = self._codec.encode(self._updates[name], weight=WEIGHT_UNITS, stream=stream)
                mine = Contribution(blocks={_BLOCK: values}, weight=WEIGHT_UNITS)
                nodes[name] = protection.node(self._context, member, mine, SystemRandomness())
            encoded[name] = values
        answers: list[list[_Answer]] = []
        uploading = False  # from here on, those who are gone are gone
        while isinstance(now, Ask):
            answers.append([])
            uploading = uploading or now.phase == _UPLOAD
            for name, message in now.messages.items():
                if name in self._gone and uploading:
                    continue
                with seconds.of_node(name):
                    said = nodes[name].answer(now.phase, message)
                path = self._folder / f"{now.phase}-{name}"
                path.write_bytes(said.bulk)
                with seconds.of_coordinator():
                    # The coordinator compares an upload with its digest as it arrives.
                    bulk = _OnDisk(path, len(said.bulk), hashlib.sha256(said.bulk).digest())
                    half.accept(name, replace(said, bulk=b""), bulk)
                answers[-1].append(_Answer(name, replace(said, bulk=b""), bulk))
            with seconds.of_coordinator():
                now = half.close()
        if not isinstance(now, OpenedSums):
            raise UsageError(f"{protection.name} opened no sum")
        return now, answers, *self._compare(now, encoded)

    def _compare(self, opened: OpenedSums, encoded: Mapping[str, Any]) -> tuple[bool, float]:
        """Against the integers that were added, and against the mean of the floats they stand for."""
        block = opened.blocks[_BLOCK]
        total = np.zeros(self._context.layout.size, np.int64)
        mean = np.zeros(self._context.layout.size, np.float64)
        for name in opened.cohort:
            total += encoded[name]
            mean += self._updates[name]
        mean /= len(opened.cohort)
        error = float(np.abs(self._codec.decode(block) - mean).max(initial=0)) / _CLIP
        return bool((block.total == total).all()), error

    def _replay(self, protection: Protection, answers: list[list[_Answer]]) -> int:
        tracemalloc.start()
        try:
            half: CoordinatorHalf = protection.coordinator(self._context)
            half.begin()
            for phase in answers:
                for answer in phase:
                    half.accept(answer.node, answer.message, answer.bulk)
                half.close()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def run(
    *, nodes: int, parameters: int, dropouts: int, protections: tuple[str, ...], repeat: int, note: Callable[[], None]
) -> dict[str, Any]:
    """The JSON object of `secure-fl bench aggregation`."""
    resolved = {name: protect.resolve(name) for name in protections}
    for name, protection in resolved.items():
        if RequestKind.SUM not in protection.serves:
            raise UsageError(f"protection {name!r} opens no sums")
    with tempfile.TemporaryDirectory() as folder:
        made = Aggregation(nodes=nodes, parameters=parameters, dropouts=dropouts, folder=Path(folder))
        figures = {
            name: asdict(made.measure(protection, repeat=repeat, note=note)) for name, protection in resolved.items()
        }
    return {"nodes": nodes, "parameters": parameters, "dropouts": dropouts, "protections": figures}


def _enrol(folder: Path, nodes: int) -> dict[str, Member]:
    authority = Authority.create(folder / "pki", consortium="bench", days=2)
    trust = TrustStore(authority.ca_pem)
    members = {}
    for index in range(nodes):
        credential = authority.issue("node", f"node-{index:03d}", days=1)
        members[credential.certificate.name] = Member(
            certificate=credential.certificate,
            key=credential.signing_key,
            vouch=lambda peer: trust.check(peer, role="node", now=utc_now()),
        )
    return members
