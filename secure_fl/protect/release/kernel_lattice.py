"""What stays hidden when linear combinations of ring-LWE samples are opened.

Node j uploads a·s_j + e_j + x_j. Whoever sees W·s and W·e (all of it, where x is 0) is left with the lattice
{v ∈ Zᴴ : W·v = 0}. For a basis B of it, s = s₀ + B·t and e = e₀ + B·z, with t uniform and z a discrete Gaussian of
covariance σ²(BᵀB)⁻¹, whose narrowest direction is σ/s_max(B): breaking what is left is breaking ring-LWE with an
error at least that wide. This holds for *every* basis of the whole (saturated) lattice, so the smallest s_max that
any basis shows counts, and stopping at a basis that is good enough never accepts what is not safe.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from secure_fl.protect.release.exact_algebra import Matrix, big_integers, flint_matrix, rank_over_rationals

_STEPS = 16


def stretch(rows: Matrix, *, enough: float = 0.0) -> float:
    """A bound on s_max(B) for the best of the bases tried; no more is tried once it is at most `enough`.

    First a basis built from columns that are equal, then its LLL reduction. LLL alone is not enough: for a plain sum
    of n it returns e_1 − e_j or the like, with s_max = √n, while the neighbours e_j − e_(j+1) have s_max < 2.
    The lattice is exact; s_max is a float with a relative error near 1e−13. Infinite if entries are too large for a
    float, zero if the lattice is {0} and nothing is hidden.
    """
    basis = kernel_basis(rows)
    if not len(basis):
        return 0.0
    found = _bound(basis)
    if found > enough:
        found = _largest_singular_value(basis)
    if found > enough:
        found = min(found, _largest_singular_value(big_integers(flint_matrix(basis).lll())))
    return found


def kernel_basis(rows: Matrix) -> npt.NDArray[Any]:
    """A basis, one vector per row, of all integer v with rows·v = 0.

    Columns that are equal form a class. v is in the lattice just if its sums over the classes are in the kernel of
    the distinct columns. So a basis is: differences of neighbours within each class, and every vector of a kernel
    basis of the distinct columns, spread evenly over the members of its classes. Attention weights are small
    integers: a hundred nodes have some twenty distinct columns, and LLL of twenty dimensions costs a millisecond.
    """
    columns, members = np.unique(rows, axis=1, return_inverse=True)
    classes = [np.flatnonzero(members.ravel() == kind) for kind in range(columns.shape[1])]
    nodes = rows.shape[1]
    vectors: list[npt.NDArray[Any]] = []
    for kind, nodes_of_kind in enumerate(classes):
        if not columns[:, kind].any():  # Nobody sees these nodes at all: the unit vectors.
            vectors.append(np.eye(nodes, dtype=np.int64)[nodes_of_kind])
            continue
        neighbours = np.zeros((len(nodes_of_kind) - 1, nodes), dtype=np.int64)
        positions = np.arange(len(nodes_of_kind) - 1)
        neighbours[positions, nodes_of_kind[:-1]] = 1
        neighbours[positions, nodes_of_kind[1:]] = -1
        vectors.append(neighbours)
    seen = [kind for kind in range(columns.shape[1]) if columns[:, kind].any()]
    between = _reduced_kernel(columns[:, seen])
    lifted = np.zeros((len(between), nodes), dtype=between.dtype)
    for position, kind in enumerate(seen):
        size = len(classes[kind])
        each, left = between[:, position] // size, between[:, position] % size
        lifted[:, classes[kind]] = each[:, None] + (np.arange(size) < left[:, None])
    vectors.append(lifted)
    return np.concatenate(vectors)


def _reduced_kernel(columns: Matrix) -> npt.NDArray[Any]:
    """LLL of [I | K·Wᵀ]: the reduced rows that end in zeros are a basis of the kernel.

    They are part of a basis of Zᴴ, hence primitive; once there are as many as the kernel has dimensions they span
    all of it. A large K makes LLL put them first; it grows until they are all there.
    """
    count = columns.shape[1]
    if not count:
        return np.zeros((0, 0), dtype=np.int64)
    dimension = count - rank_over_rationals(columns)
    emphasis = 1 << 32
    while True:
        joined = np.concatenate([np.eye(count, dtype=np.object_), columns.T.astype(np.object_) * emphasis], axis=1)
        reduced = big_integers(flint_matrix(joined).lll())
        kernel = reduced[~reduced[:, count:].astype(np.bool_).any(axis=1), :count]
        if len(kernel) == dimension:
            return kernel
        emphasis <<= 64


def _bound(basis: npt.NDArray[Any]) -> float:
    """Not below s_max(B), and much cheaper.

    s_max² = λ_max(G) ≤ ρ(|G|) with the Gram matrix G, and for every positive v, ρ(|G|) ≤ max_i (|G|v)_i / v_i
    (Collatz–Wielandt). A few steps of the power method make v a good one; each of them is a bound by itself.
    """
    try:
        vectors = basis.astype(np.float64)
    except OverflowError:
        return float("inf")
    gram = np.abs(vectors @ vectors.T)
    positive, least = np.ones(len(gram)), float("inf")
    for _ in range(_STEPS):
        image = gram @ positive
        least = min(least, float((image / positive).max()))
        positive = image / image.max()
    return float(np.sqrt(least))


def _largest_singular_value(basis: npt.NDArray[Any]) -> float:
    try:
        return float(np.linalg.norm(basis.astype(np.float64), 2))
    except OverflowError:
        return float("inf")
