"""One attempt at one round as an explicit state machine. No I/O, no clock: the rounds drive it.

    begin ─► collecting(phase 1) ─close─► collecting(phase 2) ─close─► … ─close─► opened
                │ accept / leave                                          │
                └── close raises CohortTooSmallError ─► the attempt is void ┘

`accept` and `close` may run in a thread while the event loop looks: a phase is one value that is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from secure_fl.errors import LateMessageError
from secure_fl.protect.combining import OpeningAsk, coordinator_half
from secure_fl.protect.contract import Ask, Bulk, Message, Opened, Protection, RoundContext
from secure_fl.protect.release.history import CombinationRows, OpenedRow

STILL_TRAINING = "StillTraining"  # no error: its work enters a later flush


@dataclass(frozen=True, slots=True)
class _Collecting:
    phase: str = ""
    asked: Mapping[str, Message] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    opens: CombinationRows = field(default_factory=dict)


class RoundMachine:
    """Who is asked what now, who has answered, who has gone."""

    def __init__(self, protection: Protection, context: RoundContext, earlier: Sequence[OpenedRow] = ()) -> None:
        self.context = context
        self.left: dict[str, str] = {}  # node → error code, over all phases
        self._half = coordinator_half(protection, context, earlier)
        self._now = _Collecting()
        self._entering = ""
        # Where sites join at their own pace, whoever is not done when the first phase ends joins a later attempt.
        self._joins_later = context.staleness is not None

    @property
    def phase(self) -> str:
        """The phase that is being collected; empty before the first and after the last."""
        return self._now.phase

    @property
    def asked(self) -> Mapping[str, Message]:
        """What everybody is asked in this phase."""
        return self._now.asked

    @property
    def opens(self) -> CombinationRows:
        """The combinations that answers to this phase open."""
        return self._now.opens

    @property
    def waiting(self) -> frozenset[str]:
        """Who may still answer."""
        now = self._now
        return frozenset(now.asked) - now.answered - self.left.keys()

    @property
    def answered(self) -> int:
        """How many have answered this phase."""
        return len(self._now.answered)

    @property
    def lacking(self) -> int:
        """How many more have to answer before anything can be opened, as far as one knows in this phase."""
        return self._half.missing

    @property
    def missing(self) -> int:
        """How many answers are worth waiting for beyond any deadline: none, where too few can come yet."""
        now, need = self._now, self._half.missing
        silent = now.asked.keys() - now.answered
        may_come = sum(self.left.get(node, "NotConnected") == "NotConnected" for node in silent)
        return need if need <= may_come else 0

    def readmit(self, node: str) -> bool:
        """Ask `node` again, which had vanished from this phase; whether there was anything to ask."""
        now = self._now
        if node not in now.asked or node in now.answered or self.left.get(node) != "NotConnected":
            return False
        del self.left[node]
        return True

    def question(self, node: str) -> tuple[str, Message] | None:
        """What `node` is being asked, if it may still answer."""
        now = self._now
        if node not in now.asked or node in now.answered or node in self.left:
            return None
        return now.phase, now.asked[node]

    def begin(self) -> None:
        """Enter the first phase."""
        self._enter(self._half.begin())

    def accept(self, node: str, phase: str, message: Message, bulk: Bulk) -> None:
        """Take one answer, or raise and stay as before."""
        if phase != self.phase or node not in self.waiting:
            raise LateMessageError(f"{node}: phase {phase!r} is over or was not asked of it")
        self._entering = node  # in a thread, while the loop may find that it is gone: its answer counts all the same
        try:
            self._half.accept(node, message, bulk)
            self._now.answered.add(node)
        finally:
            self._entering = ""

    def leave(self, node: str, reason: str) -> None:
        """`node` will not answer this phase."""
        if node in self.waiting and node != self._entering:
            self.left[node] = reason

    def close(self) -> Opened | None:
        """End the phase with whoever answered: the next phase is entered, or the result returned."""
        late = STILL_TRAINING if self._joins_later else "LateMessage"
        for node in self.waiting:
            self.left[node] = late
        self._joins_later = False
        result = self._half.close()
        if isinstance(result, Ask):
            self._enter(result)
            return None
        self._now = _Collecting()
        return result

    def _enter(self, ask: Ask) -> None:
        opens = ask.opens if isinstance(ask, OpeningAsk) else {}
        self._now = _Collecting(ask.phase, ask.messages, opens=opens)
