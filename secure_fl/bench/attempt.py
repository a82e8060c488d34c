"""One round of a bench, driven through the halves that run in production, in one process and without a network.

Every phase is accounted for by itself: processor seconds of each party's own work, and the bytes that would be sent.
"""

from __future__ import annotations

import hashlib
import time
import tracemalloc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from secure_fl.blocks import Vector
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum, Integers
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.identity.member import Member
from secure_fl.protect.combining import (
    Attention,
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

BLOCK = "model"
CLIP = 1.0
ENCODE = "encode"  # what happens before the first phase: clipping and rounding, and both halves made
UPLOAD = "upload"  # the phase every protection moves its bulk in


@dataclass(slots=True)
class Cost:
    """Of one phase: processor seconds and bytes by party."""

    coordinator: float = 0.0
    nodes: dict[str, float] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Everybody's seconds."""
        return self.coordinator + sum(self.nodes.values())


class Account:
    """What a round costs whom, by phase. Circles, which are played one after the other, add up."""

    def __init__(self) -> None:
        self.phases: dict[str, Cost] = {}
        self._phase = ENCODE

    def begin(self, phase: str) -> None:
        """From here on everything is this phase's."""
        self._phase = phase

    @property
    def now(self) -> Cost:
        """That of the current phase."""
        return self.phases.setdefault(self._phase, Cost())

    @contextmanager
    def of_node(self, name: str) -> Iterator[None]:
        """A node works."""
        begun = time.process_time()
        yield
        self.now.nodes[name] = self.now.nodes.get(name, 0.0) + time.process_time() - begun

    @contextmanager
    def of_coordinator(self) -> Iterator[None]:
        """The coordinator works."""
        begun = time.process_time()
        yield
        self.now.coordinator += time.process_time() - begun

    @property
    def total(self) -> float:
        """Everybody's seconds."""
        return sum(cost.total for cost in self.phases.values())

    @property
    def coordinator(self) -> float:
        """The coordinator's seconds."""
        return sum(cost.coordinator for cost in self.phases.values())

    @property
    def opening(self) -> float:
        """Everybody's seconds once the last upload was in."""
        names = list(self.phases)
        return sum(self.phases[name].total for name in names[names.index(UPLOAD) + 1 :])

    def slowest(self, *, until: str = "") -> float:
        """The seconds of the node that worked most, in all phases or in those up to one."""
        names = list(self.phases)
        counted = names[: names.index(until) + 1] if until else names
        return max(_by_node(self.phases[name].nodes for name in counted).values())

    def most_up(self, among: Sequence[str]) -> int:
        """What the node sent that sent most."""
        sent = _by_node(cost.up for cost in self.phases.values())
        return int(max(sent.get(name, 0) for name in among))

    def most_down(self, among: Sequence[str]) -> int:
        """What the node was sent that was sent most, the model not counted."""
        received = _by_node(cost.down for cost in self.phases.values())
        return int(max(received.get(name, 0) for name in among))


def _by_node(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


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


class Runs:
    """One round: its circles, one after the other."""

    def __init__(
        self, protection: Protection, contexts: Sequence[RoundContext], folder: Path, gone: frozenset[str]
    ) -> None:
        self.account = Account()
        self._runs = [_Run(protection, context, folder, gone, self.account) for context in contexts]

    def play(
        self, members: Mapping[str, Member], updates: Mapping[str, Vector], shares: Mapping[str, Mapping[str, float]]
    ) -> None:
        """From floats to opened totals."""
        for run in self._runs:
            run.play({name: members[name] for name in run.invited}, updates, shares)

    @property
    def opened(self) -> list[str]:
        """At whom something was opened."""
        return [name for run in self._runs for name in run.opened]

    @property
    def stayed(self) -> list[str]:
        """Who took part to the end; of a circle that opens nothing, everybody."""
        return [name for run in self._runs for name in run.cohort or run.invited]

    def compare(self, updates: Mapping[str, Vector]) -> tuple[bool, float]:
        """Whether all that was opened is right, and how far it is from the mean of the floats."""
        compared = [run.compare(updates) for run in self._runs if run.opened]
        return bool(compared) and all(exact for exact, _ in compared), max((error for _, error in compared), default=0)

    def replay(self) -> int:
        """The coordinator's memory: in production circles are open side by side, so each counts."""
        return sum(run.replay() for run in self._runs)


class _Run:
    """One attempt, from floats to opened totals."""

    def __init__(
        self, protection: Protection, context: RoundContext, folder: Path, gone: frozenset[str], account: Account
    ) -> None:
        self.invited = context.invited
        self.cohort: tuple[str, ...] = ()
        self.opened: dict[str, tuple[Mapping[str, int], BlockSum]] = {}  # weights and totals, by who opened them
        self._account = account
        self._protection = protection
        self._context = context
        self._codec = FixedPoint(bits=context.bits, clip=CLIP)
        self._folder = folder
        self._gone = gone
        self._answers: list[list[_Answer]] = []
        self._encoded: dict[str, Integers] = {}

    def play(
        self, members: Mapping[str, Member], updates: Mapping[str, Vector], shares: Mapping[str, Mapping[str, float]]
    ) -> None:
        self._account.begin(ENCODE)
        rows: dict[str, Mapping[str, int]] = {}
        with self._account.of_coordinator():
            half = coordinator_half(self._protection, self._context)
            now: Ask | Opened = half.begin()

        def attend(name: str, there: Mapping[str, float]) -> Mapping[str, int]:
            wanted = {peer: shares[name][peer] for peer in there}
            rows[name] = whole_weights(wanted, row_total(len(members)))
            return rows[name]

        nodes = {
            name: self._node(member, updates[name], attend=partial(attend, name)) for name, member in members.items()
        }
        there = list(members)
        while isinstance(now, Ask):
            self._account.begin(now.phase)
            if now.phase == UPLOAD:  # from here on, those who are gone are gone
                there = [name for name in there if name not in self._gone]
            self._answers.append([])
            for name in there:
                if name in now.messages:
                    self._exchange(half, now, name, nodes[name])
            if self._context.whole and len(there) < len(members):
                return  # The circle is not complete: it waits.
            with self._account.of_coordinator():
                now = half.close()
        self.cohort = now.cohort
        if isinstance(now, OpenedSums):
            self.opened[""] = dict.fromkeys(now.cohort, 1), now.blocks[BLOCK]
        for name in now.recipients if isinstance(now, CombinationsSent) else ():
            if isinstance(half_there := nodes[name], CombiningNodeHalf):
                self.opened[name] = rows[name], half_there.combination()[BLOCK]

    def _node(self, member: Member, update: Vector, *, attend: Attention) -> NodeHalf:
        """A node's half, with its update in integers."""
        with self._account.of_node(member.name):
            stream = KeyStream(SystemRandomness().bytes(32))
            values, _ = self._codec.encode(update, weight=WEIGHT_UNITS, stream=stream)
            mine = CombineContribution(blocks={BLOCK: values}, weight=WEIGHT_UNITS, attend=attend)
            memory = ProcessMemory()
            host = CombineHost(
                me=member, randomness=SystemRandomness(), memory=memory, history=memory, comparisons=memory
            )
            node = node_half(self._protection, self._context, mine, host)
        self._encoded[member.name] = values
        return node

    def _exchange(self, half: CoordinatorHalf, ask: Ask, name: str, node: NodeHalf) -> None:
        account = self._account
        with account.of_coordinator():
            message = ask.messages[name]
        with account.of_node(name):
            said = node.answer(ask.phase, message)
        path = self._folder / f"{ask.phase}-{name}"
        path.write_bytes(said.bulk)
        with account.of_coordinator():
            # The coordinator compares an upload with its digest as it arrives.
            bulk = _OnDisk(path, len(said.bulk), hashlib.sha256(said.bulk).digest())
            half.accept(name, replace(said, bulk=b""), bulk)
        account.now.down[name] = len(message.body) + len(message.bulk)
        account.now.up[name] = len(said.body) + len(said.bulk)
        self._answers[-1].append(_Answer(name, replace(said, bulk=b""), bulk))

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
            error = max(error, float(np.abs(self._codec.decode(block) - mean).max(initial=0)) / CLIP)
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
                if self.cohort or phase is not self._answers[-1]:  # A circle that is not complete stays as it is.
                    now = half.close()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
