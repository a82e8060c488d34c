"""The release guard: what may be opened without showing one node's value to a coalition of others.

Opened values are linear: row r opens Σ_j w_rj·x_j. A coalition C of c nodes works with the coordinator. It sees the
rows opened at its members and every public row, and subtracts its own columns; H are the other, honest columns and
W_H is what it sees of them. Nothing is opened if, for any coalition and any honest j,

    span      e_j is in the row span of W_H, over Q or over F_q: x_j is known exactly;
    leverage  h_j = (W_H⁺W_H)_jj > τ: of independent, equally spread values, the best linear estimate of x_j
              explains the share h_j of its variance;
    support   a row has too few contributors, leaves out its recipient, or one node has more than half its weight;
    kernel    what stays hidden of ring-LWE keys has an error below 3.2 (`kernel_lattice`);
    history   h_j > τ, once the rows of earlier rounds are counted in as if values had not changed since.

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
from itertools import combinations
from math import comb
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from flint import fmpz

from secure_fl.aggregation import RequestKind
from secure_fl.errors import ProtectionError, ReleaseRefusedError
from secure_fl.protect.cohort.minima import smallest_cohort
from secure_fl.protect.release.exact_algebra import (
    Matrix,
    explained,
    isolated_over_field,
    projector,
    rank_over_field,
    rank_over_rationals,
)
from secure_fl.protect.release.guard_rows import (
    EVERYBODY,
    Coalition,
    Kinds,
    Node,
    OpenedAt,
    Opening,
    Rows,
    Speaker,
    about,
    checked_names,
    coalitions,
    decimal,
    matrix,
    stack,
)
from secure_fl.protect.release.kernel_lattice import stretch

SMALLEST_ERROR = 3.2  # the usual width of a ring-LWE error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseReport:
    """How close a release that passed came to the bounds."""

    leverage: Fraction  # the largest h_j of this release alone
    node: Node  # where that is, and for whom
    coalition: tuple[Node, ...]
    support: int  # the fewest contributors of an opened row
    largest_share: Fraction  # the most of a row's weight that one node has
    kernel_margin: float | None  # the least σ/s_max is at least this; None without σ
    history_leverage: Fraction | None  # the largest h_j with the earlier rows; None without any
    coalitions: int  # how many were covered


def check_release(
    weights: npt.ArrayLike,
    *,
    colluders: int,
    tau: float | Fraction | str = 0.5,
    opened_at: OpenedAt = "recipients",
    recipients: Sequence[Node] | None = None,
    public_rows: npt.ArrayLike | None = None,
    history: Sequence[npt.ArrayLike | Opening] | None = None,
    modulus: int | None = None,
    sigma: float | None = None,
    names: Sequence[str] | None = None,
) -> ReleaseReport:
    """Raise `ReleaseRefusedError`, naming the node and the rule, unless everything may be opened together.

    `weights` has a row per opened value and a column per node. `opened_at="recipients"`: row r is a combination that
    only the node recipients[r] reads (without `recipients` the matrix is square and row i is node i's); a row of
    zeros is a recipient that is not served. `opened_at="coordinator"`: every row is a sum that the coordinator reads.
    `public_rows` are sums over the same uploads that everybody reads.

    `history` is what was opened of the same nodes' values before, in any order; a bare matrix was opened as `weights`
    is. Values count as unchanged: from one round to the next they change by a tenth and less (docs/guard.md).

    `modulus` is the prime q of the field in which shares are combined; `sigma` is the width of
    the error where values are hidden by one.
    `tau` is read as the decimal it is written as: 0.5 is 1/2, and h_j = τ passes.
    """
    threshold = decimal(tau, "tau")
    if not 0 < threshold <= 1:
        raise ProtectionError("tau must be above 0 and at most 1")
    if sigma is not None and not 0 < sigma < float("inf"):
        raise ProtectionError("sigma must be positive and finite")
    if modulus is not None and not (2 <= modulus < 1 << 64 and fmpz(modulus).is_prime()):
        raise ProtectionError("the modulus must be a prime below 2^64")
    now = Opening(weights=weights, opened_at=opened_at, recipients=recipients, public_rows=public_rows)
    nodes = matrix(weights, None).shape[1]
    speaker = Speaker(checked_names(names, nodes))
    earlier = [
        past if isinstance(past, Opening) else Opening(weights=past, opened_at=opened_at, recipients=recipients)
        for past in history or ()
    ]
    present = stack([now], speaker, nodes)
    rows = stack([now, *earlier], speaker, nodes)
    if not 0 <= colluders < nodes:
        raise ProtectionError(f"{colluders} colluders among {nodes} nodes leave nobody to protect")
    # A recipient reads its own row whether or not it colludes with anybody.
    members = colluders if rows.all_public else max(1, colluders)
    if members >= nodes:
        raise ProtectionError(f"a combination among {nodes} nodes leaves nobody to protect")
    support, share = _check_support(present, colluders, speaker)

    worst, node, coalition = _largest_leverage(present, members)
    if worst > threshold or worst == 1:
        rule = "span" if worst == 1 else "leverage"
        speaker.refuse(rule, node, coalition, f"its leverage is {about(worst)}, the bound {about(threshold)}")
    if modulus is not None:
        _check_field(present, members, modulus, speaker)
    margin = None if sigma is None else _check_kernels(present, members, sigma, modulus, speaker)
    remembered = None
    if earlier:
        remembered, past_node, past_coalition = _largest_leverage(rows, members)
        if remembered > threshold or remembered == 1:
            why = f"with what was opened before its leverage is {about(remembered)}, the bound {about(threshold)}"
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
    return _releasable(columns, len(nodes), colluders, minimum, decimal(tau, "tau"))


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


# --- support ----------------------------------------------------------------------------------------------------


def _check_support(rows: Rows, colluders: int, speaker: Speaker) -> tuple[int, Fraction]:
    """The fewest contributors of a row and the largest share of one node."""
    fewest, largest = rows.nodes, Fraction(0)
    for row, owner in zip(rows.weights, rows.owners.tolist(), strict=True):
        is_sum = owner == EVERYBODY
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
            speaker.refuse("support", heaviest, coalition, f"it has {about(share)} of a row's weight, more than half")
        fewest, largest = min(fewest, support), max(largest, share)
    return fewest, largest


# --- leverage ---------------------------------------------------------------------------------------------------

_Worst: TypeAlias = tuple[Fraction, int, Coalition]
_NOTHING: _Worst = (Fraction(-1), 0, ())  # below every leverage; at least one coalition replaces it


def _largest_leverage(rows: Rows, members: int) -> _Worst:
    """The largest h_j of any coalition, with j and the coalition."""
    if rows.all_public:
        return _largest_leverage_of_public(rows.weights, members)
    return _largest(
        (coalition, honest, *explained(seen @ seen.T, seen))
        for coalition in coalitions(rows, members)
        for seen, honest in [rows.seen_by(coalition)]
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
    kinds = Kinds.of(weights)
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


def _check_field(rows: Rows, members: int, modulus: int, speaker: Speaker) -> None:
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
        seen, honest = rows.seen_by(coalition)
        for target, _ in isolated_over_field(seen, modulus, one_more_known=False):
            speaker.refuse("span", int(honest[target]), coalition, why)


# --- the kernel -------------------------------------------------------------------------------------------------


def _check_kernels(rows: Rows, members: int, sigma: float, modulus: int | None, speaker: Speaker) -> float:
    """The least margin σ/s_max of any coalition. Refuses below 3.2."""
    least = float("inf")
    for coalition in coalitions(rows, members):
        seen, honest = rows.seen_by(coalition)
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
