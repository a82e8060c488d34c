"""A unit's name follows from the unit alone."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from secure_fl.errors import DataError
from secure_fl.tasks.units import group_numbers, record_names, row_digests, unit_names


def test_a_digest_is_that_of_the_rows_bytes_on_every_machine() -> None:
    x, y = np.array([[1.5, 2.0], [0.0, -1.0]], np.float32), np.array([3, 4])
    # 1.5, 2.0 and 3, written down byte by byte.
    expected = hashlib.sha256(bytes.fromhex("0000c03f000000400300000000000000")).digest()
    assert row_digests(x, y)[0] == expected
    assert row_digests(x.astype(">f4"), y.astype(">i8"))[0] == expected
    assert row_digests(np.asfortranarray(x), y)[0] == expected


def test_equal_records_are_counted_and_different_ones_are_not() -> None:
    names = record_names([b"a", b"b", b"a", b"a"])
    assert len(set(names)) == 4
    assert record_names([b"b", b"a", b"a"]) == [names[1], names[0], names[2]]


def test_rows_of_one_group_have_one_name() -> None:
    x = np.arange(4.0)
    names = unit_names(x, groups=np.array([7, 8, 7, 7]))
    assert names[0] == names[2] == names[3] != names[1]


def test_group_numbers_do_not_depend_on_other_groups() -> None:
    assert group_numbers(np.array([5, -1, 5])).tolist() == [5, -1, 5]
    anna, ben, _ = group_numbers(np.array(["anna", "ben", "anna"]))
    assert group_numbers(np.array(["ben", "zoe"]))[0] == ben != anna
    assert min(group_numbers(np.array([f"patient {number}" for number in range(100)]))) >= 0


@pytest.mark.parametrize(
    "groups", [np.array([0.5, 1]), np.zeros((2, 2), int), np.array([2**63], np.uint64), np.array([None])]
)
def test_labels_that_name_no_group_are_refused(groups: np.ndarray[Any, Any]) -> None:
    with pytest.raises(DataError):
        group_numbers(groups)


def test_columns_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(DataError, match=r"columns of \[2, 3\] rows"):
        row_digests(np.zeros(2), np.zeros(3))
    with pytest.raises(DataError, match="Python objects"):
        row_digests(np.array([None]))
