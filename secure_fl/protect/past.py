"""A site's memory of the sums it was part of, over all studies: what a protection asks of the node it runs in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Row: TypeAlias = tuple[str, ...]  # sites whose values are in a sum, sorted

# A site that agrees may be shown by the difference of two sums: it is not counted among those to protect.
CHANGING_COHORTS = "changing-cohorts"


@dataclass(frozen=True, slots=True)
class Known:
    """What a site remembers: rows that span all it was part of, and who has agreed to be shown by them."""

    rows: tuple[Row, ...] = ()
    agreed: frozenset[str] = frozenset()


class Past(Protocol):
    """A site's memory of the sums it was part of, over all studies."""

    def known(self) -> Known:
        """Everything so far. Raises `StorageError`."""
        ...

    def add(self, row: Row, agreed: Iterable[str]) -> None:
        """A sum that is about to be opened, and who agreed to what it shows. Durable when it returns."""
        ...


class NoPast:
    """Of a site that has no disk: tests and measurements."""

    def known(self) -> Known:
        """Nothing."""
        return Known()

    def add(self, row: Row, agreed: Iterable[str]) -> None:
        """Forgotten."""
