"""Who is behind an opened value, and how much each may count. The same minima for every protection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from secure_fl.aggregation import RequestKind
from secure_fl.encoding.weights import WEIGHT_UNITS, weight_floor
from secure_fl.errors import CohortTooSmallError, ProtectionError
from secure_fl.protect.contract import RoundContext


def smallest_cohort(kind: RequestKind, colluders: int) -> int:
    """The least number of contributors that protects one of them from the others.

    A sum of n nodes, c of which tell the coordinator their part, hides n − c honest ones behind each other: two at
    the very least. A combination also reveals the recipient's own part to the recipient.
    """
    return max(3, colluders + 2) if kind is RequestKind.SUM else max(4, colluders + 3)


def holders(declared: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Per block, the nodes that declared it, sorted."""
    cohorts: dict[str, list[str]] = {}
    for node in sorted(declared):
        for block in declared[node]:
            cohorts.setdefault(block, []).append(node)
    return {block: tuple(nodes) for block, nodes in cohorts.items()}


def require_cohort(nodes: Iterable[str], minimum: int, *, what: str = "round") -> None:
    """Raise `CohortTooSmallError` unless at least `minimum` nodes are there."""
    have = len(set(nodes))
    if have < minimum:
        raise CohortTooSmallError(have=have, need=minimum, what=what)


def require_whole(context: RoundContext, nodes: Iterable[str]) -> None:
    """Raise `CohortTooSmallError` unless everybody invited is there, where only a whole circle may be opened."""
    there = set(nodes)
    if context.whole and there != set(context.invited):
        raise CohortTooSmallError(have=len(there), need=len(context.invited), what="circle")


def require_weight(context: RoundContext, weight: int, *, contributors: int = 1) -> None:
    """Raise `ProtectionError` unless so many nodes can weigh that much together: one below the floor sent nonsense.

    A weight below the floor would let another node stand out in the sum.
    """
    floor = weight_floor(context.min_cohort, context.colluders)
    if not contributors * floor <= weight <= contributors * WEIGHT_UNITS:
        raise ProtectionError("the weight is out of range: a node sent nonsense")
