"""Names of phases, and a node half that goes through its phases once, forwards only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from secure_fl.errors import ProtectionError
from secure_fl.protect.contract import Message

ADVERTISE, UPLOAD, SCORE, ROW, OPEN, DELIVER = "advertise", "upload", "score", "row", "open", "deliver"


class Forwards:
    """What `NodeHalf` asks for, where some phases ask some nodes only."""

    def __init__(self, phases: Sequence[str], acts: Sequence[Callable[[Message], Message]]) -> None:
        self._todo = dict(zip(phases, acts, strict=True))

    def answer(self, phase: str, message: Message) -> Message:
        """Answer a phase that is still to come. Those before it, left out or not, are over."""
        if phase not in self._todo:
            raise ProtectionError(f"phase {phase!r} is not the next one")
        act = self._todo[phase]
        phases = list(self._todo)
        for over in phases[: phases.index(phase) + 1]:
            del self._todo[over]
        return act(message)
