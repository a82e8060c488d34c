"""One attempt at one round as an explicit state machine. No I/O, no clock: the rounds drive it.

begin ─► collecting(phase 1) ─close─► collecting(phase 2) ─close─► … ─close─► opened
            │ accept / leave                                          │
            └── close raises CohortTooSmallError ─► the attempt is void ┘
"""

from __future__ import annotations

from collections.abc import Mapping

from secure_fl.errors import LateMessageError
from secure_fl.protect.base import Ask, Bulk, Message, Opened, Protection, RoundContext


class RoundMachine:
    """Who is asked what now, who has answered, who has gone."""

    def __init__(self, protection: Protection, context: RoundContext) -> None:
        self.context = context
        self.phase = ""
        self.asked: Mapping[str, Message] = {}
        self.answered: set[str] = set()
        self.left: dict[str, str] = {}  # node → error code, over all phases
        self._half = protection.coordinator(context)

    def begin(self) -> None:
        """Enter the first phase."""
        self._enter(self._half.begin())

    def accept(self, node: str, phase: str, message: Message, bulk: Bulk) -> None:
        """Take one answer, or raise and stay as before."""
        if phase != self.phase or node not in self.waiting:
            raise LateMessageError(f"{node}: phase {phase!r} is over or was not asked of it")
        self._half.accept(node, message, bulk)
        self.answered.add(node)

    def leave(self, node: str, reason: str) -> None:
        """`node` will not answer this phase."""
        if node in self.waiting:
            self.left[node] = reason

    @property
    def waiting(self) -> frozenset[str]:
        """Who may still answer."""
        return frozenset(self.asked) - self.answered - self.left.keys()

    def close(self) -> Opened | None:
        """End the phase with whoever answered: the next phase is entered, or the result returned."""
        for node in self.waiting:
            self.left[node] = "LateMessage"
        result = self._half.close()
        if isinstance(result, Ask):
            self._enter(result)
            return None
        self.phase, self.asked = "", {}
        return result

    def _enter(self, ask: Ask) -> None:
        self.phase = ask.phase
        self.asked = ask.messages
        self.answered = set()
