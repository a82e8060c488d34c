"""Errors of ring-LWE: a discrete Gaussian, P(x) ∝ exp(−x²/2σ²), cut at ⌊6σ⌋ so that a sum of errors has a hard bound.

A draw is the inverse of the distribution function at a uniform 64-bit number. Its first 16 bits nearly always decide
alone, by a table; only where a step of the function falls between two multiples of 2⁴⁸ the other 48 bits are drawn and
looked up among the steps. So a draw costs two bytes and one look-up, and is as exact as one with 64 bits.

Probabilities are multiples of 2⁻⁶⁴, the nearest ones, symmetric, and zero has what is left to one. Against the
distribution that they round, the chi-square distance (Rényi divergence of order 2, less one) is below 2⁻⁹⁰, so that no
number of samples makes the difference matter; the cut takes away 2⁻²⁸ of what there would be without it. Look-ups of
secret values are no secret from somebody who watches this machine's cache. Nobody does, in the threat model.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from secure_fl.errors import ProtectionError
from secure_fl.randomness import Randomness

TAIL = 6  # standard deviations

_DIGITS = 60  # decimal digits, of which a probability of 64 bits needs twenty
_PIECE = 1 << 15
_UNDECIDED = np.int16(-(2**15))
_WORD = np.dtype("<u8")
_REST = np.uint64(48)

Errors: TypeAlias = npt.NDArray[np.int16]
Steps: TypeAlias = npt.NDArray[np.uint64]


class Gaussian:
    """The distribution with one σ."""

    def __init__(self, sigma: float) -> None:
        if not 1 <= sigma <= 2**12:  # Written so that NaN is refused too.
            raise ProtectionError("sigma must lie between 1 and 4096")
        self.sigma = sigma
        self.bound = int(TAIL * sigma)
        self._steps, self._table = _tables(sigma)

    def draw(self, randomness: Randomness, count: int) -> Errors:
        """`count` independent errors, none beyond `bound`."""
        errors = np.empty(count, np.int16)
        index = np.empty(min(_PIECE, count), np.intp)  # what `take` would make of the bits, anew each time
        for start in range(0, count, _PIECE):
            part = errors[start : start + _PIECE]
            leading = index[: part.size]
            leading[:] = np.frombuffer(randomness.bytes(2 * part.size), "<u2")
            np.take(self._table, leading, out=part, mode="clip")  # no index is out of range, and none is checked
            undecided = np.flatnonzero(part == _UNDECIDED)
            words = np.frombuffer(randomness.bytes(_WORD.itemsize * undecided.size), _WORD) >> (np.uint64(64) - _REST)
            words |= leading[undecided].astype(np.uint64) << _REST
            part[undecided] = np.searchsorted(self._steps, words, side="right") - self.bound
        return errors


def probabilities(sigma: float) -> list[int]:
    """P(x)·2⁶⁴ for x from −⌊6σ⌋ to ⌊6σ⌋. Their sum is 2⁶⁴."""
    with localcontext(prec=_DIGITS):  # Not floats: every machine has the same table, to the last bit.
        exponent = -1 / (2 * Decimal(sigma) ** 2)
        weights = [(exponent * x * x).exp() for x in range(1, int(TAIL * sigma) + 1)]
        unit = Decimal(2**64) / (1 + 2 * sum(weights))
        beyond = [int((weight * unit).to_integral_value()) for weight in weights]
    return [*reversed(beyond), 2**64 - 2 * sum(beyond), *beyond]


@cache
def _tables(sigma: float) -> tuple[Steps, Errors]:
    """The steps, where x is left for x + 1, and what 16 leading bits decide."""
    steps = np.cumsum(np.array(probabilities(sigma)[:-1], np.uint64))
    first = np.arange(1 << 16, dtype=np.uint64) << _REST
    last = first | np.uint64(2**48 - 1)
    low, high = (np.searchsorted(steps, words, side="right") for words in (first, last))
    return steps, np.where(low == high, low - int(TAIL * sigma), _UNDECIDED).astype(np.int16)
