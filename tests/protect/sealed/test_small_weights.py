"""The attack that large weights and small errors allowed: opened combinations gave up the keys behind them.

A recipient and the coordinator know W = (w_1, w_2, w_3) on the honest nodes, every upload y_j = a·s_j + e_j + Δ·x_j
and, once the row is opened, K = Σ w_j·s_j. Where all updates are zero (dead inputs, frozen layers), that is

    u = Σ w_j·y_j − a·K = Σ w_j·e_j,  an integer that is small enough to be known exactly.

(e_1, e_2, e_3) is then a point of a coset of the lattice {v ∈ Z³ : W·v = 0}. If the lattice is sparse against the
errors, the shortest point of the coset is it, and where the second shortest is much longer there is hardly a doubt.
Each such coordinate is an exact linear equation a·s_j = y_j − e_j in each key: with as many as a key has coefficients,
linear algebra gives all three keys. The guard's kernel rule is about just this (docs/guard.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt
import pytest
from flint import nmod_mat

from secure_fl.errors import ReleaseRefusedError
from secure_fl.protect.primitives.field import MODULUS, to_signed, uniform, weighted_sum
from secure_fl.protect.release.combinations import SIGMA, check_rows, row_total
from secure_fl.protect.release.guard import SMALLEST_ERROR, check_release
from secure_fl.protect.release.kernel_lattice import kernel_basis, stretch
from secure_fl.protect.sealed.error import Gaussian
from secure_fl.protect.sealed.ring import DEGREE, Product
from secure_fl.randomness import KeyStream, UnsafeSeededRandomness

WEAK = ((300, 211, 245), 3.2)  # and 268 for the recipient itself: Σw = 1024
SHIPPED = ((19, 13, 15), SIGMA)  # and 17: the same wishes in whole numbers of Σw = 64

Signed = npt.NDArray[np.int64]


@dataclass(frozen=True)
class View:
    """What the recipient of a row and the coordinator have, for coordinates where nobody has an update."""

    weights: tuple[int, ...]
    sigma: float
    public: Signed  # coefficients of a₀, a₁, …, one row each
    uploads: Signed  # one row per honest node, modulo q
    opened: Signed  # Σ w·e
    keys: Signed  # what is to be found: no part of the view


# --- the attack ---------------------------------------------------------------------------------------------------


def shortest(weights: tuple[int, ...], sums: Signed) -> tuple[Signed, Signed]:
    """The shortest errors with these weighted sums, and by how much (squared) any others are longer."""
    basis = kernel_basis(np.array([weights])).astype(np.int64)
    common = gcd(*weights)
    one = _bezout(tuple(weight // common for weight in weights))
    span = np.arange(-3, 4)
    near = np.stack(np.meshgrid(span, span), axis=-1).reshape(-1, 2) @ basis
    rough = sums[:, None] // common * one
    nearest = np.rint(rough @ np.linalg.pinv(basis.astype(np.float64))).astype(np.int64)
    points = (rough - nearest @ basis)[:, None, :] - near
    order = np.argsort((points**2).sum(axis=-1), axis=1)
    best, second = (points[np.arange(len(sums)), order[:, place]] for place in (0, 1))
    gap: Signed = (second**2).sum(axis=-1) - (best**2).sum(axis=-1)
    return best, gap


def _bezout(weights: tuple[int, ...]) -> Signed:
    """Some integers whose weighted sum is one."""
    span = range(-40, 41)
    a, b, c = weights
    found = next((x, y, (1 - a * x - b * y) // c) for x in span for y in span if (1 - a * x - b * y) % c == 0)
    return np.array(found, np.int64)


def rows_of(public: Signed, places: Signed) -> list[list[int]]:
    """Coordinates of a·s as linear functions of s: coefficient n of a·Xᵐ is a_(n−m), with a minus where m > n."""
    degree = public.shape[1]
    powers = np.arange(degree)
    rows = []
    for place in places.tolist():
        element, n = divmod(place, degree)
        row = public[element][(n - powers) % degree]
        rows.append(np.where(powers > n, (MODULUS - row) % MODULUS, row).tolist())
    return rows


def recover(view: View) -> Signed | None:
    """Every honest node's key, or None if what follows from the likeliest errors does not fit the uploads."""
    degree, nodes = view.public.shape[1], len(view.weights)
    errors, gap = shortest(view.weights, view.opened)
    best = np.argsort(-gap, kind="stable")
    used, left = best[:degree], best[degree : degree + 64]
    right = (view.uploads[:, used].T - errors[used]) % MODULUS
    system = nmod_mat(rows_of(view.public, used), MODULUS)
    try:
        solved = system.solve(nmod_mat(right.tolist(), MODULUS))
    except ZeroDivisionError:
        return None
    # The attacker can tell: with the right keys everything that was not used is an error's width away, too.
    told = nmod_mat(rows_of(view.public, left), MODULUS) * solved
    rest = (view.uploads[:, left] - _integers(told, len(left), nodes).T) % MODULUS
    rest = np.minimum(rest, MODULUS - rest)
    return _integers(solved, degree, nodes).T if rest.max() <= 6 * view.sigma else None


def _integers(matrix: nmod_mat, rows: int, columns: int) -> Signed:
    return np.array([int(entry) for row in matrix.tolist() for entry in row], np.int64).reshape(rows, columns)


# --- what is attacked ---------------------------------------------------------------------------------------------


def toy(weights: tuple[int, ...], sigma: float, *, degree: int, elements: int) -> View:
    """The same construction in Z_q[X]/(X^degree + 1)."""
    stream = UnsafeSeededRandomness(17, f"{weights} {sigma}")
    public = uniform(stream, elements * degree).reshape(elements, degree).astype(np.int64)
    keys = uniform(stream, len(weights) * degree).reshape(-1, degree).astype(np.int64)
    every = np.array(rows_of(public, np.arange(elements * degree)), np.object_)
    errors = np.stack([Gaussian(sigma).draw(stream, elements * degree) for _ in weights]).astype(np.int64)
    uploads = ((every @ keys.T.astype(np.object_)).T + errors) % MODULUS
    opened_key = np.array(weights, np.object_) @ keys % MODULUS
    opened = (np.array(weights, np.object_) @ uploads - every @ opened_key) % MODULUS
    return View(weights, sigma, public, uploads.astype(np.int64), _centred(opened), keys)


def real(weights: tuple[int, ...], sigma: float, *, elements: int) -> View:
    """With the product's own ring, errors and sums."""
    stream, seed, size = UnsafeSeededRandomness(18, f"{weights} {sigma}"), bytes(32), elements * DEGREE
    one = np.zeros(DEGREE, np.uint32)
    one[0] = 1
    public = Product(one).seal(np.zeros(size, np.int32), seed=seed)
    keys, uploads = [], []
    for _ in weights:
        keys.append(uniform(KeyStream(stream.bytes(32)), DEGREE))
        errors = Gaussian(sigma).draw(KeyStream(stream.bytes(32)), size).astype(np.int32)
        uploads.append(Product(keys[-1]).seal(errors, seed=seed))
    opened = weighted_sum(weights, uploads, size=size)
    Product(weighted_sum(weights, keys, size=DEGREE)).unseal(opened, seed=seed)
    table = public.astype(np.int64).reshape(elements, DEGREE)
    return View(
        weights, sigma, table, np.stack(uploads).astype(np.int64), to_signed(opened), np.stack(keys).astype(np.int64)
    )


def _centred(residues: npt.NDArray[np.object_]) -> Signed:
    values = residues.astype(np.int64)
    return np.where(values > MODULUS // 2, values - MODULUS, values)


# --- tests --------------------------------------------------------------------------------------------------------


def test_large_weights_and_small_errors_give_up_every_key() -> None:
    view = toy(*WEAK, degree=128, elements=16)
    found = recover(view)
    assert found is not None
    assert np.array_equal(found, view.keys)


@pytest.mark.parametrize("weights", [SHIPPED[0], (16, 16, 16), (31, 8, 8), (20, 17, 10)])
def test_the_same_attack_fails_against_what_is_shipped(weights: tuple[int, ...]) -> None:
    view = toy(weights, SIGMA, degree=64, elements=16)
    assert recover(view) is None
    # Not by a hair: of the likeliest errors hardly any are right, and none is much likelier than the next.
    errors, gap = shortest(weights, view.opened)
    exact = np.array(rows_of(view.public, np.arange(view.opened.size)), np.object_) @ view.keys.T.astype(np.object_)
    truth = np.stack([_centred((view.uploads[j] - exact[:, j]) % MODULUS) for j in range(len(weights))], axis=1)
    assert (errors == truth).all(axis=1).mean() < 0.02
    assert np.exp(-gap.max() / (2 * SIGMA**2)) > 0.5


@pytest.mark.parametrize("sigma", [3.2, 6.4])
def test_small_weights_do_not_make_up_for_small_errors(sigma: float) -> None:
    """Σw = 64 alone is not what protects: errors an order of magnitude wider than the lattice are."""
    assert stretch(np.array([SHIPPED[0]])) > sigma / SMALLEST_ERROR


def test_the_guard_refuses_the_weak_and_passes_the_shipped() -> None:
    with pytest.raises(ReleaseRefusedError) as refused:
        check_release([[268, *WEAK[0]]], colluders=1, recipients=[0], sigma=WEAK[1], modulus=MODULUS)
    assert refused.value.rule == "kernel"
    report = check_release([[17, *SHIPPED[0]]], colluders=1, recipients=[0], sigma=SHIPPED[1], modulus=MODULUS)
    assert report.kernel_margin is not None
    assert report.kernel_margin >= SMALLEST_ERROR
    # What a holder calls has the shipped σ and no other, and the shipped total is 64 for up to sixteen nodes.
    names = ("n0", "n1", "n2", "n3")
    assert row_total(len(names)) == 64
    check_rows({"n0": dict(zip(names, (17, *SHIPPED[0]), strict=True))}, nodes=names, colluders=1)
    with pytest.raises(ReleaseRefusedError):
        check_rows({"n0": dict(zip(names, (268, *WEAK[0]), strict=True))}, nodes=names, colluders=1)


def test_in_the_real_ring_every_key_of_2048_coefficients_is_found_and_none_of_the_shipped() -> None:
    weak = real(*WEAK, elements=16)
    found = recover(weak)
    assert found is not None
    assert np.array_equal(found, weak.keys)
    assert recover(real(*SHIPPED, elements=16)) is None
