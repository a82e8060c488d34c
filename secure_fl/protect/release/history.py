"""What a study has opened as combinations so far, and what a node half may remember beyond the life of its process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, TypeAlias

CombinationRows: TypeAlias = Mapping[str, Mapping[str, int]]  # by recipient, whom it is combined with and how much
OpenedRow: TypeAlias = tuple[str, Mapping[str, int]]  # one of them


class History(Protocol):
    """What one node has opened in a study. It lasts as long as the study does."""

    def earlier(self) -> Sequence[OpenedRow]:
        """What this node has opened so far, each row once. Raises `StorageError`."""
        ...

    def opened(self, rows: CombinationRows) -> None:
        """Add what it opens now: durable when it returns, before anything is said. Raises `StorageError`."""
        ...


class ProcessMemory:
    """A memory of an attempt, a history and a count that last as long as the process: for measurements and tests."""

    def __init__(self, earlier: Sequence[OpenedRow] = ()) -> None:
        self._content: bytes | None = None
        self._earlier = list(earlier)
        self.compared: Counter[str] = Counter()

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

    def count(self, peers: Collection[str]) -> None:
        """Without a limit."""
        self.compared.update(peers)


def new_rows(rows: CombinationRows, earlier: Sequence[OpenedRow]) -> list[OpenedRow]:
    """Those that were never opened before."""
    return [(recipient, dict(row)) for recipient, row in rows.items() if (recipient, row) not in earlier]
