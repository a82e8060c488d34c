"""The numbers of a sealed round: scale, error, rooms. Every party derives the same from the round's context.

A value x of the study's grid, |x| ≤ L, enters the ring as Δ·x, beside an error |e| ≤ bound. What is opened is
Σ w·(Δ·x + e) with non-negative integer weights. The hard invariant: Σw·(Δ·L + bound) ≤ (q − 1)/2, so that nothing ever
wraps. Hence Δ = ⌊((q − 1)/2 − Σw·bound) / (Σw·L)⌋, and a round for which that is zero is refused.
After opening, Σ w·x is the nearest multiple of 1/Δ: off by at most ⌈Σw·bound/Δ⌉.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secure_fl.aggregation import RequestKind
from secure_fl.encoding.integers import Integers, Totals
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.errors import OverflowInvariantError, ProtectionError
from secure_fl.protect.contract import RoundContext
from secure_fl.protect.primitives.field import HALF, Elements, to_signed
from secure_fl.protect.release.combinations import SIGMA, row_total
from secure_fl.protect.sealed.error import Gaussian
from secure_fl.randomness import Randomness

SUM_SIGMA = 6.4  # a sum's kernel has s_max below 2, so 3.2 stay hidden (docs/guard.md)

_PIECE = 1 << 15


@dataclass(frozen=True, slots=True)
class Terms:
    """What both halves know about the numbers of a round."""

    weight_sum: int  # the most that weights of one opened value add up to
    limit: int  # L
    error: Gaussian

    @staticmethod
    def of(context: RoundContext) -> Terms:
        """Those of a round."""
        return Terms.among(context.kind, nodes=len(context.invited), bits=context.bits)

    @staticmethod
    def among(kind: RequestKind, *, nodes: int, bits: int) -> Terms:
        """Those of a round among so many; raises `OverflowInvariantError` where the ring has no room for it."""
        combining = kind is RequestKind.COMBINE
        terms = Terms(
            weight_sum=row_total(nodes) if combining else nodes,
            limit=int(2 ** (bits - 1)) - 1,
            error=Gaussian(SIGMA if combining else SUM_SIGMA),
        )
        if terms.scale < 1:
            raise OverflowInvariantError(f"values of {bits} bits of {nodes} nodes do not fit the ring")
        return terms

    @property
    def scale(self) -> int:
        """Δ."""
        return self._scale(self.limit)

    @property
    def weight_scale(self) -> int:
        """Δ of the one coefficient with a node's weight in a sum: so large that rounding is exact."""
        return self._scale(WEIGHT_UNITS)

    @property
    def noise(self) -> int:
        """How far an opened total may be from Σ w·x."""
        return -(-self.weight_sum * self.error.bound // self.scale)

    def encode(self, values: Integers, out: Integers, randomness: Randomness) -> None:
        """out = Δ·values + e, at most HALF in magnitude: with as many as two nodes at most HALF/2."""
        scale = np.int32(self.scale)  # Δ·L + bound is at most HALF: 32 bits hold every step
        for start in range(0, values.size, _PIECE):
            given, part = values[start : start + _PIECE], out[start : start + _PIECE]
            if given.min() < -self.limit or given.max() > self.limit:
                raise OverflowInvariantError("a value is outside the study's fixed-point range")
            np.multiply(given, scale, out=part)
            part += self.error.draw(randomness, part.size)

    def decode(self, elements: Elements, *, weights: int) -> Totals:
        """Σ w·x behind opened elements, Σ w being `weights`. Raises if no honest round could have opened them.

        They are the nearest multiples of Δ, and at most Σ w·L: what the errors add beyond that is no value's.
        """
        scale = self.scale
        edge, most = weights * self.limit, weights * (scale * self.limit + self.error.bound)
        totals = np.empty(elements.size, np.int32)  # Σw·L is at most HALF/Δ
        for start in range(0, elements.size, _PIECE):
            opened = to_signed(elements[start : start + _PIECE])
            if opened.min() < -most or opened.max() > most:
                raise ProtectionError("an opened value is larger than its contributors can have made it")
            opened += scale // 2  # floor((v + Δ/2)/Δ) is the nearest
            part = totals[start : start + _PIECE]
            np.floor_divide(opened, scale, out=part, casting="same_kind")
            _cut(part, edge)
        return totals

    def encode_weight(self, weight: int, randomness: Randomness) -> int:
        """The coefficient that carries a node's weight in a sum."""
        value = weight * self.weight_scale + int(self.error.draw(randomness, 1)[0])
        if abs(value) > HALF:
            raise OverflowInvariantError("a weight is outside the ring")
        return value

    def decode_weight(self, element: Elements) -> int:
        """Σ of weights."""
        return round(int(to_signed(element)[0]) / self.weight_scale)

    def _scale(self, limit: int) -> int:
        return (HALF - self.weight_sum * self.error.bound) // (self.weight_sum * limit)


def _cut(totals: Totals, edge: int) -> None:
    np.clip(totals, -edge, edge, out=totals)
