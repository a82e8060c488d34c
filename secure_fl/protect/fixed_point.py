"""From float updates to ring integers and back. Above every protection, so `none` is the others' exact oracle.

encode: reject NaN and infinity, clip every coordinate to [−clip, clip], multiply by the weight ω ≤ 1, and round
stochastically to multiples of 1/scale, scale = (2^(bits−1) − 1)/clip. Rounding is unbiased: floor(v·scale + u)
with u uniform on [0, 1) from a CSPRNG, so that errors of many nodes average out instead of adding up.

decode: mean = Σ integers / scale / Σ ω (ratio of sums: the same quantised ω in numerator and denominator).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secure_fl.blocks import DTYPE, Vector
from secure_fl.errors import NonFiniteUpdateError, OverflowInvariantError
from secure_fl.protect.base import BlockSum, Integers
from secure_fl.protect.weights import WEIGHT_UNITS
from secure_fl.randomness import KeyStream

# Small enough that the float64 temporaries stay in cache.
_CHUNK = 1 << 16

# Totals are held in int64; wires may be narrower and check their own width with `require_room`.
MAX_BITS = 24

_FLOAT32 = np.finfo(np.float32)


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

    def require_room(self, *, contributors: int, ring_bits: int) -> None:
        """Raise unless the sum of that many values cannot leave a signed ring of `ring_bits`."""
        if contributors * self.limit >= 2 ** (ring_bits - 1):
            raise OverflowInvariantError(f"{contributors} values of {self.bits} bits do not fit a {ring_bits}-bit ring")

    def encode(self, values: Vector, *, weight: int, stream: KeyStream) -> tuple[Integers, int]:
        """Integers for ω·values, and how many coordinates had to be clipped (zero in a healthy study)."""
        if not 0 < weight <= WEIGHT_UNITS:
            raise OverflowInvariantError(f"a weight of {weight}/{WEIGHT_UNITS} would leave the range")
        encoded = np.empty(values.size, np.int32)
        factor = self.scale * weight / WEIGHT_UNITS
        clipped = 0
        buffer = np.empty(min(_CHUNK, values.size), np.float64)
        for start in range(0, values.size, _CHUNK):
            given = values[start : start + _CHUNK]
            part = buffer[: given.size]
            part[:] = given
            low, high = float(given.min()), float(given.max())  # NaN if there is one
            if not np.isfinite(low + high):
                raise NonFiniteUpdateError("the local update contains NaN or infinity")
            if low < -self.clip or high > self.clip:
                clipped += int(np.count_nonzero(np.abs(part) > self.clip))
                np.clip(part, -self.clip, self.clip, out=part)
            part *= factor
            part += stream.uniform(part.size)
            np.floor(part, out=part)
            # ω ≤ 1 bounds the magnitude by `limit`; this guards the invariant against rounding at the edge.
            np.clip(part, -self.limit, self.limit, out=part)
            encoded[start : start + _CHUNK] = part
        return encoded, clipped

    def decode(self, block: BlockSum) -> Vector:
        """The weighted mean behind an opened block."""
        bound = self.limit * max(block.contributors, block.weight / WEIGHT_UNITS)
        # Not np.abs: the most negative integer is its own absolute value, and would pass.
        low, high = int(block.total.min(initial=0)), int(block.total.max(initial=0))
        if block.weight <= 0 or low < -bound or high > bound:
            raise OverflowInvariantError("an opened sum is larger than its contributors can have made it")
        return (block.total / (self.scale * (block.weight / WEIGHT_UNITS))).astype(DTYPE)
