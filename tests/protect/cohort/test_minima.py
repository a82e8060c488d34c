"""Who is behind an opened value: the same minima for every protection."""

from __future__ import annotations

import pytest

from secure_fl.aggregation import RequestKind
from secure_fl.errors import CohortTooSmallError
from secure_fl.protect.cohort.minima import holders, require_cohort, smallest_cohort


@pytest.mark.parametrize("colluders", range(20))
def test_two_honest_nodes_hide_behind_each_other(colluders: int) -> None:
    # Colluders subtract their own parts: a sum of what is left must still be one of two nodes at least.
    assert smallest_cohort(RequestKind.SUM, colluders) - colluders >= 2
    # A combination's recipient knows its own part as well, and may be one of the honest.
    assert smallest_cohort(RequestKind.COMBINE, colluders) - colluders - 1 >= 2


def test_there_is_a_floor_without_colluders() -> None:
    assert smallest_cohort(RequestKind.SUM, 0) == 3
    assert smallest_cohort(RequestKind.COMBINE, 0) == 4


def test_holders_are_sorted_per_block() -> None:
    declared = {"west": ("a", "b"), "east": ("b",), "north": ()}
    assert holders(declared) == {"a": ("west",), "b": ("east", "west")}


def test_a_cohort_counts_nodes_once() -> None:
    require_cohort(["a", "b", "c"], 3)
    with pytest.raises(CohortTooSmallError, match="block: 2 contributors, at least 3") as caught:
        require_cohort(["a", "b", "a"], 3, what="block")
    assert (caught.value.have, caught.value.need) == (2, 3)
