"""The release guard: what may be opened without showing one node's value to a coalition of others.

Opened values are linear: row r opens Σ_j w_rj·x_j. A coalition C of c nodes works with the coordinator. It sees the
rows opened at its members and every public row, and subtracts its own columns; H are the other, honest columns and
W_H is what it sees of them. Nothing is opened if, for any coalition and any honest j,

    span      e_j is in the row span of W_H, over Q or over F_q: x_j is known exactly;
    leverage  h_j = (W_H⁺W_H)_jj > τ: of independent, equally spread values, the best linear estimate of x_j
              explains the share h_j of its variance;
    support   a row has too few contributors, leaves out its recipient, or one node has more than half its weight;
    kernel    what stays hidden of ring-LWE keys has an error below 3.2 (`kernel_lattice`);
    history   h_j > τ, for a value of any flush, once the rows of earlier flushes are counted in.

Only coalitions of exactly c nodes are looked at, because h_j never falls as C grows:
h_j = max over u of (uᵀW_H)_j² / ‖uᵀW_H‖². One more member adds rows, hence more u to choose from, and takes a column
out of H, hence a term ≥ 0 out of the denominator; the numerator stays. h_j = 1 is the span over Q; over F_q a
combination that isolates j still does with more rows and fewer columns. For `kernel`, who sees more breaks no less.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, combinations_with_replacement
from math import comb
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
from flint import fmpz

from secure_fl.errors import ProtectionError, ReleaseRefusedError
from secure_fl.protect.base import RequestKind
from secure_fl.protect.cohort import smallest_cohort
from secure_fl.protect.exact_algebra import (
    Matrix,
    explained,
    isolated_over_field,
    projector,
    rank_over_field,
    rank_over_rationals,
)
from secure_fl.protect.kernel_lattice import stretch

Node: TypeAlias = int | str
OpenedAt: TypeAlias = Literal["recipients", "coordinator"]
Coalition: TypeAlias = tuple[int, ...]

SMALLEST_ERROR = 3.2  # the usual width of a ring-LWE error
LARGEST_WEIGHT = 1 << 24
MOST_NODES = 1 << 12  # with the weights' bound, every entry of W·Wᵀ fits 63 bits

_EVERYBODY = -1


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What one earlier flush of the same epoch opened; see `check_release` for the fields."""

    weights: npt.ArrayLike
    opened_at: OpenedAt
    recipients: Sequence[Node] | None = None
    public_rows: npt.ArrayLike | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseReport:
    """How close a release that passed came to the bounds."""

    leverage: Fraction  # the largest h_j of this release alone
    node: Node  # where that is, and for whom
    coalition: tuple[Node, ...]
    support: int  # the fewest contributors of an opened row
    largest_share: Fraction  # the most of a row's weight that one node has
    kernel_margin: float | None  # the least σ/s_max is at least this; None without σ
    history_leverage: Fraction | None  # the largest generalised h_j; None without history
    coalitions: int  # how many were covered


@dataclass(frozen=True)
class _Rows:
    """Rows, whom each is opened to (a column, or everybody), and the flush each belongs to."""

    weights: Matrix
    owners: Matrix
    flushes: Matrix

    @property
    def nodes(self) -> int:
        return int(self.weights.shape[1])

    @property
    def all_public(self) -> bool:
        return bool((self.owners == _EVERYBODY).all())

    def current(self) -> _Rows:
        now = self.flushes == 0
        return _Rows(self.weights[now], self.owners[now], self.flushes[now])

    def seen_by(self, coalition: Coalition) -> tuple[Matrix, Matrix, Matrix]:
        """The rows that a coalition sees, on the honest columns; those columns; the rows' flushes."""
        honest = np.delete(np.arange(self.nodes), coalition)
        seen = (self.owners == _EVERYBODY) | np.isin(self.owners, coalition)
        return self.weights[np.ix_(seen, honest)], honest, self.flushes[seen]


def check_release(
    weights: npt.ArrayLike,
    *,
    colluders: int,
    tau: float | Fraction | str = 0.5,
    opened_at: OpenedAt = "recipients",
    recipients: Sequence[Node] | None = None,
    public_rows: npt.ArrayLike | None = None,
    history: Sequence[npt.ArrayLike | Opening] | None = None,
    drift: float | Fraction | str = 0.2,
    modulus: int | None = None,
    sigma: float | None = None,
    names: Sequence[str] | None = None,
) -> ReleaseReport:
    """Raise `ReleaseRefusedError`, naming the node and the rule, unless everything may be opened together.

    `weights` has a row per opened value and a column per node. `opened_at="recipients"`: row r is a combination that
    only the node recipients[r] reads (without `recipients` the matrix is square and row i is node i's); a row of
    zeros is a recipient that is not served. `opened_at="coordinator"`: every row is a sum that the coordinator reads.
    `public_rows` are sums over the same uploads that everybody reads.

    `history` are the earlier flushes of the epoch, oldest first or in any order; a bare matrix was opened as
    `weights` is. A node's value in flush f is x + d_f, Var x = 1, Var d_f = drift², all independent.

    `modulus` is the prime q of the field in which shares are combined; `sigma` is the error's width in `sealed`.
    `tau` and `drift` are read as the decimals they are written as: 0.5 is 1/2, and h_j = τ passes.
    """
    threshold, spread = _decimal(tau, "tau"), _decimal(drift, "drift")
    if not 0 < threshold <= 1:
        raise ProtectionError("tau must be above 0 and at most 1")
    if sigma is not None and not 0 < sigma < float("inf"):
        raise ProtectionError("sigma must be positive and finite")
    if modulus is not None and not (2 <= modulus < 1 << 64 and fmpz(modulus).is_prime()):
        raise ProtectionError("the modulus must be a prime below 2^64")
    now = Opening(weights=weights, opened_at=opened_at, recipients=recipients, public_rows=public_rows)
    nodes = _matrix(weights, None).shape[1]
    speaker = _Speaker(_checked_names(names, nodes))
    earlier = [
        past if isinstance(past, Opening) else Opening(weights=past, opened_at=opened_at, recipients=recipients)
        for past in history or ()
    ]
    rows = _stack([now, *earlier], speaker, nodes)
    if not 0 <= colluders < nodes:
        raise ProtectionError(f"{colluders} colluders among {nodes} nodes leave nobody to protect")
    # A recipient reads its own row whether or not it colludes with anybody.
    members = colluders if rows.all_public else max(1, colluders)
    if members >= nodes:
        raise ProtectionError(f"a combination among {nodes} nodes leaves nobody to protect")
    present = rows.current()
    support, share = _check_support(present, colluders, speaker)

    worst, node, coalition = _largest_leverage(present, members)
    if worst > threshold or worst == 1:
        rule = "span" if worst == 1 else "leverage"
        speaker.refuse(rule, node, coalition, f"its leverage is {_about(worst)}, the bound {_about(threshold)}")
    if modulus is not None:
        _check_field(present, members, modulus, speaker)
    margin = None if sigma is None else _check_kernels(present, members, sigma, modulus, speaker)
    remembered = None
    if earlier:
        remembered, past_node, past_coalition = _largest_history_leverage(rows, members, spread)
        if remembered > threshold or remembered == 1:
            why = f"with the earlier flushes its leverage is {_about(remembered)}, the bound {_about(threshold)}"
            speaker.refuse("history", past_node, past_coalition, why)
    return ReleaseReport(
        leverage=worst,
        node=speaker.name(node),
        coalition=speaker.all(coalition),
        support=support,
        largest_share=share,
        kernel_margin=margin,
        history_leverage=remembered,
        coalitions=comb(nodes, members),
    )


def releasable(
    cohorts: Sequence[Collection[str]],
    *,
    nodes: Sequence[str],
    colluders: int,
    minimum: int,
    tau: float | Fraction | str = 0.5,
) -> tuple[bool, ...]:
    """Which of several sums over the same uploads may be opened, each over its own cohort.

    Two cohorts that differ by few nodes show those few. The largest cohort comes first, of equal ones the first: a
    sum is released if its cohort has `minimum` nodes and the guard passes it together with those before it. Every
    party that knows the cohorts comes to the same answer.
    """
    position = {name: column for column, name in enumerate(nodes)}
    if len(position) != len(nodes):
        raise ProtectionError("two nodes have the same name")
    if not 0 <= colluders < len(nodes):
        raise ProtectionError(f"{colluders} colluders among {len(nodes)} nodes leave nobody to protect")
    if any(not position.keys() >= set(cohort) for cohort in cohorts):
        raise ProtectionError("a cohort names a node that is not in the round")
    columns = tuple(frozenset(position[name] for name in cohort) for cohort in cohorts)
    return _releasable(columns, len(nodes), colluders, minimum, _decimal(tau, "tau"))


@lru_cache(maxsize=256)  # A study asks the same in most of its rounds.
def _releasable(
    cohorts: tuple[frozenset[int], ...], nodes: int, colluders: int, minimum: int, tau: Fraction
) -> tuple[bool, ...]:
    verdict: dict[frozenset[int], bool] = {}
    accepted = np.zeros((0, nodes), dtype=np.int64)
    for cohort in sorted(cohorts, key=len, reverse=True):  # The sort is stable: ties keep their order.
        if cohort in verdict:
            continue
        verdict[cohort] = False
        if len(cohort) < minimum:
            continue
        row = np.zeros((1, nodes), dtype=np.int64)
        row[0, list(cohort)] = 1
        candidate = np.concatenate([accepted, row])
        try:
            check_release(candidate, colluders=colluders, tau=tau, opened_at="coordinator")
        except ReleaseRefusedError:
            continue
        verdict[cohort] = True
        accepted = candidate
    return tuple(verdict[cohort] for cohort in cohorts)


# --- what was handed in -----------------------------------------------------------------------------------------


def _decimal(value: float | Fraction | str, what: str) -> Fraction:
    try:
        number = value if isinstance(value, Fraction) else Fraction(str(value))
    except ValueError:
        raise ProtectionError(f"{what} is not a number") from None
    if number < 0:
        raise ProtectionError(f"{what} is negative")
    return number


def _matrix(values: npt.ArrayLike, nodes: int | None) -> Matrix:
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


def _checked_names(names: Sequence[str] | None, nodes: int) -> tuple[str, ...] | None:
    if names is not None and (len(names) != nodes or len(set(names)) != nodes):
        raise ProtectionError("the names do not fit the columns")
    return None if names is None else tuple(names)


def _owners(opening: Opening, count: int, nodes: int, names: tuple[str, ...] | None) -> Matrix:
    """The column that each row is opened at."""
    if opening.opened_at == "coordinator":
        if opening.recipients is not None:
            raise ProtectionError("sums are opened at the coordinator and have no recipients")
        return np.full(count, _EVERYBODY, dtype=np.int64)
    if opening.opened_at != "recipients":
        raise ProtectionError("rows are opened at the recipients or at the coordinator")
    if opening.recipients is None:
        if count != nodes:
            raise ProtectionError("the matrix is not square: say which node each row is opened at")
        return np.arange(nodes, dtype=np.int64)
    known: dict[Node, int] = {column: column for column in range(nodes)}
    known |= {name: column for column, name in enumerate(names or ())}
    owners = [known.get(recipient, _EVERYBODY) for recipient in opening.recipients]
    if len(owners) != count or _EVERYBODY in owners:
        raise ProtectionError("the recipients do not fit the rows and columns")
    return np.array(owners, dtype=np.int64)


def _stack(openings: Sequence[Opening], speaker: _Speaker, nodes: int) -> _Rows:
    """Everything opened, the current flush as number 0."""
    parts: list[_Rows] = []
    for flush, opening in enumerate(openings):
        own = _matrix(opening.weights, nodes)
        public = own[:0] if opening.public_rows is None else _matrix(opening.public_rows, nodes)
        everybody = np.full(len(public), _EVERYBODY, dtype=np.int64)
        owners = np.concatenate([_owners(opening, len(own), nodes, speaker.names), everybody])
        parts.append(_Rows(np.concatenate([own, public]), owners, np.full(len(owners), flush, dtype=np.int64)))
    rows = _Rows(
        np.concatenate([part.weights for part in parts]),
        np.concatenate([part.owners for part in parts]),
        np.concatenate([part.flushes for part in parts]),
    )
    if (rows.weights < 0).any():
        column = int(np.flatnonzero((rows.weights < 0).any(axis=0))[0])
        speaker.refuse("support", column, (), "its weight is negative: a difference of rows in disguise")
    return rows


# --- refusing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Speaker:
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


def _about(value: Fraction) -> str:
    return str(value) if value.denominator < 1000 else f"{float(value):.6g}"


# --- support ----------------------------------------------------------------------------------------------------


def _check_support(rows: _Rows, colluders: int, speaker: _Speaker) -> tuple[int, Fraction]:
    """The fewest contributors of a row and the largest share of one node."""
    fewest, largest = rows.nodes, Fraction(0)
    for row, owner in zip(rows.weights, rows.owners.tolist(), strict=True):
        is_sum = owner == _EVERYBODY
        if not is_sum and not row.any():
            continue
        support, heaviest = int(np.count_nonzero(row)), int(row.argmax())
        coalition = () if is_sum else (owner,)
        need = smallest_cohort(RequestKind.SUM if is_sum else RequestKind.COMBINE, colluders)
        if support < need:
            what = "a sum" if is_sum else "a combination"
            speaker.refuse("support", heaviest, coalition, f"{what} of {support} nodes, at least {need} are needed")
        if not is_sum and not row[owner]:
            speaker.refuse("support", heaviest, coalition, "the recipient is not part of its own combination")
        share = Fraction(int(row[heaviest]), int(row.sum()))
        if share > Fraction(1, 2):
            speaker.refuse("support", heaviest, coalition, f"it has {_about(share)} of a row's weight, more than half")
        fewest, largest = min(fewest, support), max(largest, share)
    return fewest, largest


# --- coalitions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kinds:
    """Nodes with the same column are interchangeable for whoever sees every row: each kind is looked at once."""

    columns: Matrix
    members: tuple[Matrix, ...]

    @staticmethod
    def of(weights: Matrix) -> _Kinds:
        columns, kind_of = np.unique(weights, axis=1, return_inverse=True)
        kinds = range(columns.shape[1])
        return _Kinds(columns, tuple(np.flatnonzero(kind_of.ravel() == kind) for kind in kinds))

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


def _coalitions(rows: _Rows, members: int) -> Iterator[Coalition]:
    """Every coalition that can differ from the others."""
    if rows.all_public:
        kinds = _Kinds.of(rows.weights)
        return (tuple(sorted(kinds.pick(chosen))) for chosen, _ in kinds.multisets(members))
    return combinations(range(rows.nodes), members)


# --- leverage ---------------------------------------------------------------------------------------------------

_Worst: TypeAlias = tuple[Fraction, int, Coalition]
_NOTHING: _Worst = (Fraction(-1), 0, ())  # below every leverage; at least one coalition replaces it


def _largest_leverage(rows: _Rows, members: int) -> _Worst:
    """The largest h_j of any coalition, with j and the coalition."""
    if rows.all_public:
        return _largest_leverage_of_public(rows.weights, members)
    return _largest(
        (coalition, honest, *explained(seen @ seen.T, seen))
        for coalition in _coalitions(rows, members)
        for seen, honest, _ in [rows.seen_by(coalition)]
    )


def _largest(per_coalition: Iterator[tuple[Coalition, Matrix, Any, int]]) -> _Worst:
    worst = _NOTHING
    for coalition, honest, numerators, denominator in per_coalition:
        at = int(numerators.argmax())
        value = Fraction(numerators[at], denominator)
        if value > worst[0]:
            worst = value, int(honest[at]), coalition
    return worst


def _largest_leverage_of_public(weights: Matrix, members: int) -> _Worst:
    """All coalitions see the same rows: the last member is taken out of a projector by a rank-one formula.

    With M = Wᵀ(WWᵀ)⁺W over everybody left but for one member i, taking column i out gives
    h_j = M_jj + M_ij²/(1 − M_ii) (Sherman–Morrison). Where M_ii = 1, e_i is itself in the span, M_ij = 0, and h_j
    stays M_jj. With M = N/d, h_j = (N_jj(d − N_ii) + N_ij²) / (d(d − N_ii)): integers throughout.
    """
    kinds = _Kinds.of(weights)
    worst = _NOTHING
    for chosen, left in kinds.multisets(max(0, members - 1)):
        numerators, d = projector(kinds.columns, left)
        own = numerators.diagonal()
        gap = d - own
        if members == 0:
            values, denominators = own[None, :], np.array([d], dtype=np.object_)
            allowed = np.ones(values.shape, dtype=np.bool_)
        else:
            split = gap == 0
            values = np.where(split[:, None], own[None, :], gap[:, None] * own[None, :] + numerators**2)
            denominators = np.where(split, d, d * gap)
            # Member and target must be different nodes that are still there.
            allowed = (left[:, None] > 0) & (left[None, :] > 0)
            np.fill_diagonal(allowed, left > 1)
        values = np.where(allowed, values, -1)
        targets = values.argmax(axis=1)
        for last, target in enumerate(targets.tolist()):
            if not allowed[last, target]:
                continue
            value = Fraction(values[last, target], denominators[last])
            if value > worst[0]:
                nodes = kinds.pick((*chosen, *((last,) if members else ()), target))
                worst = value, nodes[-1], tuple(sorted(nodes[:-1]))
    return worst


# --- the field --------------------------------------------------------------------------------------------------


def _check_field(rows: _Rows, members: int, modulus: int, speaker: _Speaker) -> None:
    """Refuse if e_j is in the row span over F_q."""
    why = f"its value follows from what is opened, modulo {modulus}"
    if rows.all_public and members:
        # The last member is found rather than tried: it is the one column beside j in a vector of the span.
        for coalition in combinations(range(rows.nodes), members - 1):
            honest = np.delete(np.arange(rows.nodes), coalition)
            for target, beside in isolated_over_field(rows.weights[:, honest], modulus, one_more_known=True):
                # With nothing beside j, any other node may be the last member.
                last = beside if beside is not None else next(at for at in range(len(honest)) if at != target)
                together = tuple(sorted((*coalition, int(honest[last]))))
                speaker.refuse("span", int(honest[target]), together, why)
        return
    for coalition in combinations(range(rows.nodes), members):
        seen, honest, _ = rows.seen_by(coalition)
        for target, _ in isolated_over_field(seen, modulus, one_more_known=False):
            speaker.refuse("span", int(honest[target]), coalition, why)


# --- the kernel -------------------------------------------------------------------------------------------------


def _check_kernels(rows: _Rows, members: int, sigma: float, modulus: int | None, speaker: _Speaker) -> float:
    """The least margin σ/s_max of any coalition. Refuses below 3.2."""
    least = float("inf")
    for coalition in _coalitions(rows, members):
        seen, honest, _ = rows.seen_by(coalition)
        # The node that weighs most is the one whose key the opened errors pin best.
        heaviest = int(honest[int(seen.max(axis=0, initial=0).argmax())])
        if modulus is not None and rank_over_field(seen, modulus) < rank_over_rationals(seen):
            # The kernel modulo q is then larger than B, and what is said above of B does not cover it.
            speaker.refuse("kernel", heaviest, coalition, f"the rows are independent, but not modulo {modulus}")
        longest = stretch(seen, enough=sigma / SMALLEST_ERROR)
        margin = sigma / longest if longest else 0.0
        if not margin >= SMALLEST_ERROR:
            why = f"the error that stays hidden is {margin:.2f} wide, less than {SMALLEST_ERROR}"
            speaker.refuse("kernel", heaviest, coalition, why)
        least = min(least, margin)
    return least


# --- history ----------------------------------------------------------------------------------------------------


def _largest_history_leverage(rows: _Rows, members: int, drift: Fraction) -> _Worst:
    """The largest squared correlation of a value with its best linear estimate from the rows of every flush.

    A node's value in flush f is x + d_f with Var x = 1 and Var d_f = δ². So for rows r, s of flushes f, g
        Cov(y_r, y_s) = (w_r·w_s)(1 + δ²[f = g]),   Cov(y_r, x_j^g) = w_rj(1 + δ²[f = g]),   Var x_j^g = 1 + δ²,
    and ρ² = kᵀΣ⁺k / (1 + δ²). Without earlier rows this is h_j, and with δ = 0 it is h_j of all rows stacked.
    The values of earlier flushes are targets too: a later row can show what an earlier one hid.
    """
    square = drift * drift
    whole, extra = square.denominator, square.numerator  # everything times the denominator of δ²: integers

    def estimates() -> Iterator[tuple[Coalition, Matrix, Any, int]]:
        for coalition in _coalitions(rows, members):
            seen, honest, flushes = rows.seen_by(coalition)
            same = (flushes[:, None] == flushes[None, :]).astype(np.object_)
            covariance = (seen @ seen.T).astype(np.object_) * (whole + extra * same)
            # One block of columns per flush whose values are the target, so that one inverse serves them all.
            weighed = seen.astype(np.object_)
            alike = (flushes[:, None] == np.unique(rows.flushes)[None, :]).astype(np.object_)
            cross = np.concatenate([weighed * (whole + extra * flush)[:, None] for flush in alike.T], axis=1)
            numerators, denominator = explained(covariance, cross)
            yield coalition, np.tile(honest, alike.shape[1]), numerators, denominator * (whole + extra)

    return _largest(estimates())
