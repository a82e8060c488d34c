"""What stays hidden of the keys: the kernel lattice, its bases and their margins."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import ReleaseRefusedError
from secure_fl.protect.release.exact_algebra import Matrix, big_integers, flint_matrix
from secure_fl.protect.release.guard import SMALLEST_ERROR, check_release
from secure_fl.protect.release.kernel_lattice import _bound, _reduced_kernel, kernel_basis, stretch
from tests.protect.laws import law
from tests.protect.release.guard_oracle import rank


@st.composite
def rows(draw: st.DrawFn) -> Matrix:
    count, nodes = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    entry = st.integers(0, 64) | st.integers(0, 2)
    values = draw(st.lists(entry, min_size=count * nodes, max_size=count * nodes))
    return np.array(values, dtype=np.int64).reshape(count, nodes)


@law
@given(rows())
def test_the_basis_is_of_the_whole_lattice(matrix: Matrix) -> None:
    basis = kernel_basis(matrix)
    assert len(basis) == matrix.shape[1] - rank(matrix.tolist())
    assert not (matrix.astype(np.object_) @ basis.T).any()
    if len(basis):
        # Saturated just if the Smith form is all ones: no multiple of a vector is in it without the vector.
        smith = big_integers(flint_matrix(basis).snf())
        assert (smith.diagonal() == 1).all()


@law
@given(rows())
def test_the_cheap_bound_is_one(matrix: Matrix) -> None:
    basis = kernel_basis(matrix)
    if not len(basis):
        assert stretch(matrix) == 0
        return
    exact = float(np.linalg.norm(basis.astype(np.float64), 2))
    assert _bound(basis) >= exact * (1 - 1e-9)
    assert stretch(matrix) <= exact * (1 + 1e-9)
    # Stopping early accepts nothing that the best basis does not show, and refuses nothing that it does.
    for enough in (1.5, 4.0, 20.0):
        stopped = stretch(matrix, enough=enough)
        assert stopped >= stretch(matrix) * (1 - 1e-9)
        assert (stopped <= enough) == (stretch(matrix) <= enough)


def test_small_vectors_of_the_kernel_are_in_the_lattice() -> None:
    matrix = np.array([[6, 10, 15, 4]])
    basis = kernel_basis(matrix).astype(np.float64)
    for vector in product(range(-6, 7), repeat=4):
        if not (matrix @ np.array(vector)).any():
            coefficients = np.linalg.lstsq(basis.T, np.array(vector, dtype=np.float64), rcond=None)[0]
            assert coefficients == pytest.approx(np.round(coefficients), abs=1e-9)


@pytest.mark.parametrize("nodes", [3, 10, 99, 255])
def test_a_plain_sum_keeps_half_of_the_error_however_many_take_part(nodes: int) -> None:
    ones = np.ones((1, nodes), dtype=np.int64)
    assert stretch(ones) == pytest.approx(2 * np.cos(np.pi / (2 * nodes)))
    assert np.linalg.norm(_reduced_kernel(ones).astype(np.float64), 2) == pytest.approx(np.sqrt(nodes))  # LLL alone
    report = check_release(np.ones((1, nodes + 1), dtype=np.int64), colluders=1, opened_at="coordinator", sigma=6.4)
    assert report.kernel_margin is not None
    assert report.kernel_margin >= SMALLEST_ERROR


def test_the_weights_that_gave_up_every_key_are_refused() -> None:
    attention = [[268, 300, 211, 245]]
    check_release(attention, colluders=1, recipients=[0])  # leverage alone does not see it
    with pytest.raises(ReleaseRefusedError) as caught:
        check_release(attention, colluders=1, recipients=[0], sigma=3.2)
    assert caught.value.rule == "kernel"
    assert (caught.value.node, caught.value.coalition) == (1, (0,))


def attention_rows(dice: np.random.Generator, nodes: int, total: int, count: int) -> list[Matrix]:
    """Dirichlet weights rounded to integers of one total, none zero and none above half; the recipient is first."""
    found: list[Matrix] = []
    while len(found) < count:
        row = np.floor(dice.dirichlet(np.ones(nodes)) * total).astype(np.int64)
        row[0] += total - row.sum()
        if row.min() > 0 and 2 * row.max() <= total:
            found.append(row[None, 1:])
    return found


@pytest.mark.parametrize(
    ("honest", "median", "refused"), [(3, (7.5, 10.0), (0.01, 0.08)), (4, (12, 16), (0, 0.01)), (7, (20, 26), (0, 0))]
)
def test_margins_of_small_weights(honest: int, median: tuple[float, float], refused: tuple[float, float]) -> None:
    rows = attention_rows(np.random.default_rng(5), honest + 1, 64, 300)
    margins = np.array([64 / stretch(row) for row in rows])
    assert median[0] < np.median(margins) < median[1]
    assert refused[0] <= np.mean(margins < SMALLEST_ERROR) <= refused[1]


@pytest.mark.parametrize(("honest", "most"), [(3, 0.9), (5, 0.9), (11, 1.3)])
def test_margins_of_large_weights_are_never_enough(honest: int, most: float) -> None:
    rows = attention_rows(np.random.default_rng(6), honest + 1, 1024, 150)
    assert max(3.2 / stretch(row) for row in rows) < most


def test_four_honest_nodes_are_not_always_enough() -> None:
    # Any kernel vector that is not a difference of the three has ±20 at the last: s_max ≥ √(20² + 1) > 64/3.2.
    with pytest.raises(ReleaseRefusedError) as caught:
        check_release([[3, 20, 20, 20, 1]], colluders=1, recipients=[0], sigma=64)
    assert caught.value.rule == "kernel"


def test_rows_that_are_dependent_modulo_q_only_are_refused() -> None:
    wide = [[65536] * 5 + [11] * 5, [1117] * 5 + [65536] * 5]  # every 2×2 minor is 0 or ± the modulus
    settings = {"colluders": 1, "opened_at": "coordinator", "sigma": 1e9}
    check_release(wide, **settings)  # type: ignore[arg-type]
    with pytest.raises(ReleaseRefusedError, match="independent") as caught:
        check_release(wide, modulus=4294955009, **settings)  # type: ignore[arg-type]
    assert caught.value.rule == "kernel"
