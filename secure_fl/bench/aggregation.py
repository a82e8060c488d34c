"""One aggregation of random updates under each protection: what it costs whom, and whether the sum is right.

The halves are the ones that run in production, driven in one process without a network: seconds are CPU seconds of each
party's own work, encoding included; bytes are what would be sent. Dropouts vanish after they were told who takes part
and before they upload, which is when they cost the others most. Memory is the coordinator's alone: its half draws no
randomness, so the recorded answers are replayed to a second one while allocations are traced.

Sums are of circles, as in production: a circle that lost somebody opens nothing. `NAME+recovery` is the same protection
with `protection.recovery`: one sum, of whoever is left.
"""

from __future__ import annotations

import gc
import hashlib
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from secure_fl import protect
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import BlockShape, Layout, TensorShape, Vector
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum, Integers
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.errors import UsageError
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import TrustStore, utc_now
from secure_fl.identity.member import Member
from secure_fl.protect.cohort.minima import smallest_cohort
from secure_fl.protect.combining import (
    CombinationsSent,
    CombineContribution,
    CombineHost,
    CombiningNodeHalf,
    coordinator_half,
    node_half,
)
from secure_fl.protect.contract import (
    Ask,
    CoordinatorHalf,
    Message,
    NodeHalf,
    Opened,
    OpenedSums,
    Protection,
    RoundContext,
)
from secure_fl.protect.release.combinations import row_total, whole_weights
from secure_fl.protect.release.history import ProcessMemory
from secure_fl.randomness import KeyStream, SystemRandomness
from secure_fl.study.circles import divide

_BLOCK = "model"
_UPLOAD = "upload"  # the phase every protection moves its bulk in
_CLIP, _COLLUDERS = 1.0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one protection costs, the best of several runs."""

    seconds_total: float
    seconds_node_max: float
    seconds_coordinator: float
    seconds_opening: float  # of everybody, once the last upload is in
    bytes_up_per_node: int
    bytes_per_parameter: float
    max_error: float
    exact: bool
    combinations_opened: int
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

    def __init__(self, *, nodes: int, parameters: int, dropouts: int, kind: RequestKind, folder: Path) -> None:
        if dropouts < 0 or nodes - dropouts < smallest_cohort(kind, _COLLUDERS):
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
        # For a combine: what each node wants of each other. Between half and all, so that the guard has no objection.
        self._shares = {
            name: dict(zip(self._members, rng.uniform(0.5, 1, nodes).tolist(), strict=True)) for name in self._members
        }
        self._kind = kind
        self._layout = Layout((BlockShape(name=_BLOCK, tensors=(TensorShape(name="w", shape=(parameters,)),)),))

    def measure(self, protection: Protection, *, recovery: bool, repeat: int, note: Callable[[], None]) -> Figures:
        """Run `repeat` times and keep the quickest."""
        circles: Sequence[tuple[str, ...]] = [tuple(self._members)]
        if self._kind is RequestKind.SUM and not recovery:
            circles = divide(self._members, colluders=_COLLUDERS)
            if all(self._gone.intersection(circle) for circle in circles):
                raise UsageError(
                    "no circle is complete with these dropouts",
                    advice="more --nodes, fewer --dropouts, or a protection with '+recovery'",
                )
        contexts = [self._context(protection, circle, whole=not recovery) for circle in circles]
        runs = []
        for _ in range(repeat):
            runs.append(_Runs(protection, contexts, self._folder, self._gone))
            with _no_collection():
                runs[-1].play(self._members, self._updates, self._shares)
            note()
        best = min(runs, key=lambda run: run.seconds.total)
        up = best.bytes_up()
        exact, error = best.compare(self._updates)
        return Figures(
            seconds_total=best.seconds.total,
            seconds_node_max=max(best.seconds.nodes.values()),
            seconds_coordinator=best.seconds.coordinator,
            seconds_opening=best.seconds.total - best.uploaded,
            bytes_up_per_node=up,
            bytes_per_parameter=up / self._layout.size,
            max_error=error,
            exact=exact,
            combinations_opened=len(best.opened) if self._kind is RequestKind.COMBINE else 0,
            peak_memory_bytes=runs[-1].replay(),  # whose uploads are still on disk
        )

    def _context(self, protection: Protection, members: tuple[str, ...], *, whole: bool) -> RoundContext:
        return RoundContext(
            study_id="0" * 64,
            round=1,
            attempt=1,
            base_model=bytes(32),
            invited=members,
            roster={name: self._members[name].certificate.fingerprint for name in members},
            layout=self._layout,
            kind=self._kind,
            bits=protection.bits,
            colluders=_COLLUDERS,
            min_cohort=smallest_cohort(self._kind, _COLLUDERS),
            protection=protection.name,
            payload_version=protection.payload_version,
            settings=protection.canonical_settings,
            whole=whole and self._kind is RequestKind.SUM,
            partial=False,
        )


class _Runs:
    """One round: its circles, one after the other."""

    def __init__(
        self, protection: Protection, contexts: Sequence[RoundContext], folder: Path, gone: frozenset[str]
    ) -> None:
        self.seconds = _Seconds()
        self._runs = [_Run(protection, context, folder, gone, self.seconds) for context in contexts]
        self.uploaded = 0.0

    def play(
        self, members: Mapping[str, Member], updates: Mapping[str, Vector], shares: Mapping[str, Mapping[str, float]]
    ) -> None:
        for run in self._runs:
            before = self.seconds.total
            run.play({name: members[name] for name in run.invited}, updates, shares)
            self.uploaded += run.uploaded - before

    @property
    def opened(self) -> list[str]:
        return [name for run in self._runs for name in run.opened]

    def bytes_up(self) -> int:
        return max(run.bytes_up() for run in self._runs)

    def compare(self, updates: Mapping[str, Vector]) -> tuple[bool, float]:
        compared = [run.compare(updates) for run in self._runs if run.opened]
        return bool(compared) and all(exact for exact, _ in compared), max((error for _, error in compared), default=0)

    def replay(self) -> int:
        """The coordinator's memory: in production circles are open side by side, so each counts."""
        return sum(run.replay() for run in self._runs)


class _Run:
    """One attempt, from floats to opened totals."""

    def __init__(
        self, protection: Protection, context: RoundContext, folder: Path, gone: frozenset[str], seconds: _Seconds
    ) -> None:
        self.seconds = seconds
        self.invited = context.invited
        self.uploaded = 0.0  # of all seconds, those until the last upload was in
        self.opened: dict[str, tuple[Mapping[str, int], BlockSum]] = {}  # weights and totals, by who opened them
        self._protection = protection
        self._context = context
        self._codec = FixedPoint(bits=context.bits, clip=_CLIP)
        self._folder = folder
        self._gone = gone
        self._answers: list[list[_Answer]] = []
        self._encoded: dict[str, Integers] = {}
        self._cohort: tuple[str, ...] = ()

    def play(
        self, members: Mapping[str, Member], updates: Mapping[str, Vector], shares: Mapping[str, Mapping[str, float]]
    ) -> None:
        seconds, nodes = self.seconds, {}
        rows: dict[str, Mapping[str, int]] = {}
        with seconds.of_coordinator():
            half = coordinator_half(self._protection, self._context)
            now: Ask | Opened = half.begin()

        def attend(name: str, there: Mapping[str, float]) -> Mapping[str, int]:
            wanted = {peer: shares[name][peer] for peer in there}
            rows[name] = whole_weights(wanted, row_total(len(members)))
            return rows[name]

        for name, member in members.items():
            with seconds.of_node(name):
                stream = KeyStream(SystemRandomness().bytes(32))
                values, _ = self._codec.encode(updates[name], weight=WEIGHT_UNITS, stream=stream)
                mine = CombineContribution(blocks={_BLOCK: values}, weight=WEIGHT_UNITS, attend=partial(attend, name))
                memory = ProcessMemory()
                host = CombineHost(
                    me=member,
                    randomness=SystemRandomness(),
                    memory=memory,
                    history=memory,
                    comparisons=memory,
                )
                nodes[name] = node_half(self._protection, self._context, mine, host)
            self._encoded[name] = values
        there = list(members)
        while isinstance(now, Ask):
            if now.phase == _UPLOAD:  # from here on, those who are gone are gone
                there = [name for name in there if name not in self._gone]
            self._answers.append([])
            for name in there:
                if name in now.messages:
                    self._exchange(half, now, name, nodes[name])
            uploading = now.phase == _UPLOAD
            if self._context.whole and len(there) < len(members):
                self.uploaded = seconds.total
                return  # The circle is not complete: it waits.
            with seconds.of_coordinator():
                now = half.close()
            if uploading:
                self.uploaded = seconds.total
        self._cohort = now.cohort
        if isinstance(now, OpenedSums):
            self.opened[""] = dict.fromkeys(now.cohort, 1), now.blocks[_BLOCK]
        for name in now.recipients if isinstance(now, CombinationsSent) else ():
            if isinstance(half_there := nodes[name], CombiningNodeHalf):
                self.opened[name] = rows[name], half_there.combination()[_BLOCK]

    def _exchange(self, half: CoordinatorHalf, ask: Ask, name: str, node: NodeHalf) -> None:
        with self.seconds.of_coordinator():
            message = ask.messages[name]
        with self.seconds.of_node(name):
            said = node.answer(ask.phase, message)
        path = self._folder / f"{ask.phase}-{name}"
        path.write_bytes(said.bulk)
        with self.seconds.of_coordinator():
            # The coordinator compares an upload with its digest as it arrives.
            bulk = _OnDisk(path, len(said.bulk), hashlib.sha256(said.bulk).digest())
            half.accept(name, replace(said, bulk=b""), bulk)
        self._answers[-1].append(_Answer(name, replace(said, bulk=b""), bulk))

    def bytes_up(self) -> int:
        """Of the node that sent most."""
        sent = dict.fromkeys(self._cohort or self.invited, 0)
        for answer in (answer for phase in self._answers for answer in phase if answer.node in sent):
            sent[answer.node] += len(answer.message.body) + answer.bulk.size
        return max(sent.values())

    def compare(self, updates: Mapping[str, Vector]) -> tuple[bool, float]:
        """Against the integers that were added, and against the mean of the floats they stand for."""
        exact, error = bool(self.opened), 0.0
        noise = self._protection.noise(self._context)
        for row, block in self.opened.values():
            total = np.zeros(self._context.layout.size, np.int64)
            mean = np.zeros(self._context.layout.size, np.float64)
            for name, weight in row.items():
                total += weight * self._encoded[name].astype(np.int64)
                mean += weight * updates[name]
            mean /= sum(row.values())
            exact = exact and bool(np.abs(block.total - total).max(initial=0) <= noise)
            error = max(error, float(np.abs(self._codec.decode(block) - mean).max(initial=0)) / _CLIP)
        return exact, error

    def replay(self) -> int:
        """The coordinator's memory at its highest, while it takes the same answers again."""
        tracemalloc.start()
        try:
            half = coordinator_half(self._protection, self._context)
            now: Ask | Opened = half.begin()
            for phase in self._answers:
                for answer in phase:
                    if isinstance(now, Ask):
                        now.messages[answer.node]  # what it forms to ask this
                    half.accept(answer.node, answer.message, answer.bulk)
                if self._cohort or phase is not self._answers[-1]:  # A circle that is not complete stays as it is.
                    now = half.close()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def run(
    *,
    nodes: int,
    parameters: int,
    dropouts: int,
    protections: tuple[str, ...],
    repeat: int,
    note: Callable[[], None],
    combine: bool = False,
) -> dict[str, Any]:
    """The JSON object of `secure-fl bench aggregation`."""
    kind = RequestKind.COMBINE if combine else RequestKind.SUM
    resolved = {name: protect.create(name.partition("+")[0], {}, recovery=_recovers(name)) for name in protections}
    for name, protection in resolved.items():
        if not protection.serves(kind):
            raise UsageError(f"protection {name!r} does not serve {kind.value!r}")
    with tempfile.TemporaryDirectory() as folder:
        made = Aggregation(nodes=nodes, parameters=parameters, dropouts=dropouts, kind=kind, folder=Path(folder))
        figures = {
            name: asdict(made.measure(protection, recovery=_recovers(name), repeat=repeat, note=note))
            for name, protection in resolved.items()
        }
    return {"nodes": nodes, "parameters": parameters, "dropouts": dropouts, "combine": combine, "protections": figures}


def _recovers(name: str) -> bool:
    _, plus, option = name.partition("+")
    if plus and option != "recovery":
        raise UsageError(f"{name!r}: after a protection's name only '+recovery' may stand")
    return bool(plus)


@contextmanager
def _no_collection() -> Iterator[None]:
    """As `timeit` does: looking for garbage of a whole process is no party's work, and would fall on a random one."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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
