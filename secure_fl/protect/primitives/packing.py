"""Several values in one word, so that one mask word hides them all: less to send and less to mask.

A value v of the study's grid, |v| ≤ L, becomes v + L ≥ 0. Sums of up to n of those stay below 2^b with
b = bits of 2·L·n, so ⌊64/b⌋ lanes of b bits share a word and no carry ever crosses a lane: adding words adds lanes.
With 16-bit values and 10 nodes: b = 20, three lanes, 2.67 bytes a parameter. After the sum of k words each lane
gives back Σ v = lane − k·L. A word has 64 bits, or fewer where what carries it has no room for more.

Lane i of a block holds a contiguous part of it, so packing is a shift and an addition over whole arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from secure_fl.encoding.integers import Integers, Totals
from secure_fl.errors import OverflowInvariantError

WORD = np.dtype("<u8")
_PIECE = 1 << 14  # words packed at a time: fresh memory for whole lanes costs more than the arithmetic
Words: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How values of `bits` bits share words when at most `contributors` of them are added."""

    bits: int
    contributors: int
    word_bits: int = 64

    def __post_init__(self) -> None:
        if self.bits < 2 or self.contributors < 1 or not self.lane_bits <= self.word_bits <= 64:
            raise OverflowInvariantError(
                f"{self.contributors} values of {self.bits} bits do not fit a {self.word_bits}-bit word"
            )

    @property
    def limit(self) -> int:
        """The largest magnitude of one value."""
        return int(2 ** (self.bits - 1)) - 1

    @property
    def lane_bits(self) -> int:
        """Bits that hold any sum of shifted values."""
        return (2 * self.limit * self.contributors).bit_length()

    @property
    def lanes(self) -> int:
        """Values per word."""
        return self.word_bits // self.lane_bits

    def words(self, values: int) -> int:
        """How many words so many values take."""
        return -(-values // self.lanes)

    def pack(self, values: Integers, out: Words) -> None:
        """Write `values` into `out`, which has `words(values.size)` entries or more."""
        if values.min(initial=0) < -self.limit or values.max(initial=0) > self.limit:
            raise OverflowInvariantError("a value is outside the study's fixed-point range")
        buffer = np.empty(min(_PIECE, out.size), np.int64)
        for start in range(0, out.size, _PIECE):
            piece = out[start : start + _PIECE]
            piece[:] = 0
            for lane in range(self.lanes):
                first = lane * out.size + start
                part = values[first : min(first + piece.size, (lane + 1) * out.size)]
                shifted = buffer[: part.size]
                np.add(part, self.limit, out=shifted)
                np.left_shift(shifted, lane * self.lane_bits, out=shifted)
                piece[: part.size] += shifted.view(np.uint64)

    def unpack(self, words: Words, values: int, *, contributors: int) -> Totals:
        """The sums behind `words`, to which `contributors` added."""
        if not 0 < contributors <= self.contributors:
            raise OverflowInvariantError("more contributors than the words have room for")
        if contributors * self.limit >= 2**31:
            raise OverflowInvariantError("sums of so many values of so many bits do not fit 32 bits")
        totals = np.empty(values, np.int32)
        lane_mask, offset = np.uint64(2**self.lane_bits - 1), contributors * self.limit
        buffer = np.empty(min(_PIECE, words.size), np.uint64)
        for lane in range(self.lanes):
            part = totals[lane * words.size : (lane + 1) * words.size]
            for start in range(0, part.size, _PIECE):
                piece = buffer[: part[start : start + _PIECE].size]
                np.right_shift(words[start : start + piece.size], np.uint64(lane * self.lane_bits), out=piece)
                np.bitwise_and(piece, lane_mask, out=piece)
                if piece.max() > 2 * offset:
                    raise OverflowInvariantError("an opened sum is larger than its contributors can have made it")
                np.subtract(piece.view(np.int64), offset, out=part[start : start + _PIECE], casting="same_kind")
        return totals
