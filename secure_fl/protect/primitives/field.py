"""Numbers modulo the prime q = 2³² − 12287, whole arrays at a time and without rounding.

An element is 32 bits, so an array of them is what travels and what rests. q is the largest 32-bit prime with a root of
unity of order 4096; that it is so near 2³² makes reduction cheap (2³² ≡ 12287) and rejected draws rare.

Matrix products run in float64, where BLAS is fast and integers below 2⁵³ are exact. One factor is cut into two limbs,
v = 2¹⁶·h + l, and the matrix M becomes [2¹⁶·M mod q | M], centred: one product, one sum, one reduction. With w
columns, |limbs| ≤ 2¹⁵ and |entries| ≤ (q − 1)/2 = 2³¹ − 6144, every partial sum in whichever order, fused or not, is
at most 2w·2¹⁵·(2³¹ − 6144). For w = 64 that is 2⁵³ − 6144·2²², so `WIDTH` is 64, and wider products are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from secure_fl.encoding.integers import Integers, Totals
from secure_fl.errors import OverflowInvariantError, ProtectionError
from secure_fl.randomness import Randomness

MODULUS = 4294955009
HALF = (MODULUS - 1) // 2  # the largest magnitude of a centred representative
ELEMENT = np.dtype("<u4")
WIDTH = 64

_GAP = np.uint32(2**32 - MODULUS)
_MODULUS = np.uint64(MODULUS)
_PIECE = 1 << 14  # elements at a time: temporaries stay in a core's own cache
_LIMB = 2.0**16

Elements: TypeAlias = npt.NDArray[np.uint32]
Floats: TypeAlias = npt.NDArray[np.float64]


def uniform(randomness: Randomness, count: int) -> Elements:
    """`count` uniform elements: words of the stream in order, those not below q replaced by the words that follow."""
    words = np.frombuffer(bytearray(randomness.bytes(ELEMENT.itemsize * count)), ELEMENT)
    if words.max(initial=0) >= MODULUS:
        refused = np.flatnonzero(words >= MODULUS)
        words[refused] = uniform(randomness, refused.size)
    return words


def read_elements(raw: bytes | memoryview) -> Elements:
    """Elements as they travel; `ProtectionError` unless every one is below q."""
    if len(raw) % ELEMENT.itemsize:
        raise ProtectionError("elements are four bytes each")
    elements = np.frombuffer(raw, ELEMENT)
    if elements.max(initial=0) >= MODULUS:
        raise ProtectionError("an element is outside the field")
    return elements


def to_signed(elements: Elements) -> Totals:
    """The representatives nearest to zero."""
    return (elements + (elements > HALF) * _GAP).view(np.int32).astype(np.int64)


def wrap(signed: npt.NDArray[np.int32]) -> Elements:
    """The same memory, with q added to what was negative: as two's complement has it, 2³² − 12287."""
    elements = signed.view(np.uint32)
    for part in _pieces(elements.size):
        elements[part] -= (elements[part] >> np.uint32(31)) * _GAP
    return elements


def signed_sum(left: Integers, right: Integers) -> Elements:
    """left + right as elements, in the memory of `left`. `right` is lost. A sum is less than q in magnitude."""
    elements = left.view(np.uint32)
    for part in _pieces(left.size):
        below = np.negative(right[part], out=right[part])
        negative = np.less(left[part], below)  # a sum may have 33 bits; its sign is seen before it is formed
        np.subtract(left[part], below, out=left[part])
        elements[part] -= negative * _GAP
    return elements


def add(into: Elements, other: Elements) -> None:
    """into += other, in place."""
    for part in _pieces(into.size):
        _subtract(into[part], MODULUS - other[part])


def subtract(into: Elements, other: Elements) -> None:
    """into −= other, in place."""
    for part in _pieces(into.size):
        _subtract(into[part], other[part])


def weighted_sum(weights: Sequence[int], vectors: Iterable[Elements], *, size: int) -> Elements:
    """Σ w·vector, one vector at a time. The weights are not negative and their sum is below 2³²."""
    if any(weight < 0 for weight in weights) or sum(weights) >= 2**32:
        raise OverflowInvariantError("weights are neither negative nor so many that a 64-bit sum overflows")
    total = np.zeros(size, np.uint64)  # Σ w·y ≤ (2³² − 1)·(q − 1) < 2⁶⁴
    buffer = np.empty(min(_PIECE, size), np.uint64)
    for weight, vector in zip(weights, vectors, strict=True):
        if vector.shape != total.shape:
            raise ProtectionError("vectors of one sum have one size")
        for part in _pieces(size):
            terms = buffer[: total[part].size]
            np.multiply(vector[part], np.uint64(weight), out=terms)
            total[part] += terms
    reduced = np.empty(size, ELEMENT)
    for part in _pieces(size):
        reduced[part] = total[part] % _MODULUS
    return reduced


def multiply(matrix: Elements, rows: Elements) -> Elements:
    """The matrix product modulo q."""
    product = np.zeros((matrix.shape[0], rows.shape[1]))
    scratch = np.empty_like(product)
    for start in range(0, matrix.shape[1], WIDTH):
        width = slice(start, start + WIDTH)
        centred = to_signed(rows[width]).astype(np.float64)
        limbs = np.empty((2, *centred.shape))
        cut(centred, limbs[0], limbs[1])
        # A remainder so far, below 2³¹, fits beside a sum below 2⁵³ − 2³⁴.
        product += beside_limbs(matrix[:, width]) @ limbs.reshape(-1, centred.shape[1])
        reduce(product, scratch)
    return wrap(product.astype(np.int32))


# --- float64, exact -----------------------------------------------------------------------------------------------


def beside_limbs(matrix: Elements) -> Floats:
    """[2¹⁶·M mod q | M], centred: what multiplies high limbs stacked on low limbs."""
    high = (matrix.astype(np.uint64) << np.uint64(16)) % _MODULUS
    return to_signed(np.concatenate([high.astype(ELEMENT), matrix], axis=-1)).astype(np.float64)


def reduce(integers: Floats, scratch: Floats) -> None:
    """integers −= q·round(integers/q), in place: below 2³¹ in magnitude, if it was at most 2⁵³ − 2³³.

    A quotient below 2²¹ is off by less than 2⁻³¹, so the remainder by q·2⁻³¹ < 2 beyond HALF, and the multiple of q
    that is subtracted stays below 2⁵³ as well.
    """
    np.multiply(integers, 1 / MODULUS, out=scratch)
    np.rint(scratch, out=scratch)
    np.multiply(scratch, float(MODULUS), out=scratch)
    np.subtract(integers, scratch, out=integers)


def cut(integers: Floats, high: Floats, low: Floats) -> None:
    """integers = 2¹⁶·high + low; below 2³¹ in magnitude they have limbs of at most 2¹⁵."""
    np.multiply(integers, 1 / _LIMB, out=high)
    np.rint(high, out=high)
    np.multiply(high, _LIMB, out=low)
    np.subtract(integers, low, out=low)


# --- helpers ------------------------------------------------------------------------------------------------------


def _pieces(size: int) -> Iterator[slice]:
    return (slice(start, min(start + _PIECE, size)) for start in range(0, size, _PIECE))


def _subtract(into: Elements, other: Elements) -> None:
    """into −= other for `other` up to q, the wrapping of 32 bits undone where it happened."""
    borrowed = np.less(into, other)
    np.subtract(into, other, out=into)
    into -= borrowed * _GAP
