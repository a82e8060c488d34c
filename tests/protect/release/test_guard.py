"""What may be opened and what may not: the cases that the rules were made for."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest

from secure_fl.errors import ProtectionError, ReleaseRefusedError
from secure_fl.protect.release.guard import check_release, releasable
from secure_fl.protect.release.guard_rows import Opening

Q = 4294955009
ATTENTION = [[268, 300, 211, 245]]  # Σ = 1024, opened at node 0


def cohort(size: int, nodes: int) -> list[int]:
    return [1] * size + [0] * (nodes - size)


def refused(rule: str) -> pytest.RaisesExc[ReleaseRefusedError]:
    return pytest.raises(ReleaseRefusedError, check=lambda error: error.rule == rule)


# --- sums -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "leverage"), [(4, Fraction(1, 3)), (3, Fraction(1, 2)), (100, Fraction(1, 99))])
def test_a_plain_sum_hides_one_among_the_honest(nodes: int, leverage: Fraction) -> None:
    report = check_release([[1] * nodes], colluders=1, opened_at="coordinator", modulus=Q)
    assert report.leverage == leverage
    assert (report.support, report.largest_share, report.coalitions) == (nodes, Fraction(1, nodes), nodes)
    assert report.node not in report.coalition
    assert report.kernel_margin is None
    assert report.history_leverage is None


def test_the_bound_is_exact() -> None:
    check_release([[1] * 3], colluders=1, opened_at="coordinator", tau=0.5)
    with refused("leverage"):
        check_release([[1] * 3], colluders=1, opened_at="coordinator", tau=0.49999999999999994)


def test_nested_cohorts_show_their_difference() -> None:
    with refused("span") as caught:
        check_release(
            [cohort(8, 8), cohort(6, 8)], colluders=1, opened_at="coordinator", names=[f"site{i}" for i in range(8)]
        )
    assert {caught.value.node, *caught.value.coalition} == {"site6", "site7"}
    assert str(caught.value.node) in str(caught.value)
    assert caught.value.hint
    report = check_release([cohort(8, 8), cohort(4, 8)], colluders=1, opened_at="coordinator")
    assert report.leverage == Fraction(1, 3)


def test_a_difference_of_one_needs_no_colluder() -> None:
    with refused("span"):
        check_release([cohort(8, 8), cohort(7, 8)], colluders=0, opened_at="coordinator")


def test_a_span_of_three_rows_none_of_which_is_short() -> None:
    rows = [[1, 1, 1, 0, 1, 1], [1, 1, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2], [1, 1, 1, 1, 1, 2]]
    with refused("span"):
        check_release(rows, colluders=1, opened_at="coordinator")


def test_a_span_over_the_field_only() -> None:
    # 65536·65536 − 11·1117 = q, so modulo q the two rows are parallel outside the first two columns.
    rows = [[1, 3, 65536, 65536, 65536, 11, 11, 11], [2, 1, 1117, 1117, 1117, 65536, 65536, 65536]]
    check_release(rows, colluders=1, opened_at="coordinator")
    with refused("span") as caught:
        check_release(rows, colluders=1, opened_at="coordinator", modulus=Q)
    assert {caught.value.node, *caught.value.coalition} == {0, 1}
    served = {"colluders": 1, "recipients": [1, 1]}
    check_release(rows, **served)  # type: ignore[arg-type]
    with refused("span") as caught:
        check_release(rows, modulus=Q, **served)  # type: ignore[arg-type]
    assert (caught.value.node, caught.value.coalition) == (0, (1,))


# --- combinations -----------------------------------------------------------------------------------------------


def test_a_row_and_a_sum_are_judged_together() -> None:
    alone = check_release(ATTENTION, colluders=1, recipients=[0])
    assert float(alone.leverage) == pytest.approx(0.4626, abs=1e-4)
    assert (alone.node, alone.coalition) == (1, (0,))
    check_release([[1] * 4], colluders=1, opened_at="coordinator")
    with refused("leverage"):
        check_release(ATTENTION, colluders=1, recipients=[0], public_rows=[[1] * 4])
    together = check_release(ATTENTION, colluders=1, recipients=[0], public_rows=[[1] * 4], tau=0.95)
    assert float(together.leverage) == pytest.approx(0.9045, abs=1e-4)


def test_a_row_plus_a_sum_isolates() -> None:
    row = [2, 1, 1, 1, 1, 2]
    check_release([row], colluders=1, recipients=[0])
    with refused("span") as caught:
        check_release([row], colluders=1, recipients=[0], public_rows=[[1] * 6])
    assert (caught.value.node, caught.value.coalition) == (5, (0,))


def test_rows_of_two_colluding_recipients_isolate_by_their_difference() -> None:
    rows = [[2, 2, 1, 1, 2, 1], [2, 2, 1, 1, 1, 1]]
    check_release(rows, colluders=1, recipients=[0, 1])
    with refused("span") as caught:
        check_release(rows, colluders=2, recipients=[0, 1])
    assert (caught.value.node, caught.value.coalition) == (4, (0, 1))


def test_a_recipient_is_curious_even_if_nobody_colludes() -> None:
    rows = [[3, 1, 1, 1], [0] * 4, [0] * 4, [0] * 4]
    assert check_release(rows, colluders=0).leverage == Fraction(1, 3)
    assert check_release(rows, colluders=0).coalition == (0,)


def test_a_recipient_that_is_not_served_sees_nothing() -> None:
    report = check_release(np.zeros((4, 4), dtype=np.int64), colluders=1)
    assert report.leverage == 0


# --- support ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "colluders"),
    [([1, 1, 0, 0, 0], 0), ([1, 1, 0, 0, 0], 1), ([1, 1, 1, 0, 0], 2), ([0, 0, 0, 0, 1], 0), ([0] * 5, 1)],
)
def test_a_sum_of_too_few(row: list[int], colluders: int) -> None:
    with refused("support"):
        check_release([row], colluders=colluders, opened_at="coordinator")
    with refused("support"):
        check_release(np.zeros((5, 5), dtype=np.int64), colluders=colluders, public_rows=[row])


@pytest.mark.parametrize(
    ("row", "colluders"), [([1, 0, 0, 0, 0], 1), ([1, 1, 1, 0, 0], 1), ([1, 1, 1, 1, 0], 2), ([0, 1, 1, 1, 1], 1)]
)
def test_a_combination_of_too_few_or_without_its_recipient(row: list[int], colluders: int) -> None:
    with refused("support"):
        check_release([row], colluders=colluders, recipients=[0])


def test_no_node_has_more_than_half_of_the_weight() -> None:
    check_release([[5, 5, 5, 15]], colluders=1, recipients=[3])
    with refused("support") as caught:
        check_release([[5, 5, 5, 16]], colluders=1, opened_at="coordinator")
    assert caught.value.node == 3


# --- history ----------------------------------------------------------------------------------------------------


def test_pairs_over_three_rounds_add_up() -> None:
    """AB, BC, CA beside one that colludes: each alone passes; two show C to A, and all three show everything."""
    known = [[*pair, 1] for pair in ([1, 0, 1], [0, 1, 1], [1, 1, 0])]
    for pair in known:
        assert check_release([pair], colluders=1, opened_at="coordinator").leverage == Fraction(1, 2)
    for earlier in (known[1:2], known[1:]):
        with refused("history"):
            check_release(known[:1], colluders=1, opened_at="coordinator", history=[[row] for row in earlier], tau=1)


def test_a_later_row_may_show_what_an_earlier_one_hid() -> None:
    with refused("history") as caught:
        check_release([cohort(7, 8)], colluders=1, opened_at="coordinator", history=[[cohort(8, 8)]])
    assert caught.value.node == 7


def test_the_same_cohort_again_is_no_news() -> None:
    report = check_release([[1] * 8], colluders=1, opened_at="coordinator", history=[[[1] * 8]] * 5)
    assert report.leverage == report.history_leverage == Fraction(1, 7)
    # Nor is the same in another unit.
    assert check_release([[1] * 8], colluders=1, opened_at="coordinator", history=[[[3] * 8]]).leverage == Fraction(
        1, 7
    )


# --- per-block cohorts ------------------------------------------------------------------------------------------

SITES = [f"site{i}" for i in range(8)]


def test_groups_are_released_from_the_largest_cohort_on() -> None:
    cohorts = [SITES[:4], SITES[:6], SITES, SITES[:2], SITES[:4], tuple(SITES)]
    assert releasable([frozenset(names) for names in cohorts], nodes=SITES, colluders=1, minimum=3) == (
        True, False, True, False, True, True,
    )  # fmt: skip


def test_the_study_may_ask_for_more_and_the_guard_for_its_own_least() -> None:
    assert releasable([SITES[:4]], nodes=SITES, colluders=1, minimum=5) == (False,)
    assert releasable([SITES[:2]], nodes=SITES, colluders=1, minimum=1) == (False,)
    assert releasable([], nodes=SITES, colluders=1, minimum=3) == ()


def test_of_cohorts_of_one_size_the_first_is_released() -> None:
    first, second = SITES[:7], SITES[1:]
    assert releasable([first, second], nodes=SITES, colluders=1, minimum=3) == (True, False)
    assert releasable([second, first], nodes=SITES, colluders=1, minimum=3) == (True, False)


@pytest.mark.parametrize(("nodes", "colluders"), [(SITES[:3], 1), ([*SITES, SITES[0]], 1), (SITES, 8), (SITES, -1)])
def test_cohorts_that_do_not_fit_the_round(nodes: list[str], colluders: int) -> None:
    with pytest.raises(ProtectionError):
        releasable([SITES], nodes=nodes, colluders=colluders, minimum=3)


# --- what was handed in -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights",
    [
        [[1.0, 1.0, 1.0, 1.0]], [[float("nan")] * 4], [[1, 1, 1, None]], [["1"] * 4], [1, 1, 1, 1], [[]], [],
        [[1, 1, 1, 1], [1, 1]], [[[1, 1, 1]]], [[1, 1, 1, 1 << 25]], [[1, 1, 1, 1 << 70]], [[True] * 4],
    ],
)  # fmt: skip
def test_only_a_matrix_of_integers_is_looked_at(weights: object) -> None:
    with pytest.raises(ProtectionError) as caught:
        check_release(weights, colluders=1, opened_at="coordinator")  # type: ignore[arg-type]
    assert type(caught.value) is ProtectionError


def test_a_negative_weight_names_its_node() -> None:
    with refused("support") as caught:
        check_release([[1, 1, -1, 1]], colluders=1, opened_at="coordinator", names=["a", "b", "c", "d"])
    assert caught.value.node == "c"
    with refused("support"):
        check_release([[1] * 4], colluders=1, opened_at="coordinator", history=[[[1, 1, 1, -1]]])


@pytest.mark.parametrize(
    "settings",
    [
        {"colluders": 4}, {"colluders": -1}, {"tau": 0}, {"tau": 1.5}, {"tau": float("nan")}, {"tau": "x"},
        {"modulus": 4}, {"modulus": 1}, {"modulus": 1 << 70}, {"sigma": 0}, {"sigma": float("nan")},
        {"names": ["a"]}, {"names": ["a", "a", "b", "c"]}, {"public_rows": [[1, 1, 1]]}, {"history": [[[1, 1, 1]]]},
        {"opened_at": "recipients"}, {"opened_at": "recipients", "recipients": [4]}, {"recipients": [0]},
        {"opened_at": "recipients", "recipients": [0, 1]}, {"opened_at": "somewhere"},
        {"history": [Opening(weights=[[1] * 4], opened_at="recipients")]},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(settings: dict[str, object]) -> None:
    with pytest.raises(ProtectionError) as caught:
        check_release([[1] * 4], **({"colluders": 1, "opened_at": "coordinator"} | settings))  # type: ignore[arg-type]
    assert type(caught.value) is ProtectionError


def test_recipients_by_name() -> None:
    report = check_release(ATTENTION, colluders=1, recipients=["north"], names=["north", "south", "east", "west"])
    assert (report.node, report.coalition) == ("south", ("north",))


# --- cost -------------------------------------------------------------------------------------------------------


def test_every_node_can_afford_it() -> None:
    """Processor time, with room for a slow machine: a hundred recipients and 256 nodes with ten cohorts."""
    dice = np.random.default_rng(3)
    combine = dice.multinomial(448, np.full(100, 0.01), size=100) + np.eye(100, dtype=np.int64) * 64
    sums = dice.integers(0, 2, (10, 256))
    names = [str(node) for node in range(256)]
    began = time.process_time()
    report = check_release(combine, colluders=1, public_rows=[[1] * 100], modulus=Q, sigma=64)
    assert report.kernel_margin is not None
    check_release(sums, colluders=1, opened_at="coordinator", modulus=Q)
    assert any(releasable([set(np.array(names)[row > 0]) for row in sums], nodes=names, colluders=1, minimum=3))
    assert time.process_time() - began < 10
