"""Rows of integer weights: made from shares, checked, and served as far as the guard allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import ProtectionError, ReleaseRefusedError
from secure_fl.protect.release.combinations import check_rows, require_row, row_total, servable, whole_weights
from tests.protect.laws import law

NODES = tuple(f"n{i}" for i in range(6))


@pytest.mark.parametrize(("nodes", "total"), [(4, 64), (16, 64), (17, 128), (32, 128), (33, 256), (256, 1024)])
def test_a_rows_total_leaves_every_node_four_units(nodes: int, total: int) -> None:
    assert row_total(nodes) == total


@law
@given(st.dictionaries(st.sampled_from(NODES), st.floats(0, 1e6), min_size=1))
def test_whole_weights_add_up_and_are_off_by_less_than_one(shares: dict[str, float]) -> None:
    weights = whole_weights(shares, 64)
    whole = sum(shares.values())
    if not whole:
        assert weights == {}
        return
    assert sum(weights.values()) == 64
    for name, share in shares.items():
        assert abs(weights.get(name, 0) - 64 * share / whole) < 1 + 1e-9
    assert all(weight > 0 for weight in weights.values())


def test_whole_weights_by_hand() -> None:
    assert whole_weights({"a": 1.0, "b": 1.0, "c": 1.0}, 64) == {"a": 22, "b": 21, "c": 21}
    assert whole_weights({"a": 2.0, "b": 0.0}, 64) == {"a": 64}


@pytest.mark.parametrize("shares", [{}, {"a": 0.0}, {"a": -1.0, "b": 2.0}, {"a": float("nan")}, {"a": float("inf")}])
def test_shares_that_mean_nothing_make_no_row(shares: dict[str, float]) -> None:
    assert whole_weights(shares, 64) == {}


@pytest.mark.parametrize("row", [{"n0": 63}, {"n0": 32, "x": 32}, {"n0": 65, "n1": -1}, {"n0": 64, "n1": 0}])
def test_what_is_no_row_is_refused(row: dict[str, int]) -> None:
    with pytest.raises(ProtectionError):
        require_row(row, uploaded=NODES, total=64)


def test_no_row_at_all_is_a_wish_for_nothing() -> None:
    require_row({}, uploaded=NODES, total=64)


@law
@given(
    st.dictionaries(
        st.sampled_from(NODES), st.dictionaries(st.sampled_from(NODES), st.integers(1, 40), max_size=6), max_size=6
    ),
    st.integers(1, 2),
)
def test_what_is_servable_passes_the_guard_and_is_as_asked(rows: dict[str, dict[str, int]], colluders: int) -> None:
    served = servable(rows, nodes=NODES, colluders=colluders)
    assert all(rows[recipient] == row for recipient, row in served.items())
    if served:
        check_rows(served, nodes=NODES, colluders=colluders)
    if colluders == 1:
        # A recipient alone sees its own row only: each of those left out is refused by itself as well.
        for recipient in rows.keys() - served.keys():
            if rows[recipient]:
                with pytest.raises(ReleaseRefusedError):
                    check_rows({recipient: rows[recipient]}, nodes=NODES, colluders=1)
