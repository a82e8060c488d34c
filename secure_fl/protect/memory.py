"""What a node half may remember beyond the life of its process: of an attempt, and of what a study opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

CombinationRows: TypeAlias = Mapping[str, Mapping[str, int]]  # by recipient, whom it is combined with and how much
OpenedRow: TypeAlias = tuple[str, Mapping[str, int]]  # one of them


class Memory(Protocol):
    """One attempt's place on the node's own disk. It is erased when the attempt is over, but for what was opened."""

    def load(self) -> bytes | None:
        """What was saved last; None in an attempt that is new."""
        ...

    def save(self, content: bytes) -> None:
        """Durable when it returns."""
        ...

    def earlier(self) -> Sequence[OpenedRow]:
        """What this node has opened in the study, each row once."""
        ...

    def opened(self, rows: CombinationRows) -> None:
        """Add what it opens now: for as long as the study lasts, and durable when it returns."""
        ...


class ProcessMemory:
    """Remembers as long as the process lives: for simulations and tests."""

    def __init__(self, earlier: Sequence[OpenedRow] = ()) -> None:
        self._content: bytes | None = None
        self._earlier = list(earlier)

    def load(self) -> bytes | None:
        """What was saved last."""
        return self._content

    def save(self, content: bytes) -> None:
        """Keep it."""
        self._content = content

    def earlier(self) -> Sequence[OpenedRow]:
        """What it was told, and what was added."""
        return self._earlier

    def opened(self, rows: CombinationRows) -> None:
        """Keep them."""
        self._earlier += new_rows(rows, self._earlier)


def new_rows(rows: CombinationRows, earlier: Sequence[OpenedRow]) -> list[OpenedRow]:
    """Those that were never opened before."""
    return [(recipient, dict(row)) for recipient, row in rows.items() if (recipient, row) not in earlier]
