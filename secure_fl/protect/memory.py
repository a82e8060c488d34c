"""What a node half may remember of an attempt beyond the life of its process."""

from __future__ import annotations

from typing import Protocol


class Memory(Protocol):
    """One attempt's place on the node's own disk. It is erased when the attempt is over."""

    def load(self) -> bytes | None:
        """What was saved last; None in an attempt that is new."""
        ...

    def save(self, content: bytes) -> None:
        """Durable when it returns."""
        ...


class ProcessMemory:
    """Remembers as long as the process lives: for simulations and tests."""

    def __init__(self) -> None:
        self._content: bytes | None = None

    def load(self) -> bytes | None:
        """What was saved last."""
        return self._content

    def save(self, content: bytes) -> None:
        """Keep it."""
        self._content = content
