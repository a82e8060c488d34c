"""A site's memory of the sums it was part of, over all studies: what a protection asks of the node it runs in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Row: TypeAlias = tuple[str, ...]  # sites whose values are in a sum, sorted

# A site that agrees may be shown by the difference of two sums: it is not counted among those who hide others.
CHANGING_COHORTS = "changing-cohorts"
# For `study show`, which leaves it out where the exception above says the same.
ROUND_BY_ROUND = (
    "This holds round by round. If a site joins or leaves between two rounds, the difference of the two results tells "
    "something about that site."
)


@dataclass(frozen=True, slots=True)
class Known:
    """What a site remembers: rows that span all it was part of, who agreed to be shown by them, how sites weighed."""

    rows: tuple[Row, ...] = ()
    agreed: frozenset[str] = frozenset()
    weighting: str = ""  # of the sums so far; empty before the first
    combined: frozenset[Row] = frozenset()  # with whom it was combined: each attempt's sites


class Past(Protocol):
    """A site's memory of the sums it was part of, over all studies."""

    def known(self) -> Known:
        """Everything so far. Raises `StorageError`."""
        ...

    def decide(self, judge: Callable[[Known], Known]) -> None:
        """Replace what is known by what `judge` makes of it, or let it raise and keep what is known.

        One decision at a time, over all studies of the node. Durable when it returns.
        """
        ...


class NoPast:
    """Of a site that has no disk: tests and measurements."""

    def known(self) -> Known:
        """Nothing."""
        return Known()

    def decide(self, judge: Callable[[Known], Known]) -> None:
        """Judged, and forgotten."""
        judge(Known())
