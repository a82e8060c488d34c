"""Rows at few levels: what the kernel rule refuses passes where nearly equal weights become equal."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.protect.release.combinations import refusal, row_total, whole_weights
from secure_fl.protect.release.levels import passing_row
from tests.protect.laws import few

NODES = tuple(f"n{i:02d}" for i in range(24))
TOTAL = row_total(24)


def verdict(row: dict[str, int], colluders: int = 1) -> str:
    return refusal(row, me="n00", uploaded=NODES, colluders=colluders, asked=())


def made(shares: dict[str, float], colluders: int = 1) -> dict[str, int]:
    return passing_row(shares, TOTAL, me="n00", uploaded=NODES, colluders=colluders)


def test_nearly_equal_weights_become_equal_where_that_lets_them_pass() -> None:
    assert TOTAL == 128
    weights = {"n00": 34, "n01": 32, "n02": 31, "n03": 31}
    assert verdict(weights) == "kernel"
    assert whole_weights(dict(weights), TOTAL) == weights
    # The nearest that passes; (32, 32, 32, 32) passes too.
    assert made({name: float(weight) for name, weight in weights.items()}) == {**dict.fromkeys(weights, 31), "n00": 35}
    assert verdict(dict.fromkeys(weights, 32)) == ""


@pytest.mark.parametrize(
    "weights",
    [
        (32, 32, 32, 32),
        (56, 24, 24, 24),
        (26, 26, 26, 26, 24),
        tuple([5] * 16 + [6] * 8),
    ],
)
def test_a_row_that_passes_stays_as_it_is(weights: tuple[int, ...]) -> None:
    row = dict(zip(NODES, weights, strict=False))
    assert verdict(row) == ""
    assert made({name: float(weight) for name, weight in row.items()}) == row


def test_what_another_rule_refuses_is_not_bent_until_it_passes() -> None:
    for weights in ((43, 43, 42), (80, 20, 14, 14)):  # too few, and one with more than half
        row = dict(zip(NODES, weights, strict=False))
        assert verdict(row) == "support"
        assert made({name: float(weight) for name, weight in row.items()}) == row
    assert made({}) == {}


@few
@given(st.lists(st.floats(0.5, 2), min_size=4, max_size=9))
def test_what_comes_out_is_a_row_over_the_same_sites_near_what_was_wanted(shares: list[float]) -> None:
    wanted = dict(zip(NODES, shares, strict=False))
    row = made(wanted)
    assert sum(row.values()) == TOTAL
    assert row.keys() == wanted.keys()
    peers = {name: row[name] for name in wanted if name != "n00"}
    for a, b in combinations(peers, 2):  # Nobody who is wanted less weighs more, but for what whole numbers need.
        assert wanted[a] < wanted[b] or row[a] >= row[b] - 1
    assert verdict(row) == "" or verdict(whole_weights(wanted, TOTAL)) != "kernel"


@pytest.mark.parametrize("size", [4, 5, 6])
def test_how_many_near_equal_rows_pass_before_and_after(size: int) -> None:
    """Weights within a tenth of each other, as 1 − B_ij with σ of ten medians has them. `-s` prints the numbers."""
    rng = np.random.default_rng(11)
    before = after = 0
    moved = []
    for _ in range(60):
        shares = {name: float(share) for name, share in zip(NODES[:size], rng.uniform(0.9, 1, size), strict=True)}
        plain, coarse = whole_weights(shares, TOTAL), made(shares)
        before += verdict(plain) == ""
        after += verdict(coarse) == ""
        moved.append(sum(abs(coarse[name] - plain[name]) for name in plain) / TOTAL / 2)
    print(f"of 60 rows of {size}, {before} pass as they are, {after} at few levels; {np.mean(moved):.1%} moved")
    assert before < after == 60
    assert np.mean(moved) < 0.05  # of a row's weight that goes to somebody else
