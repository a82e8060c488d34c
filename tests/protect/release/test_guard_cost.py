"""What the guard costs: `./scripts/test -m slow -k guard_cost -s` prints the figures of docs/guard.md."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from secure_fl.protect.release.guard import check_release, releasable

Q = 4294955009


def attention(nodes: int, total: int = 64) -> np.ndarray:
    """Rows of small integers that sum to `total`, as attention makes them."""
    rng = np.random.default_rng(1)
    rows = rng.multinomial(total, rng.dirichlet(np.full(nodes, 3.0), nodes))
    rows[np.arange(nodes), np.arange(nodes)] = np.maximum(1, rows.diagonal())
    return rows


def nested(rows: int, nodes: int) -> np.ndarray:
    """Cohorts within cohorts."""
    sizes = np.linspace(nodes, nodes // rows, rows).astype(int)
    return np.array([[1] * size + [0] * (nodes - size) for size in sizes])


CASES: dict[str, tuple[float, Callable[[], object]]] = {
    "100 combinations and a public sum": (
        1.0,
        lambda: check_release(attention(100), colluders=1, public_rows=[[1] * 100], modulus=Q),
    ),
    "the same with the kernel rule": (
        2.0,
        lambda: check_release(attention(100), colluders=1, public_rows=[[1] * 100], modulus=Q, sigma=64),
    ),
    "the same after 200 rounds": (
        4.0,
        lambda: check_release(attention(100), colluders=1, history=[attention(100)] * 200, modulus=Q, sigma=64),
    ),
    "10 nested sums over 256 sites": (
        0.5,
        lambda: check_release(nested(10, 256), colluders=1, opened_at="coordinator", modulus=Q),
    ),
    "releasable, 10 cohorts of 256 sites": (
        0.5,
        lambda: releasable(
            [tuple(f"n{i:03d}" for i in range(int(row.sum()))) for row in nested(10, 256)],
            nodes=[f"n{i:03d}" for i in range(256)],
            colluders=1,
            minimum=3,
        ),
    ),
}


@pytest.mark.slow
def test_guard_cost() -> None:
    for name, (bound, work) in CASES.items():
        seconds = min(_timed(work) for _ in range(3))
        print(f"{name}: {seconds:.3f} s")
        assert seconds < bound


def _timed(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun
