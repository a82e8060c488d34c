"""What happens at a node, for the site's own eyes: its metrics, or a test. Nothing of this is sent anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from secure_fl.rounds import RoundKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRefused:
    """A study was offered that this site does not allow."""

    study_id: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A round's model is here."""

    study_id: str
    round: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Local training is over."""

    study_id: str
    round: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSent:
    """The coordinator acknowledged an answer."""

    study_id: str
    round: int
    phase: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDone:
    """This site answered a round to its end."""

    study_id: str
    round: int
    kind: RoundKind = RoundKind.TRAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class SatOut:
    """This site took no part in an attempt, or left it."""

    study_id: str
    round: int
    code: str


NodeEvent: TypeAlias = StudyRefused | Fetched | Trained | AnswerSent | RoundDone | SatOut
NodeListener: TypeAlias = Callable[[NodeEvent], None]


def ignore(event: NodeEvent) -> None:
    """A listener for nobody."""


def each(*listeners: NodeListener) -> NodeListener:
    """One listener that tells several."""

    def tell(event: NodeEvent) -> None:
        for listener in listeners:
            listener(event)

    return tell
