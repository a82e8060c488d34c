"""What a node half may remember beyond the life of its process: of an attempt, and of what earlier ones opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

CombinationRows: TypeAlias = Mapping[str, Mapping[str, int]]  # by recipient, whom it is combined with and how much


class Memory(Protocol):
    """One attempt's place on the node's own disk. It is erased when the attempt is over, but for what was opened."""

    def load(self) -> bytes | None:
        """What was saved last; None in an attempt that is new."""
        ...

    def save(self, content: bytes) -> None:
        """Durable when it returns."""
        ...

    def earlier(self) -> Sequence[CombinationRows]:
        """What other attempts of the study opened here, in their order."""
        ...

    def opened(self, rows: CombinationRows) -> None:
        """This attempt opens these rows: for as long as the study lasts, and durable when it returns."""
        ...


class ProcessMemory:
    """Remembers as long as the process lives: for simulations and tests."""

    def __init__(self, earlier: Sequence[CombinationRows] = ()) -> None:
        self._content: bytes | None = None
        self._earlier = earlier
        self.rows: CombinationRows = {}

    def load(self) -> bytes | None:
        """What was saved last."""
        return self._content

    def save(self, content: bytes) -> None:
        """Keep it."""
        self._content = content

    def earlier(self) -> Sequence[CombinationRows]:
        """What it was told."""
        return self._earlier

    def opened(self, rows: CombinationRows) -> None:
        """Keep them."""
        self.rows = rows
