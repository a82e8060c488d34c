"""Tables: a pandas DataFrame, and where pandas is not installed a list of dicts that shows itself in a notebook.

The list takes the three things that a reader of a table does first as pandas does them, so that the same cell works
with either: `table[["round", "accuracy"]]`, `table.head()` and `table.tail()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, TypeAlias

from secure_fl.results.history import Row, columns_of

# A pandas DataFrame or `Rows`. For a type checker it is either, since only one of them is there.
Table: TypeAlias = Any

_CELL_CHARS = 60


class Rows(list[Row]):
    """Rows of one table, with keys that not every row has to have."""

    def __getitem__(self, wanted: Any) -> Any:
        """A row by its place, rows by a slice, or some columns of all rows by a list of their names."""
        if isinstance(wanted, list):
            known = columns_of(self, ())
            if self and (unknown := [name for name in wanted if name not in known]):
                raise KeyError(f"{unknown} not among the columns {list(known)}")
            return Rows({name: row.get(name) for name in wanted} for row in self)
        found = super().__getitem__(wanted)
        return Rows(found) if isinstance(wanted, slice) else found

    def head(self, rows: int = 5) -> Rows:
        """The first rows."""
        return Rows(list(self)[:rows])

    def tail(self, rows: int = 5) -> Rows:
        """The last rows."""
        return Rows(list(self)[-rows:] if rows > 0 else [])

    def _repr_html_(self) -> str:
        columns = columns_of(self, ())
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        body = "".join(f"<tr>{_cells(row, columns)}</tr>" for row in self)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def table(rows: list[Row], first: tuple[str, ...] = ()) -> Table:
    """The rows as whichever of the two there is; the columns in `first` also where no row has them."""
    try:
        import pandas
    except ImportError:
        return Rows(rows)
    return pandas.DataFrame(rows, columns=list(columns_of(rows, first)))


def _cells(row: Row, columns: Sequence[str]) -> str:
    return "".join(f"<td>{escape(_text(row.get(name)))}</td>" for name in columns)


def _text(value: object) -> str:
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _CELL_CHARS else f"{text[:_CELL_CHARS]}…"
