"""Elements modulo q against Python's integers, at the edges above all."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from flint import fmpz
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import OverflowInvariantError, ProtectionError
from secure_fl.protect.primitives.field import (
    ELEMENT,
    HALF,
    MODULUS,
    WIDTH,
    Elements,
    add,
    beside_limbs,
    cut,
    multiply,
    read_elements,
    reduce,
    signed_sum,
    subtract,
    to_signed,
    uniform,
    weighted_sum,
    wrap,
)
from secure_fl.randomness import KeyStream, UnsafeSeededRandomness
from tests.protect.laws import law

EDGES = [0, 1, HALF - 1, HALF, HALF + 1, MODULUS - 2, MODULUS - 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2**15, 2**16]
element = st.integers(0, MODULUS - 1) | st.sampled_from(EDGES)


class Written:
    """Randomness that was written down."""

    def __init__(self, *words: int) -> None:
        self._bytes = np.array(words, ELEMENT).tobytes()

    def bytes(self, count: int) -> bytes:
        taken, self._bytes = self._bytes[:count], self._bytes[count:]
        assert len(taken) == count
        return taken


def elements(*values: int) -> Elements:
    return np.array(values, ELEMENT)


def test_the_modulus_is_the_largest_such_prime_of_32_bits() -> None:
    candidates = range(MODULUS, 2**32, 4096)
    assert [number for number in candidates if fmpz(number).is_prime()] == [MODULUS]
    assert MODULUS % 4096 == 1


# --- drawing ------------------------------------------------------------------------------------------------------


def test_words_that_are_no_elements_are_replaced_by_those_that_follow() -> None:
    drawn = uniform(Written(5, MODULUS, 7, 2**32 - 1, 2**32 - 2, 8, 9), 4)
    assert drawn.tolist() == [5, 9, 7, 8]
    assert uniform(Written(MODULUS - 1, 0), 2).tolist() == [MODULUS - 1, 0]
    assert uniform(Written(), 0).size == 0


def test_draws_are_uniform() -> None:
    drawn = uniform(KeyStream(bytes(32)), 1 << 20)
    counts = np.bincount(drawn.astype(np.uint64) * np.uint64(1024) // np.uint64(MODULUS), minlength=1024)
    chi = float(((counts - 1024) ** 2 / 1024).sum())
    assert abs(chi - 1023) < 6 * (2 * 1023) ** 0.5
    assert hashlib.sha256(drawn.tobytes()).hexdigest() == (
        "397bb5c545baa9a3106e44c6a99d9b3092714a0363edfe74bf88781f0a7aea14"
    )


# --- forms --------------------------------------------------------------------------------------------------------


def test_elements_travel_as_little_endian_words() -> None:
    assert read_elements(bytes.fromhex("01000000 00d0ffff")).tolist() == [1, MODULUS - 1]
    assert read_elements(b"").size == 0


@pytest.mark.parametrize("raw", [b"\x01", bytes(5), MODULUS.to_bytes(4, "little"), b"\xff" * 8])
def test_what_is_no_element_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtectionError):
        read_elements(raw)


@law
@given(st.lists(st.integers(-HALF, HALF) | st.sampled_from([-HALF, HALF, 0, -1]), max_size=20))
def test_signed_values_come_back(values: list[int]) -> None:
    there = wrap(np.array(values, np.int32))
    assert there.tolist() == [value % MODULUS for value in values]
    assert to_signed(there).tolist() == values


# --- sums ---------------------------------------------------------------------------------------------------------


@law
@given(st.lists(st.tuples(element, element), max_size=40))
def test_addition_and_subtraction(pairs: list[tuple[int, int]]) -> None:
    left, right = (elements(*(pair[side] for pair in pairs)) for side in (0, 1))
    total = left.copy()
    add(total, right)
    assert total.tolist() == [(a + b) % MODULUS for a, b in pairs]
    subtract(total, right)
    assert total.tolist() == left.tolist()


@law
@given(st.lists(st.tuples(st.integers(-HALF - 1, HALF + 1), st.integers(-HALF, HALF)), max_size=40))
def test_sums_of_signed_values(pairs: list[tuple[int, int]]) -> None:
    pairs = [(a, b) for a, b in pairs if abs(a + b) < MODULUS] + [(HALF + 1, HALF - 1), (-HALF - 1, 1 - HALF)]
    left, right = (np.array([pair[side] for pair in pairs], np.int32) for side in (0, 1))
    assert signed_sum(left, right).tolist() == [(a + b) % MODULUS for a, b in pairs]


def test_sums_of_more_than_a_piece() -> None:
    left, right = (uniform(KeyStream(bytes([key]) * 32), 50_001) for key in (1, 2))
    total = left.copy()
    add(total, right)
    assert (total == (left.astype(np.uint64) + right) % MODULUS).all()
    assert (weighted_sum([1, 1], [left, right], size=left.size) == total).all()


@law
@given(st.lists(st.tuples(st.integers(0, 2**16), st.lists(element, min_size=3, max_size=3)), max_size=8))
def test_weighted_sums(terms: list[tuple[int, list[int]]]) -> None:
    total = weighted_sum([weight for weight, _ in terms], (elements(*values) for _, values in terms), size=3)
    assert total.tolist() == [sum(weight * values[k] for weight, values in terms) % MODULUS for k in range(3)]


def test_the_heaviest_sum_does_not_overflow() -> None:
    largest = elements(MODULUS - 1)
    assert weighted_sum([2**32 - 1], [largest], size=1).tolist() == [-(2**32 - 1) % MODULUS]
    assert weighted_sum([2**16] * 65_535, [largest] * 65_535, size=1).tolist() == [-(2**16 * 65_535) % MODULUS]


@pytest.mark.parametrize("weights", [[-1, 2], [2**31, 2**31], [2**32, 0]])
def test_weights_that_could_overflow_are_refused(weights: list[int]) -> None:
    with pytest.raises(OverflowInvariantError):
        weighted_sum(weights, [elements(1), elements(1)], size=1)


def test_vectors_of_another_size_are_refused() -> None:
    with pytest.raises(ProtectionError, match="one size"):
        weighted_sum([1, 1], [elements(1, 2), elements(1)], size=2)


# --- products -----------------------------------------------------------------------------------------------------


@law
@given(st.data(), st.integers(1, 4), st.integers(0, 2 * WIDTH + 1), st.integers(1, 3))
def test_matrix_products(data: st.DataObject, height: int, inner: int, width: int) -> None:
    randomness = UnsafeSeededRandomness(data.draw(st.integers(0, 2**32)))
    matrix = uniform(randomness, height * inner).reshape(height, inner)
    rows = uniform(randomness, inner * width).reshape(inner, width)
    for array in (matrix, rows):
        if array.size and data.draw(st.booleans()):
            array.reshape(-1)[:] = data.draw(element)
    expected = matrix.astype(np.object_) @ rows.astype(np.object_) % MODULUS if inner else np.zeros((height, width))
    assert multiply(matrix, rows).tolist() == expected.tolist()


def test_the_largest_sums_stay_exact() -> None:
    # Rows that agree in sign with what multiplies them, at full magnitude: no partial sum can be larger than this.
    worst = 2 * WIDTH * 2**15 * HALF
    assert worst + HALF + 2 < 2**53
    assert 2 * 32 * (2**16 - 1) * HALF + HALF + 2 < 2**53  # sealed_ring, with the unsigned limbs of 32 words
    summed = np.full((3, 2 * WIDTH), float(HALF)) @ np.full((2 * WIDTH, 5), -(2.0**15))
    assert (summed == -worst).all()
    for value in (worst, -worst, worst - 1, MODULUS * 1000 + HALF, -MODULUS * 1000 - HALF, 0, MODULUS, -MODULUS):
        integers = np.array([float(value)])
        reduce(integers, np.empty(1))
        assert (int(integers[0]) - value) % MODULUS == 0
        assert abs(int(integers[0])) <= HALF + 2


@law
@given(st.integers(-(2**31) + 1, 2**31 - 1) | st.sampled_from([-(2**31) + 1, 2**31 - 1, 2**15, -(2**15), 0]))
def test_limbs(value: int) -> None:
    integers = np.array([float(value)])
    high, low = np.empty(1), np.empty(1)
    cut(integers, high, low)
    assert 2**16 * int(high[0]) + int(low[0]) == value
    assert max(abs(high[0]), abs(low[0])) <= 2**15


def test_what_multiplies_limbs_is_centred() -> None:
    beside = beside_limbs(elements(*EDGES)[None])
    assert np.abs(beside).max() <= HALF
    expected = [value * 2**16 % MODULUS for value in EDGES] + EDGES
    assert [int(value) % MODULUS for value in beside[0]] == expected
