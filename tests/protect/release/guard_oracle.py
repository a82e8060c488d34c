"""The guard's definitions by brute force, in fractions, sharing no code with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

Row = Sequence[int]
Vector = list[Fraction]


def orthogonal(rows: Sequence[Vector]) -> list[Vector]:
    """Gram–Schmidt without normalising; what is dependent drops out."""
    basis: list[Vector] = []
    for row in rows:
        rest = list(row)
        for b in basis:
            factor = dot(rest, b) / dot(b, b)
            rest = [x - factor * y for x, y in zip(rest, b, strict=True)]
        if any(rest):
            basis.append(rest)
    return basis


def dot(a: Vector, b: Vector) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


def explained_share(rows: Sequence[Vector], target: Vector) -> Fraction:
    """‖projection of the target on the span‖² / ‖target‖²."""
    return sum((dot(target, b) ** 2 / dot(b, b) for b in orthogonal(rows)), Fraction(0)) / dot(target, target)


def rank(rows: Sequence[Row], modulus: int | None = None) -> int:
    """By elimination, over Q or over F_q."""
    left: list[list[Fraction | int]] = [[Fraction(x) if modulus is None else x % modulus for x in row] for row in rows]
    found = 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((row for row in left if row[column]), None)
        if pivot is None:
            continue
        left.remove(pivot)
        found += 1
        inverse = 1 / Fraction(pivot[column]) if modulus is None else pow(int(pivot[column]), -1, modulus)
        reduced: list[list[Fraction | int]] = []
        for row in left:
            factor = row[column] * inverse
            new = [x - factor * y for x, y in zip(row, pivot, strict=True)]
            reduced.append(new if modulus is None else [int(x) % modulus for x in new])
        left = reduced
    return found


@dataclass(frozen=True)
class View:
    """One coalition, one honest node, and the rows seen on the honest columns."""

    coalition: tuple[int, ...]
    node: int
    honest: tuple[int, ...]
    rows: list[list[int]]

    @property
    def unit(self) -> list[int]:
        return [int(column == self.node) for column in self.honest]

    def leverage(self) -> Fraction:
        return explained_share([[Fraction(x) for x in row] for row in self.rows], [Fraction(x) for x in self.unit])

    def in_span(self, modulus: int | None = None) -> bool:
        return rank([*self.rows, self.unit], modulus) == rank(self.rows, modulus)


def views(rows: Sequence[Row], owners: Sequence[int | None], members: int) -> list[View]:
    """Every view of rows that are opened at `owners` (None: at everybody)."""
    nodes = len(rows[0])
    found = []
    for coalition in combinations(range(nodes), members):
        honest = tuple(column for column in range(nodes) if column not in coalition)
        seen = [
            [row[column] for column in honest]
            for row, owner in zip(rows, owners, strict=True)
            if owner is None or owner in coalition
        ]
        found += [View(coalition, node, honest, seen) for node in honest]
    return found


def supported(row: Row, owner: int | None, colluders: int) -> bool:
    """The rule about contributors, as it is written."""
    if owner is not None and not any(row):
        return True
    contributors = sum(1 for weight in row if weight)
    least = max(3, colluders + 2) if owner is None else max(4, colluders + 3)
    return contributors >= least and 2 * max(row) <= sum(row) and (owner is None or row[owner] > 0)
