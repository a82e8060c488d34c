"""Linear algebra over Q and over F_q, without rounding: what a set of opened rows says about one column.

A guard that rounds can be steered: an attacker picks weights for which a float falls on the wrong side. Everything
here is integers; a quotient is kept as numerator and denominator until it is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from flint import fmpq_mat, fmpz_mat, nmod_mat

Matrix: TypeAlias = npt.NDArray[np.int64]
BigInts: TypeAlias = npt.NDArray[np.object_]  # Python integers: determinants outgrow 64 bits


def big_integers(matrix: fmpz_mat | nmod_mat) -> BigInts:
    """A flint matrix as an array of Python integers."""
    flat = np.empty(matrix.nrows() * matrix.ncols(), dtype=np.object_)
    flat[:] = [int(entry) for entry in matrix.entries()]
    return flat.reshape(matrix.nrows(), matrix.ncols())


def flint_matrix(matrix: npt.NDArray[Any]) -> fmpz_mat:
    """An array of integers as a flint matrix."""
    return fmpz_mat(matrix.shape[0], matrix.shape[1], matrix.ravel().tolist())


def _pivots(echelon: BigInts, rank: int) -> list[int]:
    return [int(np.flatnonzero(echelon[row])[0]) for row in range(rank)]


def inverse_on_support(gram: npt.NDArray[Any]) -> tuple[list[int], fmpz_mat, int]:
    """(P, A, d) with P a largest set of independent rows of a positive semidefinite `gram`, gram_PP⁻¹ = A/d, d > 0."""
    full = flint_matrix(gram)
    echelon, _, rank = full.rref()
    if rank == gram.shape[0]:
        independent = list(range(rank))
    else:
        independent = _pivots(big_integers(echelon), rank)
        full = flint_matrix(gram[np.ix_(independent, independent)])
    if not independent:
        return [], fmpz_mat(0, 0), 1
    numerators, denominator = fmpq_mat(full).inv().numer_denom()
    return independent, numerators, int(denominator)


def explained(gram: npt.NDArray[Any], cross: npt.NDArray[Any]) -> tuple[BigInts, int]:
    """Per column j of `cross`: cross_jᵀ·gram⁺·cross_j, as integer numerators over one denominator.

    With gram = W·Wᵀ and cross = W this is the leverage (W⁺W)_jj; with covariances it is the variance of column j's
    value that the best linear estimate explains. Both are the same for every choice of independent rows.
    """
    independent, inverse, denominator = inverse_on_support(gram)
    if not independent:
        return np.zeros(cross.shape[1], dtype=np.object_), 1
    seen = cross[independent]
    product = big_integers(inverse * flint_matrix(seen))
    return (product * seen.astype(np.object_)).sum(axis=0), denominator


def projector(columns: Matrix, counts: Matrix) -> tuple[BigInts, int]:
    """N, d with N/d = Wᵀ(WDWᵀ)⁺W: the projector on the row span, one entry per pair of kinds of columns.

    `columns` holds every kind of column once and `counts` (the diagonal of D) how often it occurs.
    """
    independent, inverse, denominator = inverse_on_support((columns * counts) @ columns.T)
    if not independent:
        return np.zeros((columns.shape[1],) * 2, dtype=np.object_), 1
    rows = flint_matrix(columns[independent])
    return big_integers(rows.transpose() * inverse * rows), denominator


def _over_field(matrix: Matrix, modulus: int) -> nmod_mat:
    return nmod_mat(matrix.shape[0], matrix.shape[1], matrix.ravel().tolist(), modulus)


def rank_over_rationals(matrix: Matrix) -> int:
    """The rank over Q."""
    return int(flint_matrix(matrix).rank())


def rank_over_field(matrix: Matrix, modulus: int) -> int:
    """The rank over F_q."""
    return int(_over_field(matrix, modulus).rank())


def isolated_over_field(matrix: Matrix, modulus: int, *, one_more_known: bool) -> Iterator[tuple[int, int | None]]:
    """Columns j, and the column i beside it if any, with e_j (+ α·e_i) in the row span over F_q.

    In reduced echelon form the coordinates at the pivots are the coefficients of the rows. So e_j is in the span just
    if j is a pivot and its row is e_j. If one more column may be known (`one_more_known`), span vectors on two
    columns matter as well: with one pivot it is a row with one entry beside it, with two pivots a pair of rows whose
    parts outside the pivots are parallel, and with none it is zero.
    """
    echelon, rank = _over_field(matrix, modulus).rref()
    rows = big_integers(echelon)[:rank]
    pivots = _pivots(rows, rank)
    rest = [column for column in range(matrix.shape[1]) if column not in set(pivots)]
    parallel: dict[tuple[int, ...], int] = {}
    for pivot, outside in zip(pivots, rows[:, rest], strict=True):
        entries = np.flatnonzero(outside)
        if entries.size == 0:
            yield pivot, None
        elif one_more_known:
            if entries.size == 1:
                beside = rest[int(entries[0])]
                yield pivot, beside
                yield beside, pivot
            direction = tuple(_normalised(outside.tolist(), modulus))
            if direction in parallel:
                yield parallel[direction], pivot
                yield pivot, parallel[direction]
            else:
                parallel[direction] = pivot


def _normalised(vector: list[int], modulus: int) -> Iterable[int]:
    """The multiple whose first entry other than zero is one."""
    scale = pow(next(entry for entry in vector if entry), -1, modulus)
    return (entry * scale % modulus for entry in vector)
