"""What a study leaves behind: one value that the progress display, the summary and the report all read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError

from secure_fl.errors import MalformedMessageError, SchemaError, StorageError
from secure_fl.files import write_atomically
from secure_fl.plain_text import require_plain
from secure_fl.rounds import RoundKind

RECORD_VERSION = 1

# "waited": it was there and ready, and others of its circle were not.
Outcome: TypeAlias = Literal["took part", "waited", "dropped", "sat out", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRound:
    """One node's part in one round, as far as the study's [metrics] share lets it be seen."""

    name: str
    outcome: Outcome | str  # another word is a newer coordinator's, and shown as it is
    reason: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    uploaded: float | None = None  # when its upload was here, by the coordinator's clock (seconds since 1970)
    samples: int | None = None
    # Measured on the model as received in this round, before training: the fruit of the round before.
    accuracy: float | None = None
    loss: float | None = None
    mse: float | None = None
    global_accuracy: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)  # that the task declares, on this site's rows
    sums: Mapping[str, Sequence[int]] = field(default_factory=dict)  # behind those that only the task's code can value


@dataclass(frozen=True, slots=True, kw_only=True)
class CircleRound:
    """One circle in one round: its sum was opened, or the round went on without it.

    Where circles do not wait for each other: a turn that was merged into this version, or (not `opened`) one that came
    to nothing since the version before.
    """

    members: tuple[str, ...]
    opened: bool
    attempts: int = 1
    reason: str = ""  # an error code: why its last attempt failed
    # Where circles do not wait for each other: which turn of its own, from which version, and how many came since.
    turn: int | None = None
    base: int | None = None
    staleness: int | None = None
    seconds: float | None = None  # from the turn's beginning until it was opened
    began: float | None = None  # the attempt that was opened, by the coordinator's clock
    asked: tuple[str, ...] = ()  # the blocks that its sites sent; none: all that are shared


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One committed round; number 0 never occurs, `rounds + 1` is the closing evaluation."""

    number: int
    kind: RoundKind
    attempts: int
    seconds: float
    nodes: tuple[NodeRound, ...]
    committed: float | None = None  # when, by the coordinator's clock
    combinations: int = 0  # how many recipients were served
    blocks_kept: tuple[str, ...] = ()  # below their minimum cohort, so never opened
    circles: tuple[CircleRound, ...] = ()
    # Means over sites: each counts the same, however many rows it has.
    mean_accuracy: float | None = None
    mean_loss: float | None = None
    mean_mse: float | None = None
    global_accuracy: float | None = None
    # That the task declares, on the test rows of all sites together; None where some site did not know its part.
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    sums: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def cohort(self) -> tuple[str, ...]:
        """Who took part."""
        return tuple(node.name for node in self.nodes if node.outcome == "took part")

    @property
    def came_to_nothing(self) -> bool:
        """Whether nobody's update was opened: the next round began from the same model."""
        return self.kind is RoundKind.TRAIN and not self.cohort

    @property
    def bytes_up(self) -> int:
        """Bytes from the nodes."""
        return sum(node.bytes_up for node in self.nodes)

    @property
    def bytes_down(self) -> int:
        """Bytes to the nodes."""
        return sum(node.bytes_down for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A site that the study went on without."""

    node: str
    round: int  # in which it was found out; it may be in that round's sum
    what: str  # it did

    def __str__(self) -> str:
        return f"{self.node} {self.what} in round {self.round}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """A study so far."""

    study: str
    study_id: str
    task: str
    strategy: str
    protection: str
    planned_rounds: int
    roster: tuple[str, ...]
    outcome: Literal["running", "finished", "aborted"] | str = "running"
    reason: str = ""
    parameters: int = 0
    shared_parameters: int = 0
    blocks: Mapping[str, int] = field(default_factory=dict)  # those that are shared, and how many parameters each has
    combinations_opened: int = 0
    combinations_possible: int | None = None  # one for every site in every round; None for a study of sums
    rounds: tuple[RoundRecord, ...] = field(default=())
    left_out: tuple[LeftOut, ...] = ()
    settings: str = ""  # the study in canonical form, whose hash is `study_id`
    # Where sites declare what they share: the blocks that all sites of some circle declared. Otherwise None.
    blocks_declared: tuple[str, ...] | None = None
    # Who is opened together, also where nothing was yet; none where it is whoever is there, or not known yet.
    circles: tuple[tuple[str, ...], ...] = ()
    partial: bool = False  # whether sites share as much of the model as they choose
    version: int = RECORD_VERSION

    @property
    def combined_nothing(self) -> bool:
        """Whether sites were to be combined, and never were: each of them has trained alone."""
        return bool(self.combinations_possible) and not self.combinations_opened

    @property
    def blocks_never_opened(self) -> tuple[str, ...]:
        """Blocks that every training round kept closed: they are still what they were at the start."""
        training = [set(entry.blocks_kept) for entry in self.rounds if entry.kind is RoundKind.TRAIN]
        return tuple(sorted(set.intersection(*training))) if training else ()

    @property
    def blocks_missing(self) -> tuple[str, ...]:
        """Of those, the ones that should have been opened: nobody may have chosen a block that sites may leave out."""
        if self.partial:
            return tuple(name for name in self.blocks_never_opened if name in (self.blocks_declared or ()))
        return self.blocks_never_opened

    def save(self, path: Path) -> None:
        """Write as JSON, atomically."""
        write_atomically(path, json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. Raises `StorageError` for what it did not."""
        try:
            return cls.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, AttributeError, MalformedMessageError) as error:
            raise StorageError(f"{path}: cannot be read ({type(error).__name__})") from error

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from decoded JSON.

        Raises `SchemaError` for what a newer version wrote, `MalformedMessageError` for what is no record: a
        coordinator may have sent anything, and a page is made of it.
        """
        if isinstance(version := values.get("version", RECORD_VERSION), int) and version > RECORD_VERSION:
            raise SchemaError("the study's record was written by a newer version")
        return _validated(cls, values)


def round_from_json(values: Mapping[str, Any]) -> RoundRecord:
    """One round from decoded JSON. Raises `MalformedMessageError` for what is none."""
    return _validated(RoundRecord, values)


T = TypeVar("T")
_ADAPTERS: dict[type, TypeAdapter[Any]] = {}  # made when they are first needed


def _validated(kind: type[T], values: Mapping[str, Any]) -> T:
    require_plain(values, what="the study's record")
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    try:
        made: T = _ADAPTERS[kind].validate_python(values)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise MalformedMessageError(f"the study's record is none: {where}: {first['msg']}") from None
    return made
