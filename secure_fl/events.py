"""What happens at a coordinator and in a simulation, for whoever watches: a progress display, metrics, a test.

Every event is a frozen value; a listener takes one and returns nothing. Between processes an event is one line of
JSON. What happens at a node stays there and has events of its own (`node.events`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self, TypeAlias, get_args

from secure_fl.errors import SecureFLError
from secure_fl.results.record import RoundRecord, round_from_json
from secure_fl.rounds import RoundKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """The coordinator serves."""

    name: ClassVar[str] = "listening"
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRefused:
    """A call was answered with an error."""

    name: ClassVar[str] = "call-refused"
    method: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A round cannot begin yet: too few sites are ready."""

    name: ClassVar[str] = "waiting"
    study_id: str
    ready: int
    roster: int
    minimum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyPlanned:
    """Before the first round of a simulation: what it costs in privacy, in sentences."""

    name: ClassVar[str] = "privacy-planned"
    study_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStarted:
    """An attempt at a round was announced."""

    name: ClassVar[str] = "round-started"
    study_id: str
    round: int
    attempt: int
    kind: RoundKind
    invited: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBegun:
    """Where circles do not wait for each other: one is in a turn of its own now, for the first time or again."""

    name: ClassVar[str] = "turn-begun"
    study_id: str
    turn: int  # among the circle's own
    attempt: int
    version: int  # that it trains from
    sites: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResumed:
    """A restarted coordinator goes on with an attempt."""

    name: ClassVar[str] = "round-resumed"
    study_id: str
    round: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A site's answer to a phase was accepted."""

    name: ClassVar[str] = "answered"
    study_id: str
    round: int
    phase: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SatOut:
    """A site does not take part in an attempt, and says by which kind of reason."""

    name: ClassVar[str] = "sat-out"
    study_id: str
    round: int
    node: str
    reason: str  # an error code


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A site's policy does not allow the study."""

    name: ClassVar[str] = "refused"
    study_id: str
    node: str
    reason: str  # an error code


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingForHolders:
    """After its deadline a phase keeps waiting, since too few key holders have answered; uploads stay usable."""

    name: ClassVar[str] = "waiting-for-holders"
    study_id: str
    phase: str
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseClosed:
    """A phase is over."""

    name: ClassVar[str] = "phase-closed"
    study_id: str
    phase: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCommitted:
    """A round's result is the study's current state."""

    name: ClassVar[str] = "round-committed"
    study_id: str
    record: RoundRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundVoid:
    """An attempt came to nothing."""

    name: ClassVar[str] = "round-void"
    study_id: str
    round: int
    attempt: int
    reason: str  # an error code


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLeftOut:
    """A site was found to cheat: the study goes on without it."""

    name: ClassVar[str] = "site-left-out"
    study_id: str
    round: int
    node: str
    what: str  # it did


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyEnded:
    """A study is finished or aborted."""

    name: ClassVar[str] = "study-ended"
    study_id: str
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """What went wrong, as an error says it."""

    code: str
    message: str
    hint: str

    @classmethod
    def of(cls, error: SecureFLError, **fields: str) -> Self:
        """The event about `error`."""
        return cls(code=error.code, message=error.message, hint=error.hint, **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPaused(_Failure):
    """A study waits for its disk."""

    name: ClassVar[str] = "study-paused"
    study_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFailed(_Failure):
    """A study does not go on."""

    name: ClassVar[str] = "study-failed"
    study_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorFailed(_Failure):
    """The coordinator does not serve any more, or never did."""

    name: ClassVar[str] = "coordinator-failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDied:
    """In a simulation: a node's process ended by itself."""

    name: ClassVar[str] = "node-died"
    node: str
    exit_code: int


Event: TypeAlias = (
    Listening
    | CallRefused
    | Waiting
    | RoundStarted
    | TurnBegun
    | RoundResumed
    | Answered
    | PrivacyPlanned
    | SatOut
    | Refused
    | WaitingForHolders
    | PhaseClosed
    | RoundCommitted
    | RoundVoid
    | SiteLeftOut
    | StudyEnded
    | StudyPaused
    | StudyFailed
    | CoordinatorFailed
    | NodeDied
)
Listener: TypeAlias = Callable[[Event], None]

_KINDS: Mapping[str, type[Event]] = {kind.name: kind for kind in get_args(Event)}


def to_json(event: Event) -> str:
    """One event as one line."""
    return json.dumps({"event": event.name, **asdict(event)})


def from_json(line: str | bytes) -> Event:
    """The inverse."""
    fields: dict[str, Any] = json.loads(line)
    kind = _KINDS[fields.pop("event")]
    if kind is RoundCommitted:
        fields["record"] = round_from_json(fields["record"])
    if kind is TurnBegun:
        fields["sites"] = tuple(fields["sites"])
    if kind is RoundStarted:
        fields["kind"] = RoundKind(fields["kind"])
    return kind(**fields)


def print_json_lines(event: Event) -> None:
    """A listener that writes one JSON object per line to standard output."""
    sys.stdout.write(to_json(event) + "\n")
    sys.stdout.flush()


def ignore(event: Event) -> None:
    """A listener for nobody."""


def each(*listeners: Listener) -> Listener:
    """One listener that tells several."""

    def tell(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return tell
