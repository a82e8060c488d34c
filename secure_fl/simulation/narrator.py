"""What a person is told while a study runs: what it is doing now, and a line for whatever has happened."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import Literal, TypeAlias

from secure_fl.events import (
    Answered,
    Event,
    Listening,
    NodeDied,
    PrivacyPlanned,
    Refused,
    RoundCommitted,
    RoundResumed,
    RoundStarted,
    RoundVoid,
    SatOut,
    SiteLeftOut,
    TurnBegun,
    Waiting,
    WaitingForHolders,
)
from secure_fl.results.record import RoundRecord
from secure_fl.results.wording import metrics_text
from secure_fl.rounds import RoundKind
from secure_fl.simulation.turn_progress import TurnsUnderWay, joined, merged, named

Tone: TypeAlias = Literal["", "yellow", "red"]

_SHOWN_SIT_OUTS = 3

_BEFORE_AND_AFTER = {
    RoundKind.DECLARE: "sites declare what they share",
    RoundKind.EVALUATE: "closing evaluation",
}


class Narrator(ABC):
    """Makes sentences of a coordinator's events. Where they are shown is its heirs' business."""

    def __init__(self, *, rounds: int, buffered: bool, by_sites: bool) -> None:
        """`buffered`: circles do not wait for each other; with `by_sites` nobody waits for any other site."""
        self._rounds = rounds
        self._sit_outs: Counter[str] = Counter()
        self._buffered = buffered
        self._turns = TurnsUnderWay() if buffered and not by_sites else None
        self._joining: set[str] | None = set() if by_sites else None  # whose work is in the flush under way
        self._unit = "version" if by_sites else "turn" if buffered else "round"

    @abstractmethod
    def _describe(self, text: str) -> None:
        """What the study is doing now."""

    @abstractmethod
    def _say(self, text: str, tone: Tone = "", /) -> None:
        """What has happened."""

    @abstractmethod
    def _advance(self, number: int) -> None:
        """So many rounds, or versions, are done."""

    def listen(self, event: Event) -> None:
        """Show one event."""
        match event:
            case Listening():
                self._describe("sites are connecting")
            case WaitingForHolders(missing=missing):
                self._describe(f"waiting for {missing} more sites to come back")
            case Waiting(ready=ready, roster=roster):
                self._describe(f"waiting for sites ({ready} of {roster})")
            case RoundStarted(kind=kind, round=number) if not (self._turns and kind is RoundKind.TRAIN):
                if self._turns:
                    self._turns.over()
                self._describe(_BEFORE_AND_AFTER.get(kind, f"{self._unit} {number}"))
                if self._joining is not None:
                    self._joining.clear()
            case TurnBegun() | Answered() if self._turns:
                self._turn(self._turns, event)
            case Answered(round=number, node=node) if self._joining is not None and number <= self._rounds:
                self._joining.add(node)
                self._describe(f"version {number}: {joined(len(self._joining))}")
            case SatOut():
                self._sat_out(event)
            case RoundCommitted(record=record):
                self._committed(record)
            case _:
                self._news(event)

    def _news(self, event: Event) -> None:
        """What a person wants to read, line by line."""
        match event:
            case PrivacyPlanned(text=text):
                self._say(text)
            case Refused(node=node, reason=reason):
                self._say(f"{node} refuses the study: {reason}", "red")
            case NodeDied(node=node, exit_code=code):
                self._say(f"{node} left with exit code {code}", "red")
            case RoundVoid() if self._turns:
                self._say(f"{self._turns.failed(event)}", "yellow")
            case RoundVoid(round=number, attempt=attempt, reason=reason):
                self._say(f"{self._unit} {number}, attempt {attempt} failed: {reason}", "yellow")
            case SiteLeftOut(round=number, node=node, what=what):
                self._say(f"left out: {node} {what} in round {number}", "red")
            case RoundResumed(round=number):
                self._say(f"resuming {self._unit} {number}")

    def _turn(self, turns: TurnsUnderWay, event: TurnBegun | Answered) -> None:
        if isinstance(event, TurnBegun):
            turns.begun(event)
        else:
            turns.answered(event)
        if text := str(turns):
            self._describe(text)

    def _sat_out(self, event: SatOut) -> None:
        """The first few of a kind: two hundred sites with the same trouble need not say so one by one."""
        self._sit_outs[event.reason] += 1
        if self._sit_outs[event.reason] <= _SHOWN_SIT_OUTS:
            self._say(f"{event.node} sits {self._unit} {event.round} out: {event.reason}", "yellow")
        elif self._sit_outs[event.reason] == _SHOWN_SIT_OUTS + 1:
            self._say(f"… and others: {event.reason}", "yellow")

    def _committed(self, record: RoundRecord) -> None:
        if record.kind is RoundKind.TRAIN:
            self._advance(record.number)
            if self._turns:
                self._turns.committed(record)
        self._say(describe_round(record, planned=self._rounds, buffered=self._buffered))


def describe_round(record: RoundRecord, *, planned: int, buffered: bool = False) -> str:
    """One line about a committed round."""
    dropped = sum(node.outcome in ("dropped", "sat out") for node in record.nodes)
    turns = [circle for circle in record.circles if circle.turn is not None and circle.opened]
    unit = "version" if buffered else "round"
    title = f"{unit} {record.number:>3}/{planned}" if record.kind is RoundKind.TRAIN else "final model"
    if record.came_to_nothing:
        return f"{title}  came to nothing; the next one begins from the same model"
    # A circle is merged as a whole, or not at all.
    who = merged(turns) if turns else f"cohort {len(record.cohort)}/{len(record.nodes)}  dropped {dropped}"
    # A round measures the model it starts from, so a training round's number is that of the round before.
    score = "mean accuracy" if record.mean_mse is None else "mean mse"
    value = record.mean_accuracy if record.mean_mse is None else record.mean_mse
    own = metrics_text(record.metrics)
    scores = ", ".join(filter(None, (f"{score} {value:.4f}" if value is not None else "", own)))
    bases = sorted({turn.base for turn in turns if turn.base is not None})
    when = f"of version {' and '.join(map(str, bases))}" if turns else f"after {unit} {record.number - 1}"
    measured = f"  {scores} ({when})" if scores else ""
    kept = f"  kept: {', '.join(record.blocks_kept)}" if record.blocks_kept else ""
    closed = [circle for circle in record.circles if not circle.opened]
    kept += "".join(
        f"  closed: circle of {circle.members[0]} … {circle.members[-1]}"
        if circle.turn is None
        else f"  dropped: turn {circle.turn} of {named(circle.members)}"
        for circle in closed
    )
    return (
        f"{title}  {who}  "
        f"↑ {human(record.bytes_up)} ↓ {human(record.bytes_down)}  {record.seconds:.1f} s{measured}{kept}"
    )


def human(count: float) -> str:
    """Bytes as a person says them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""
