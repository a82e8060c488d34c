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

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from secure_fl.protect.exact_algebra import Matrix
from secure_fl.protect.guard_rows import Coalition, Rows, coalitions

SLACK = 1e-9  # a leverage that is τ but for rounding passes

_DEPENDENT = 1e-12  # singular values below, relative to the largest, are rounding

Floats: TypeAlias = npt.NDArray[np.float64]


def largest_history_leverage(rows: Rows, members: int, drift: float) -> tuple[float, int, Coalition]:
    """The largest explained share of any node's value of any flush, for which node and to whom; `drift` is positive."""
    worst: tuple[float, int, Coalition] = (-1.0, 0, ())
    for coalition in coalitions(rows, members):
        seen, honest, flushes = rows.seen_by(coalition)
        shares = _explained(list(_bases(seen, flushes)), len(honest), drift**2)
        at = int(shares.argmax())
        if shares[at] > worst[0]:
            worst = float(shares[at]), int(honest[at]), coalition
    return worst


def _bases(seen: Matrix, flushes: Matrix) -> Iterator[Floats]:
    """An orthonormal basis of what each flush showed."""
    for flush in np.unique(flushes):
        _, sizes, basis = np.linalg.svd(seen[flushes == flush].astype(np.float64), full_matrices=False)
        yield basis[sizes > _DEPENDENT * sizes.max(initial=0.0)]


def _explained(bases: list[Floats], nodes: int, square: float) -> Floats:
    """For every node the largest share that is explained of its value in any flush; `square` is δ²."""
    information = np.eye(nodes)
    for basis in bases:
        information += basis.T @ basis / square
    remains = np.linalg.inv(information) + square * np.eye(nodes)  # A + δ²·I
    # Of a flush in which the coalition saw nothing, U is A + δ²·I: one that showed something is known no worse.
    least = remains.diagonal().copy()
    for basis in bases:
        part = basis @ remains
        # diag((I − P)·M·(I − P)) = diag(M) − 2·diag(P·M) + diag(P·M·P)
        unknown = remains.diagonal() - 2 * (basis * part).sum(0) + (basis * (part @ basis.T @ basis)).sum(0)
        least = np.minimum(least, unknown)
    return 1 - least / (1 + square)
