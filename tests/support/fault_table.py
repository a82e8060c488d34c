"""The table of faults: which protection, phase and fault led to which end, and what was lost over all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.support.outcomes import Ending


@dataclass
class FaultTable:
    """Filled by the tests, printed at the end of the run."""

    columns: tuple[str, ...] = ()
    cells: dict[tuple[str, str], list[Ending]] = field(default_factory=dict)

    def add(self, row: str, column: str, endings: list[Ending]) -> None:
        """How every variant of one cell ended."""
        self.cells.setdefault((row, column), []).extend(endings)

    @property
    def lost(self) -> int:
        """Committed rounds that are gone, over every run."""
        return sum(ending.lost for endings in self.cells.values() for ending in endings)

    @property
    def committed(self) -> int:
        """Committed rounds, over every run."""
        return sum(ending.committed for endings in self.cells.values() for ending in endings)

    def lines(self) -> list[str]:
        """Rows and columns in the order they were given, as text."""
        rows = list(dict.fromkeys(row for row, _ in self.cells))
        columns = [column for column in self.columns if any((row, column) in self.cells for row in rows)]
        grid = [["", *columns], *([row, *(self._text(row, column) for column in columns)] for row in rows)]
        widths = [max(len(line[index]) for line in grid) for index in range(len(grid[0]))]
        runs = sum(map(len, self.cells.values()))
        return [
            *("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in grid),
            f"{runs} runs, {self.committed} rounds announced as committed",
            f"committed rounds lost: {self.lost}",
        ]

    def _text(self, row: str, column: str) -> str:
        endings = self.cells.get((row, column))
        return "–" if endings is None else " / ".join(dict.fromkeys(map(str, endings)))


TABLE = pytest.StashKey[FaultTable]()
