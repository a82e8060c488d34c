"""What the openings of several flushes say together, about values that change from one to the next.

A node's value in flush f is x + d_f, with Var x = 1 and Var d_f = δ², everything independent. Let the rows of P_f be
spanned by an orthonormal basis, P_f their projector, on the honest columns. What a coalition saw in flush f is then
P_f·(x + d_f), and for jointly Gaussian values

    A   = Cov(x | everything seen) = (I + Σ_f P_f/δ²)⁻¹
    U_g = Cov(x + d_g | everything seen) = (I − P_g)(A + δ²·I)(I − P_g)

because flush g fixes its own projection and says no more of d_g. The share of node j's value of flush g that is
explained is 1 − (U_g)_jj / (1 + δ²): h_j where there is one flush, and no more than h_j however often the same rows are
opened. Every flush is asked about: a later row can show what an earlier one hid.

In floats, unlike the other rules: A is inverted well (its condition is at most 1 + flushes/δ²), δ is an assumption of
one digit, and nothing is ever spanned exactly while values drift. Without drift, all flushes are one, and exact.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from secure_fl.protect.guard_rows import Coalition, Rows, coalitions

SLACK = 1e-9  # a leverage that is τ but for rounding passes

_DEPENDENT = 1e-12  # singular values below, relative to the largest, are rounding

Floats: TypeAlias = npt.NDArray[np.float64]


def largest_history_leverage(rows: Rows, members: int, drift: float) -> tuple[float, int, Coalition]:
    """The largest explained share of any node's value of any flush, for which node and to whom; `drift` is positive."""
    worst: tuple[float, int, Coalition] = (-1.0, 0, ())
    for coalition in coalitions(rows, members):
        seen, honest, flushes = rows.seen_by(coalition)
        bases = [_orthonormal(seen[flushes == flush].astype(np.float64)) for flush in np.unique(flushes)]
        shares = _explained([basis for basis in bases if len(basis)], len(honest), drift**2)
        at = int(shares.argmax())
        if shares[at] > worst[0]:
            worst = float(shares[at]), int(honest[at]), coalition
    return worst


def _orthonormal(rows: Floats) -> Floats:
    """A basis of what the rows span."""
    if len(rows) == 1:
        size = float(np.linalg.norm(rows))
        return rows / size if size else rows[:0]
    _, sizes, spanned = np.linalg.svd(rows, full_matrices=False)
    basis: Floats = spanned[sizes > _DEPENDENT * sizes.max(initial=0.0)]
    return basis


def _explained(bases: list[Floats], nodes: int, square: float) -> Floats:
    """For every node the largest share that is explained of its value in any flush; `square` is δ²."""
    if not bases:
        return np.zeros(nodes)
    basis = np.concatenate(bases)
    flush = np.repeat(np.arange(len(bases)), [len(each) for each in bases])
    remains = np.linalg.inv(np.eye(nodes) + basis.T @ basis / square) + square * np.eye(nodes)  # M = A + δ²·I
    part = basis @ remains
    # diag((I − P)·M·(I − P)) = diag(M) + Σ over the rows b of the flush of b∘(b·M·P − 2·b·M)
    within = (part @ basis.T) * (flush[:, None] == flush)
    terms = np.add.reduceat(basis * (within @ basis - 2 * part), np.searchsorted(flush, np.arange(len(bases))))
    unknown: Floats = remains.diagonal() + terms.min(axis=0)
    return 1 - unknown / (1 + square)
