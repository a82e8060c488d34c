"""The contract of a protection: two state machines without I/O, and what each may ask of the process it runs in.

A protection never sees floats, sockets or files it opened itself. It is given integers (already weighted, clipped and
rounded by `fixed_point`), moves messages between the two halves, and yields sums for the coordinator. There is no call
that returns one node's contribution. Protections that also open something at the sites have more to do; that is the
contract of `combining`, and nothing of it is needed here.

    node half                       coordinator half
    answer(phase, message) ──────►  accept(node, message, bulk)
          ▲                               │ close()
          └──────── Ask(phase, …) ◄───────┴──► OpenedSums

Rules every implementation keeps:
* `accept` raises before it changes anything, so a bad message costs its sender only;
* a half is deterministic given its context, its messages and the injected randomness. The coordinator half
  draws no randomness at all: replaying the accepted messages after a crash rebuilds it exactly.

A whole protection is as short as this one, which hides nothing (a test plays a round of it):

>>> import numpy as np
>>> from secure_fl.errors import ProtectionError
>>> from secure_fl.protect.cohort.minima import require_cohort
>>> class Bare(Protection):
...     name, payload_version, coordinator_sees_updates = "bare", 1, True
...     order = {RequestKind.SUM: ("upload",)}
...     carrier = "upload"
...     def node(self, context, contribution, host):
...         return BareNode(contribution)
...     def coordinator(self, context):
...         return BareCoordinator(context)
...     def largest_upload(self, context):
...         return 4 * context.layout.size
...     def explain(self, kind):
...         return ("UNSAFE: the coordinator sees every update.",)
>>> class BareNode:
...     def __init__(self, contribution):
...         self.mine = contribution
...     def answer(self, phase, message):
...         values = (self.mine.blocks[name].astype("<i4").tobytes() for name in sorted(self.mine.blocks))
...         return Message(body=bytes([self.mine.weight]), bulk=b"".join(values))
>>> class BareCoordinator:
...     missing = 0
...     def __init__(self, context):
...         self.context, self.said = context, {}
...     def begin(self):
...         return Ask(phase="upload", messages={node: Message() for node in self.context.invited})
...     def accept(self, node, message, bulk):
...         if len(message.body) != 1 or bulk.size != 4 * self.context.layout.size:
...             raise ProtectionError(f"{node} sent too much or too little")
...         self.said[node] = (message.body[0], np.frombuffer(bulk.read(0, bulk.size), "<i4"))
...     def close(self):
...         require_cohort(self.said, self.context.min_cohort)
...         weight, start, blocks = sum(w for w, _ in self.said.values()), 0, {}
...         for name in sorted(self.context.layout.names):
...             end = start + self.context.layout[name].size
...             total = sum(values[start:end].astype(np.int64) for _, values in self.said.values())
...             blocks[name] = BlockSum(total=total, weight=weight, contributors=len(self.said))
...             start = end
...         return OpenedSums(blocks=blocks, cohort=tuple(sorted(self.said)))
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from secure_fl import settings as toml
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Layout
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum, Integers
from secure_fl.identity.member import Member
from secure_fl.identity.signing import transcript
from secure_fl.protect.past import NoPast, Past
from secure_fl.protect.versions import Version
from secure_fl.protect.witness import Witness
from secure_fl.randomness import Randomness


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundContext:
    """What both halves know about one attempt at one round; every message is bound to it."""

    study_id: str
    round: int
    attempt: int
    base_model: bytes  # digest of the model everybody trains from
    invited: tuple[str, ...]
    roster: Mapping[str, str]  # name → fingerprint of its signing key, for everybody invited
    layout: Layout  # of the blocks that may leave a node
    kind: RequestKind
    bits: int
    colluders: int
    min_cohort: int
    protection: str  # its name
    payload_version: int  # and the version of its messages
    settings: bytes  # and its own settings, as canonical JSON
    whole: bool = False  # a circle: a sum is opened of everybody invited, or not at all
    partial: bool = True  # whether a site may hold some of the blocks only
    weighting: str = "equal"  # how much sites count: two sums that weigh them otherwise show who weighs more
    declared: bytes = b""  # the digest of what sites declared, where circles follow from it
    compares: bool = False  # combine only: distances of features are opened in this round
    # Where each site joins at its own pace: how many versions old the model may be that an update was made from.
    # `base_model` is then the newest version, and this its number. None: everybody trains from `base_model`.
    staleness: int | None = None
    version: int = 0
    binding: bytes = field(init=False)  # a hash of all this; whatever is signed or derived in a round has it as a field

    def __post_init__(self) -> None:
        fields = (
            self.study_id.encode(),
            self.round.to_bytes(8, "little"),
            self.attempt.to_bytes(8, "little"),
            self.base_model,
            *(f"{name}={self.roster[name]}".encode() for name in self.invited),
            *(f"{shape.name}:{shape.size}".encode() for shape in self.layout),
            f"{self.kind.value} {self.bits} {self.colluders} {self.min_cohort} {self.compares}".encode(),
            f"{'whole' if self.whole else 'recovering'} {'partial' if self.partial else 'complete'}".encode(),
            self.weighting.encode(),
            f"{self.protection} {self.payload_version}".encode(),
            self.settings,
            *((self.declared,) if self.declared else ()),
            *((f"from version {self.version}, {self.staleness} old".encode(),) if self.staleness is not None else ()),
        )
        object.__setattr__(self, "binding", hashlib.sha256(transcript("round", *fields)).digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One node's input: integers per block it holds, and its quantised weight."""

    blocks: Mapping[str, Integers]
    weight: int
    seconds: float = 0.0  # that training took, where it is to be said (`declarations`)
    made_from: Version | None = None  # the version that was trained from, where each site joins at its own pace


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What one half says to the other: a small body and, where there is much of it, bulk.

    A body is at most `limits.PAYLOAD_BYTES`. Bulk arrives at a node as it was sent; at the coordinator it arrives
    beside the message, as `Bulk`.
    """

    body: bytes = b""
    bulk: bytes | memoryview = b""
    digest: bytes = b""  # the SHA-256 of the bulk, where whoever made it knows it already
    pledged: int = 0  # bytes of bulk that this message is about and a later one carries


class Bulk(Protocol):
    """Bulk that arrived and rests on disk: read it in pieces, never as a whole list of updates."""

    @property
    def size(self) -> int:
        """Length in bytes: at most the protection's `largest_upload`."""
        ...

    @property
    def sha256(self) -> bytes:
        """Its digest, checked on arrival."""
        ...

    def read(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset`, fewer at the end. Raises `StorageError` where the disk fails."""
        ...


class Memory(Protocol):
    """One attempt's place on the node's own disk. It is erased when the attempt is over."""

    def load(self) -> bytes | None:
        """What was saved last; None in an attempt that is new. Raises `StorageError`."""
        ...

    def save(self, content: bytes) -> None:
        """Replace what was saved. Durable when it returns; raises `StorageError` and keeps what was there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a node offers to the protection that runs in it."""

    me: Member  # its identity, and whom it believes
    randomness: Randomness  # fresh for this attempt, and for nothing else
    memory: Memory
    past: Past = field(default_factory=NoPast)  # the sums it was part of, over all studies
    exceptions: frozenset[str] = frozenset()  # guarantees that its site agrees to give up
    witness: Witness | None = None  # its ledger, and its notes of others'; None at a site without a disk
    # Where each site joins at its own pace: versions of the model it was told of, and who agreed in the study before.
    told: tuple[Version, ...] = ()
    agreed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The start of a phase: who is asked, and what each is told."""

    phase: str
    messages: Mapping[str, Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The end of a round, with those whose values are in what was opened."""

    cohort: tuple[str, ...]
    blamed: Mapping[str, str] = field(default_factory=dict)  # who cheated, though in vain → what it did
    bases: Mapping[str, int] = field(default_factory=dict)  # who joined at its own pace → the version it trained from


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSums(Opened):
    """The end of a sum. Blocks below their minimum cohort are absent: they were never opened."""

    blocks: dict[str, BlockSum]

    def taken(self) -> dict[str, BlockSum]:
        """The sums, handed over: whoever takes them may let go of each as it is done with it."""
        blocks = dict(self.blocks)
        self.blocks.clear()
        return blocks


class NodeHalf(Protocol):
    """One node in one attempt."""

    def answer(self, phase: str, message: Message) -> Message:
        """What this node says in `phase` to what the coordinator told it.

        Called at most once per phase, in order; phases that ask this node nothing are left out. The coordinator may
        tell it anything: raises `ProtectionError` (or another `SecureFLError`) rather than say anything unsafe, and
        the node then sits the attempt out.
        """
        ...


class CoordinatorHalf(Protocol):
    """The coordinator in one attempt: `begin`, then answers and a `close` for each phase."""

    def begin(self) -> Ask:
        """The first phase."""
        ...

    def accept(self, node: str, message: Message, bulk: Bulk) -> None:
        """Take one node's answer to the current phase, or raise `ProtectionError` and stay as before.

        `node` was asked and has not answered; its name is authenticated, its message may be anything.
        """
        ...

    def close(self) -> Ask | Opened:
        """End the current phase with whoever answered: the next phase, or what was opened.

        Raises `CohortTooSmallError` or `ProtectionError` where nothing may be opened: the attempt is then void. Where
        that is the fault of nodes that can be named, `WrongSharesError` names them.
        """
        ...

    @property
    def missing(self) -> int:
        """How many answers to keep waiting for after the deadline, up to `rounds.patience`: uploads stay usable."""
        ...


class NoSettings(toml.Settings):
    """Of a protection without any of its own."""


class Protection(ABC):
    """A way for updates to leave a node. One instance serves a study, with the study's settings for it."""

    name: ClassVar[str]
    payload_version: ClassVar[int]  # of its messages; a node and a coordinator with different ones do not talk
    coordinator_sees_updates: ClassVar[bool]
    by_name_only: ClassVar[bool] = False  # whether a site has to name it in its policy, since it rests on more trust
    own_pace: ClassVar[bool] = False  # whether sums may hold work from different versions of the model
    bits: ClassVar[int] = 16  # of a value, where the study does not say
    order: ClassVar[Mapping[RequestKind, tuple[str, ...]]]  # what it serves, and the phases of that in order
    carrier: ClassVar[str]  # the first phase whose answer depends on the data: the site is charged before it is sent
    # Keys of [protection] that are this protection's alone, with their defaults.
    Settings: ClassVar[type[toml.Settings]] = NoSettings

    def __init__(self, settings: toml.Settings | None = None) -> None:
        self.settings = self.Settings() if settings is None else settings

    @classmethod
    def serves(cls, kind: RequestKind) -> bool:
        """Whether it can do what a strategy asks for."""
        return kind in cls.order

    @classmethod
    def phases(cls, kind: RequestKind) -> tuple[str, ...]:
        """The phases in order; none for what it does not serve."""
        return cls.order.get(kind, ())

    @property
    def canonical_settings(self) -> bytes:
        """Its settings as `RoundContext` has them: everything that is agreed on is signed along."""
        values = self.settings.model_dump(mode="json")
        return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

    @abstractmethod
    def node(self, context: RoundContext, contribution: Contribution, host: Host) -> NodeHalf:
        """The node half of a sum, once training is done, or again after a restart if there is something in its memory.

        After a restart the contribution is empty: what was trained is gone. Raises `SecureFLError` where it cannot
        take part.
        """

    @abstractmethod
    def coordinator(self, context: RoundContext) -> CoordinatorHalf:
        """The coordinator half of a sum."""

    @abstractmethod
    def largest_upload(self, context: RoundContext) -> int:
        """The most bytes of bulk that any answer can need; more is refused before it is received."""

    @abstractmethod
    def explain(self, kind: RequestKind) -> tuple[str, ...]:
        """What each party learns, in sentences for a site operator."""

    @property
    def exceptions(self) -> tuple[str, ...]:
        """What a promise to sites does not hold for under these settings, by name: each site has to agree to each."""
        return ()

    def quorum(self, nodes: int, *, colluders: int, min_cohort: int) -> int:  # noqa: ARG002
        """How many of `nodes` have to stay to the end for anything to be opened: as many as an opened value needs."""
        return min_cohort

    def require_room(self, kind: RequestKind, *, nodes: int, bits: int) -> None:  # noqa: ARG002
        """Raise `OverflowInvariantError` if values of so many bits of so many nodes could overflow: 32 bits have room.

        The same for every protection that does not know better, so that one can take another's place.
        """
        FixedPoint(bits=bits, clip=1.0).require_room(contributors=nodes, ring_bits=32)

    def noise(self, context: RoundContext) -> int:  # noqa: ARG002
        """How far an opened total may be from the integers that went into it: not at all, unless overridden."""
        return 0
