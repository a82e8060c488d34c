"""What the guard is handed: rows of weights, whom each is opened at, and who may work together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, combinations_with_replacement
from typing import Literal, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from secure_fl.errors import ProtectionError, ReleaseRefusedError
from secure_fl.protect.release.exact_algebra import Matrix

Node: TypeAlias = int | str
OpenedAt: TypeAlias = Literal["recipients", "coordinator"]
Coalition: TypeAlias = tuple[int, ...]

LARGEST_WEIGHT = 1 << 24
MOST_NODES = 1 << 12  # with the weights' bound, every entry of W·Wᵀ fits 63 bits
EVERYBODY = -1


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What was opened at one time; see `check_release` for the fields."""

    weights: npt.ArrayLike
    opened_at: OpenedAt
    recipients: Sequence[Node] | None = None
    public_rows: npt.ArrayLike | None = None


@dataclass(frozen=True)
class Rows:
    """Rows, and whom each is opened to: a column, or everybody."""

    weights: Matrix
    owners: Matrix

    @property
    def nodes(self) -> int:
        """How many columns there are."""
        return int(self.weights.shape[1])

    @property
    def all_public(self) -> bool:
        """Whether everybody reads every row."""
        return bool((self.owners == EVERYBODY).all())

    def seen_by(self, coalition: Coalition) -> tuple[Matrix, Matrix]:
        """The rows that a coalition sees, on the honest columns; those columns."""
        honest = np.delete(np.arange(self.nodes), coalition)
        seen = (self.owners == EVERYBODY) | np.isin(self.owners, coalition)
        return self.weights[np.ix_(seen, honest)], honest


# --- what was handed in -----------------------------------------------------------------------------------------


def decimal(value: float | Fraction | str, what: str) -> Fraction:
    try:
        number = value if isinstance(value, Fraction) else Fraction(str(value))
    except ValueError:
        raise ProtectionError(f"{what} is not a number") from None
    if number < 0:
        raise ProtectionError(f"{what} is negative")
    return number


def matrix(values: npt.ArrayLike, nodes: int | None) -> Matrix:
    """A matrix of integers of a size that the arithmetic is good for, or `ProtectionError`."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise ProtectionError("the weights are not a matrix") from None
    if array.ndim != 2 or array.shape[1] == 0 or (nodes is not None and array.shape[1] != nodes):
        raise ProtectionError("the weights are not a matrix with a column per node")
    if array.shape[1] > MOST_NODES:
        raise ProtectionError(f"more than {MOST_NODES} nodes")
    whole = array.dtype.kind in "iu" or (
        array.dtype.kind == "O" and all(isinstance(value, int | np.integer) for value in array.ravel())
    )
    if not whole and array.size:
        raise ProtectionError("the weights are not integers")
    if array.size and (array.max() > LARGEST_WEIGHT or array.min() < -LARGEST_WEIGHT):
        raise ProtectionError(f"a weight is larger than {LARGEST_WEIGHT}")
    return array.astype(np.int64)


def checked_names(names: Sequence[str] | None, nodes: int) -> tuple[str, ...] | None:
    if names is not None and (len(names) != nodes or len(set(names)) != nodes):
        raise ProtectionError("the names do not fit the columns")
    return None if names is None else tuple(names)


def _owners(opening: Opening, count: int, nodes: int, names: tuple[str, ...] | None) -> Matrix:
    """The column that each row is opened at."""
    if opening.opened_at == "coordinator":
        if opening.recipients is not None:
            raise ProtectionError("sums are opened at the coordinator and have no recipients")
        return np.full(count, EVERYBODY, dtype=np.int64)
    if opening.opened_at != "recipients":
        raise ProtectionError("rows are opened at the recipients or at the coordinator")
    if opening.recipients is None:
        if count != nodes:
            raise ProtectionError("the matrix is not square: say which node each row is opened at")
        return np.arange(nodes, dtype=np.int64)
    known: dict[Node, int] = {column: column for column in range(nodes)}
    known |= {name: column for column, name in enumerate(names or ())}
    owners = [known.get(recipient, EVERYBODY) for recipient in opening.recipients]
    if len(owners) != count or EVERYBODY in owners:
        raise ProtectionError("the recipients do not fit the rows and columns")
    return np.array(owners, dtype=np.int64)


def stack(openings: Sequence[Opening], speaker: Speaker, nodes: int) -> Rows:
    """Everything opened, each row once."""
    parts = []
    for opening in openings:
        own = matrix(opening.weights, nodes)
        public = own[:0] if opening.public_rows is None else matrix(opening.public_rows, nodes)
        everybody = np.full(len(public), EVERYBODY, dtype=np.int64)
        owners = np.concatenate([_owners(opening, len(own), nodes, speaker.names), everybody])
        parts.append(np.concatenate([owners[:, None], np.concatenate([own, public])], axis=1))
    rows = parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts), axis=0)
    if (rows[:, 1:] < 0).any():
        column = int(np.flatnonzero((rows[:, 1:] < 0).any(axis=0))[0])
        speaker.refuse("support", column, (), "its weight is negative: a difference of rows in disguise")
    return Rows(rows[:, 1:], rows[:, 0])


# --- refusing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speaker:
    """Speaks of columns by the names of their sites, where they have one."""

    names: tuple[str, ...] | None

    def name(self, column: int) -> Node:
        return column if self.names is None else self.names[column]

    def all(self, columns: Coalition) -> tuple[Node, ...]:
        return tuple(self.name(column) for column in columns)

    def refuse(self, rule: str, column: int, coalition: Coalition, why: str) -> NoReturn:
        node, others = self.name(column), self.all(coalition)
        to = f" to {', '.join(map(str, others))} and the coordinator" if others else ""
        raise ReleaseRefusedError(
            f"node {node} would be exposed{to} ({rule}): {why}", node=node, rule=rule, coalition=others
        )


def about(value: Fraction) -> str:
    return str(value) if value.denominator < 1000 else f"{float(value):.6g}"


# --- coalitions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kinds:
    """Nodes with the same column are interchangeable for whoever sees every row: each kind is looked at once."""

    columns: Matrix
    members: tuple[Matrix, ...]

    @staticmethod
    def of(weights: Matrix) -> Kinds:
        columns, kind_of = np.unique(weights, axis=1, return_inverse=True)
        kinds = range(columns.shape[1])
        return Kinds(columns, tuple(np.flatnonzero(kind_of.ravel() == kind) for kind in kinds))

    @property
    def counts(self) -> Matrix:
        return np.array([len(nodes) for nodes in self.members], dtype=np.int64)

    def multisets(self, size: int) -> Iterator[tuple[tuple[int, ...], Matrix]]:
        """Every choice of `size` nodes by kind, with how many of each kind are left."""
        for chosen in combinations_with_replacement(range(len(self.members)), size):
            left = self.counts - np.bincount(chosen, minlength=len(self.members))
            if (left >= 0).all():
                yield chosen, left

    def pick(self, chosen: Sequence[int]) -> tuple[int, ...]:
        """Distinct nodes of these kinds, in this order."""
        return tuple(int(self.members[kind][list(chosen[:at]).count(kind)]) for at, kind in enumerate(chosen))


def coalitions(rows: Rows, members: int) -> Iterator[Coalition]:
    """Every coalition that can differ from the others."""
    if rows.all_public:
        kinds = Kinds.of(rows.weights)
        return (tuple(sorted(kinds.pick(chosen))) for chosen, _ in kinds.multisets(members))
    return combinations(range(rows.nodes), members)
