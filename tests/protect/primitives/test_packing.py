"""Lanes: sums of packed words are packed sums, whatever the values, up to the last contributor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import OverflowInvariantError
from secure_fl.protect.primitives.packing import WORD, Packing
from tests.protect.laws import law


def test_sixteen_bits_and_ten_nodes_are_three_lanes() -> None:
    packing = Packing(bits=16, contributors=10)
    assert (packing.lane_bits, packing.lanes) == (20, 3)
    assert 8 * packing.words(3_000_000) / 3_000_000 == pytest.approx(8 / 3)


def test_known_words() -> None:
    packing = Packing(bits=16, contributors=32)  # lanes of 21 bits
    out = np.empty(2, WORD)
    packing.pack(np.array([-32767, 0, 32767, 1, -1], np.int32), out)
    lane = 2**21
    assert out.tolist() == [0 + 65534 * lane + 32766 * lane**2, 32767 + 32768 * lane]


@law
@given(st.data(), st.integers(2, 24), st.integers(1, 256), st.integers(0, 40), st.integers(32, 64))
def test_adding_words_adds_values(data: st.DataObject, bits: int, contributors: int, size: int, word_bits: int) -> None:
    packing = Packing(bits=bits, contributors=contributors, word_bits=word_bits)
    count = data.draw(st.integers(1, contributors))
    extremes = st.sampled_from([-packing.limit, packing.limit])
    value = st.integers(-packing.limit, packing.limit) | extremes
    rows = [np.array(data.draw(st.lists(value, min_size=size, max_size=size)), np.int32) for _ in range(min(count, 5))]
    # The rest repeat the last one: what matters is that everybody at the edge still fits.
    rows += [rows[-1]] * (count - len(rows))
    total = np.zeros(packing.words(size), WORD)
    for row in rows:
        words = np.empty(packing.words(size), WORD)
        packing.pack(row, words)
        total += words
    assert int(total.max(initial=0)) < 2**word_bits
    expected = [sum(column) for column in zip(*(row.tolist() for row in rows), strict=True)]
    assert packing.unpack(total, size, contributors=count).tolist() == expected


@pytest.mark.parametrize("value", [8, -8, 2**31 - 1, -(2**31)])
def test_a_value_beyond_the_grid_is_refused_and_never_wrapped(value: int) -> None:
    packing = Packing(bits=4, contributors=3)
    with pytest.raises(OverflowInvariantError):
        packing.pack(np.array([0, value], np.int32), np.empty(1, WORD))


@pytest.mark.parametrize(("bits", "contributors"), [(24, 2**42), (1, 3), (16, 0)])
def test_lanes_that_cannot_hold_a_sum_are_refused(bits: int, contributors: int) -> None:
    with pytest.raises(OverflowInvariantError):
        Packing(bits=bits, contributors=contributors)


@pytest.mark.parametrize("word_bits", [19, 65])
def test_a_word_holds_a_lane_and_at_most_64_bits(word_bits: int) -> None:
    with pytest.raises(OverflowInvariantError):
        Packing(bits=16, contributors=10, word_bits=word_bits)
    assert Packing(bits=16, contributors=10, word_bits=40).lanes == 2


@pytest.mark.parametrize("contributors", [0, 4])
def test_a_sum_of_too_many_is_not_read(contributors: int) -> None:
    with pytest.raises(OverflowInvariantError):
        Packing(bits=8, contributors=3).unpack(np.zeros(1, WORD), 1, contributors=contributors)
