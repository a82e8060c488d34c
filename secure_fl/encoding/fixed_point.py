"""From float updates to ring integers and back. Above every protection, so `none` is the others' exact oracle.

encode: reject NaN and infinity, clip every coordinate to [−clip, clip], multiply by the weight ω ≤ 1, and round
stochastically to multiples of 1/scale, scale = (2^(bits−1) − 1)/clip. Rounding is unbiased: floor(v·scale + u)
with u uniform on [0, 1) from a CSPRNG, so that errors of many nodes average out instead of adding up. It is integer
arithmetic: v·scale with f more binary places, plus f random bits, shifted right by f. The only bias comes from
truncating to f bits (2^−f of a step) and from float32 precision.

decode: mean = Σ integers / scale / Σ ω (ratio of sums: the same quantised ω in numerator and denominator).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secure_fl.blocks import DTYPE, Vector
from secure_fl.encoding.integers import BlockSum, Integers
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.errors import NonFiniteUpdateError, OverflowInvariantError
from secure_fl.randomness import KeyStream

_CHUNK = 1 << 15  # small enough that the temporaries stay in cache

# Totals are held in int64; wires may be narrower and check their own width with `require_room`.
MAX_BITS = 24

_FLOAT32 = np.finfo(np.float32)

# What values are scaled in, rounded in, and the random bits. Up to 20 bits, 32 hold a value and at least 12 places;
# what float32 loses beyond its 24 bits, it had not in the first place.
_NARROW = (np.float32, np.int32, np.dtype("<u2"))
_WIDE = (np.float64, np.int64, np.dtype("<u4"))
_NARROW_BITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPoint:
    """One study's grid of values."""

    bits: int
    clip: float

    def __post_init__(self) -> None:
        if not 4 <= self.bits <= MAX_BITS:
            raise OverflowInvariantError(f"bits must lie between 4 and {MAX_BITS}, not {self.bits}")
        # Values are float32. A smaller clip would make the scale infinite, a larger one the mean.
        if not float(_FLOAT32.tiny) <= self.clip <= float(_FLOAT32.max):
            raise OverflowInvariantError("clip must be a positive, finite float32")

    @property
    def limit(self) -> int:
        """The largest magnitude an encoded value can have."""
        return int(2 ** (self.bits - 1)) - 1

    @property
    def scale(self) -> float:
        """Integer steps per unit."""
        return self.limit / self.clip

    def largest_mean(self, *, lightest: int) -> float:
        """No coordinate of a mean of encoded values is larger, if no weight was below `lightest`/64.

        With weights of 1 that is the clip. Smaller ones move a value from the grid, and rounding lifts it by less than
        a step; float32 adds less than an eighth of one (three roundings of at most 2¹⁹, each by 2⁻²⁴ of it).
        """
        if lightest >= WEIGHT_UNITS:
            return self.clip
        return self.clip * (1 + 1.125 * WEIGHT_UNITS / (self.limit * lightest))

    def require_room(self, *, contributors: int, ring_bits: int) -> None:
        """Raise unless the sum of that many values cannot leave a signed ring of `ring_bits`."""
        if contributors * self.limit >= 2 ** (ring_bits - 1):
            raise OverflowInvariantError(f"{contributors} values of {self.bits} bits do not fit a {ring_bits}-bit ring")

    def encode(self, values: Vector, *, weight: int, stream: KeyStream) -> tuple[Integers, int]:
        """Integers for ω·values, and how many coordinates had to be clipped (zero in a healthy study)."""
        if not 0 < weight <= WEIGHT_UNITS:
            raise OverflowInvariantError(f"a weight of {weight}/{WEIGHT_UNITS} would leave the range")
        encoded = np.empty(values.size, np.int32)
        narrow = self.bits <= _NARROW_BITS and self.scale * 2**16 < float(_FLOAT32.max)
        reals, integers, coins = _NARROW if narrow else _WIDE
        places = min(16, 32 - self.bits) if narrow else 32
        spare = 8 * coins.itemsize - places
        edge = reals(self.limit * 2.0**places)  # exact: its mantissa has fewer than `bits` bits
        factor = reals(self.scale * weight / WEIGHT_UNITS * 2.0**places)
        tame = self.clip * (1 - 2.0**-20)  # no rounding lifts what is below this beyond the edge
        count = min(_CHUNK, values.size)
        buffer, rounded, bits = (
            np.empty(count, reals),
            np.empty(count, integers),
            KeyStream.buffer(count * coins.itemsize),
        )
        clipped = 0
        for start in range(0, values.size, _CHUNK):
            given = values[start : start + _CHUNK]
            part, whole = buffer[: given.size], encoded[start : start + _CHUNK] if narrow else rounded[: given.size]
            low, high = float(given.min()), float(given.max())  # NaN if there is one
            if not np.isfinite(low + high):
                raise NonFiniteUpdateError("the local update contains NaN or infinity")
            if low < -self.clip or high > self.clip:
                clipped += int(np.count_nonzero(np.abs(given) > self.clip))
                given = np.clip(given, -self.clip, self.clip)
            np.multiply(given, factor, out=part)
            if max(-low, high) > tame:
                # ω ≤ 1 bounds the magnitude by `edge`; this guards the invariant against rounding of the factor.
                np.clip(part, -edge, edge, out=part)
            whole[:] = part
            stream.fill(bits, given.size * coins.itemsize)
            np.add(whole, np.right_shift(np.frombuffer(bits, coins, given.size), spare), out=whole)
            np.right_shift(whole, places, out=encoded[start : start + _CHUNK], casting="same_kind")
        return encoded, clipped

    def reweighed(self, vector: Integers, *, before: int, after: int, stream: KeyStream) -> Integers:
        """One node's integers for the same values under another weight, rounded from the stream as the first time."""
        if after == before:
            return vector
        values = self.decode(BlockSum(total=vector, weight=before, contributors=1))
        encoded, _ = self.encode(np.clip(values, -self.clip, self.clip), weight=after, stream=stream)
        return encoded

    def require_range(self, block: BlockSum) -> None:
        """Raise `OverflowInvariantError` unless contributors with that weight can have made the sum: |mean| ≤ clip.

        Whoever weighs less than a whole may have rounded up, by less than one step; a whole ends at the limit itself.
        """
        lighter = min(block.contributors, max(0, WEIGHT_UNITS * block.contributors - block.weight))  # at most so many
        bound = self.limit * block.weight / WEIGHT_UNITS + lighter
        # Not np.abs: the most negative integer is its own absolute value, and would pass.
        low, high = int(block.total.min(initial=0)), int(block.total.max(initial=0))
        if block.weight <= 0 or low < -bound or high > bound:
            raise OverflowInvariantError("an opened sum is larger than its contributors can have made it")

    def decode(self, block: BlockSum) -> Vector:
        """The weighted mean behind an opened block."""
        self.require_range(block)
        mean = np.empty(block.total.size, DTYPE)
        divisor = self.scale * (block.weight / WEIGHT_UNITS)
        for start in range(0, mean.size, _CHUNK):  # In double precision, a piece at a time.
            mean[start : start + _CHUNK] = block.total[start : start + _CHUNK] / divisor
        return mean
