"""The contract of a protection: what may be asked for, and two state machines without I/O.

A protection never sees floats, sockets or files it opened itself. It is given integers (already weighted,
clipped and rounded by `fixed_point`), moves messages between the two halves, and yields either sums for the
coordinator or one combination for each recipient. There is no call that returns one node's contribution.

    node half                       coordinator half
    answer(phase, message) ──────►  accept(node, message)
          ▲                               │ close()
          └──────── Ask(phase, …) ◄───────┴──► OpenedSums | CombinationsSent

Rules every implementation keeps:
* `accept` raises before it changes anything, so a bad message costs its sender only;
* a half is deterministic given its context, its messages and the injected randomness. The coordinator half
  draws no randomness at all: replaying the accepted messages after a crash rebuilds it exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from secure_fl.blocks import Layout
from secure_fl.identity.member import Member
from secure_fl.identity.signing import transcript
from secure_fl.protect.memory import CombinationRows, Memory, OpenedRow
from secure_fl.randomness import Randomness

Integers: TypeAlias = npt.NDArray[np.int32]
Totals: TypeAlias = npt.NDArray[np.int64]
# From the squared distances to everybody who uploaded, oneself included, to integer weights over them.
Attention: TypeAlias = Callable[[Mapping[str, float]], Mapping[str, int]]


class RequestKind(Enum):
    """The two things an aggregation may ask for."""

    SUM = "sum"
    COMBINE = "combine"


@dataclass(frozen=True, slots=True)
class Sum:
    """Per block, over the nodes that hold it: Σ ω·x and Σ ω, opened to the coordinator."""

    blocks: tuple[str, ...]
    kind: ClassVar[RequestKind] = RequestKind.SUM


@dataclass(frozen=True, slots=True)
class Combine:
    """Per recipient i: Σ_j w_ij·x_j with small non-negative integers w_ij, opened only at node i."""

    blocks: tuple[str, ...]
    kind: ClassVar[RequestKind] = RequestKind.COMBINE


Request: TypeAlias = Sum | Combine


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundContext:
    """What both halves know about one attempt at one round; every message is bound to it."""

    study_id: str
    round: int
    attempt: int
    base_model: bytes  # digest of the model everybody trains from
    invited: tuple[str, ...]
    roster: Mapping[str, str]  # name → fingerprint of its certificate, for everybody invited
    layout: Layout  # of the blocks that may leave a node
    kind: RequestKind
    bits: int
    colluders: int
    min_cohort: int
    attention: bool = False  # combine only: recipients weigh their peers by the distance of features
    recompute: bool = False  # combine only: recipients combine uploads themselves, checked against what was signed
    binding: bytes = field(init=False)  # a hash of all this; whatever is signed or derived in a round has it as a field

    def __post_init__(self) -> None:
        fields = (
            self.study_id.encode(),
            self.round.to_bytes(8, "little"),
            self.attempt.to_bytes(8, "little"),
            self.base_model,
            *(f"{name}={self.roster[name]}".encode() for name in self.invited),
            *(f"{shape.name}:{shape.size}".encode() for shape in self.layout),
            f"{self.kind.value} {self.bits} {self.colluders} {self.min_cohort}".encode(),
            f"{self.attention} {self.recompute}".encode(),
        )
        object.__setattr__(self, "binding", hashlib.sha256(transcript("round", *fields)).digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One node's input: integers per block it holds and its quantised weight.

    For combine also the sketch of its features, if peers are weighed by their distance, and how it weighs them.
    """

    blocks: Mapping[str, Integers]
    weight: int
    sketch: Integers | None = None
    attend: Attention = lambda _: {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What one half says to the other: a small body and, where there is much of it, bulk."""

    body: bytes = b""
    bulk: bytes = b""


class Bulk(Protocol):
    """Bulk that arrived and rests on disk: read it in pieces, never as a whole list of updates."""

    @property
    def size(self) -> int:
        """Length in bytes."""
        ...

    @property
    def sha256(self) -> bytes:
        """Its digest, checked on arrival."""
        ...

    def read(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The start of a phase: who is asked, what each is told, and which combinations the answers open."""

    phase: str
    messages: Mapping[str, Message]
    opens: CombinationRows = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSum:
    """One opened block: Σ of the integers, Σ of the weights, and how many contributed."""

    total: Totals
    weight: int
    contributors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSums:
    """The end of a sum. Blocks below their minimum cohort are absent: they were never opened."""

    blocks: Mapping[str, BlockSum]
    cohort: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationsSent:
    """The end of a combine. The coordinator learns that each recipient was served, and nothing more."""

    recipients: tuple[str, ...]
    cohort: tuple[str, ...]


Opened: TypeAlias = OpenedSums | CombinationsSent


class NodeHalf(Protocol):
    """One node in one attempt."""

    def answer(self, phase: str, message: Message) -> Message:
        """Answer a phase. Raises `ProtectionError` rather than say anything unsafe."""
        ...

    def combination(self) -> Mapping[str, BlockSum]:
        """After the last phase of a combine: what was opened here. Empty for a sum."""
        ...


class CoordinatorHalf(Protocol):
    """The coordinator in one attempt."""

    def begin(self) -> Ask:
        """The first phase."""
        ...

    def accept(self, node: str, message: Message, bulk: Bulk) -> None:
        """Take one node's answer to the current phase, or raise `ProtectionError` and stay as before."""
        ...

    def close(self) -> Ask | Opened:
        """End the current phase with whoever answered. Raises `CohortTooSmallError`."""
        ...

    @property
    def missing(self) -> int:
        """How many answers are worth waiting for beyond any deadline, because what was uploaded is not lost yet."""
        ...


class Protection(Protocol):
    """A way for updates to leave a node."""

    name: ClassVar[str]
    serves: ClassVar[frozenset[RequestKind]]
    coordinator_sees_updates: ClassVar[bool]
    payload_version: ClassVar[int]
    bits: ClassVar[int]  # of a value, where the study does not say
    carrier: ClassVar[str]  # the first phase whose answer depends on the data: the site is charged before it is sent

    def phases(self, kind: RequestKind) -> tuple[str, ...]:
        """The phases in order."""
        ...

    def node(
        self,
        context: RoundContext,
        me: Member,
        contribution: Contribution,
        randomness: Randomness,
        memory: Memory | None = None,
    ) -> NodeHalf:
        """The node half, once training is done, or again after a restart if there is something in `memory`."""
        ...

    def coordinator(self, context: RoundContext, earlier: Sequence[OpenedRow] = ()) -> CoordinatorHalf:
        """The coordinator half; `earlier` is what other attempts of the study opened, each row once."""
        ...

    def largest_upload(self, context: RoundContext) -> int:
        """The most bytes of bulk that any answer can need; more is refused before it is received."""
        ...

    def quorum(self, nodes: int, *, colluders: int, min_cohort: int) -> int:
        """How many of `nodes` have to stay to the end for anything to be opened."""
        ...

    def require_room(self, kind: RequestKind, *, nodes: int, bits: int) -> None:
        """Raise `OverflowInvariantError` if values of so many bits of so many nodes could overflow."""
        ...

    def noise(self, context: RoundContext) -> int:
        """How far an opened total may be from the integers that went into it. Zero for most."""
        ...

    def explain(self, kind: RequestKind) -> tuple[str, ...]:
        """What each party learns, in sentences for a site operator."""
        ...
