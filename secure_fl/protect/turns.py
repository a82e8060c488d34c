"""A node half that goes through its phases once, in order, and forwards only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

from secure_fl.errors import ProtectionError
from secure_fl.protect.contract import Message

Act: TypeAlias = Callable[..., Message]


class InTurn(ABC):
    """What `NodeHalf` asks for, where every phase asks every node."""

    def __init__(self, phases: Sequence[str]) -> None:
        # Unbound: a half that refers to itself would live, with its update, until the garbage collector comes by.
        self._todo: list[tuple[str, Act]] = list(zip(phases, self._acts(), strict=True))

    @classmethod
    @abstractmethod
    def _acts(cls) -> Sequence[Act]:
        """What it does in each phase, in order."""

    def answer(self, phase: str, message: Message) -> Message:
        """Answer the next phase; a second request for a phase, or one out of turn, gets nothing."""
        if not self._todo or self._todo[0][0] != phase:
            raise ProtectionError(f"phase {phase!r} is not the next one")
        _, act = self._todo.pop(0)  # Before it acts: a phase that failed is not tried again on other terms.
        try:
            return act(self, message)
        except BaseException:
            self._todo.clear()
            raise
