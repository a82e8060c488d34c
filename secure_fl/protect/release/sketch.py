"""A short integer vector in place of a long one: distances between sketches are those between the vectors, roughly.

A dense projection to k = ⌈0.09·m⌉ of m numbers, at most 1024. Each of the k is a sum of all m, each with a sign, over
√k; so ten of eleven directions, or more, are in no sketch, and no number of comparisons shows them. For that the
projection is one for ever: it follows from m alone, whatever the study, the round and the attempt. With another one
each time, k more directions would be seen each time.

Signs are those of a Hadamard matrix whose columns are multiplied by random signs and of whose rows k are drawn (a
subsampled randomised Hadamard transform), block by block of 2¹⁶ numbers, with a random sign per block and row. The
squared length of a sketched difference has the right mean and a relative standard deviation of about √(2/k): 4.4 %
with k = 1024, 18 % with k = 59, of 650 numbers. Values are integers in steps of 2⁻¹⁴, so that a squared distance is an
integer too: below 2⁶⁰, and the same for whoever computes it in whatever way.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

from secure_fl.blocks import Vector
from secure_fl.encoding.integers import Integers
from secure_fl.errors import NonFiniteUpdateError
from secure_fl.identity.signing import transcript
from secure_fl.randomness import KeyStream, derive_key

SIZE = 1024  # of every sketch as it is sent: k numbers and zeros
LIMIT = 1 << 24  # of a sketch's magnitude: 1024·(2·LIMIT)² = 2⁶⁰
_SHARE = 0.09  # of the features
_STEPS = 1 << 14  # per unit
_BLOCK = 1 << 16


def sketched(features: int) -> int:
    """k: to how many numbers so many are projected."""
    return min(SIZE, math.ceil(_SHARE * features))


def sketch(features: Vector) -> Integers:
    """The sketch of `features`, which depends on them and on how many they are."""
    if not np.isfinite(features).all():
        raise NonFiniteUpdateError("the features contain NaN or infinity")
    count = sketched(features.size)
    places = np.zeros(SIZE, np.float64)
    for start in range(0, features.size, _BLOCK):
        part = features[start : start + _BLOCK].astype(np.float64)
        columns, rows, signs = _drawn(features.size, start, width=_width(part.size), count=count)
        mixed = np.zeros(columns.size)
        mixed[: part.size] = part
        places[:count] += signs * _hadamard(mixed * columns)[rows]
    scaled = np.rint(places * (_STEPS / math.sqrt(max(count, 1))))
    # What is larger than a sketch can hold (±LIMIT/_STEPS) is cut off and its distances come out too small. Refusing to
    # be compared would tell whoever made the model that this site's features are that large.
    return np.clip(scaled, -LIMIT, LIMIT).astype(np.int32)


def squared_distance(mine: Integers, theirs: Integers) -> int:
    """Between two sketches, in steps."""
    gap = mine.astype(np.int64) - theirs
    return int(gap @ gap)


def in_units(steps: int) -> float:
    """A squared distance of sketches as one of features."""
    return steps / _STEPS**2


def _width(size: int) -> int:
    """The next power of two: the order of the block's Hadamard matrix."""
    return 1 << (size - 1).bit_length()


def _drawn(
    features: int, start: int, *, width: int, count: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Of the block that begins at `start`: the columns' signs, which rows, and those rows' signs."""
    label = transcript("feature projection", features.to_bytes(8, "little"), start.to_bytes(8, "little"))
    stream = KeyStream(derive_key(hashlib.sha256(label).digest(), b"sketch"))
    # The last block may be narrower than k: rows are then drawn again.
    order = np.argsort(np.frombuffer(stream.bytes(8 * width), "<u8"), kind="stable")
    return _signs(stream, width), np.resize(order, count), _signs(stream, count)


def _signs(stream: KeyStream, count: int) -> npt.NDArray[np.float64]:
    bits = np.unpackbits(np.frombuffer(stream.bytes(-(-count // 8)), np.uint8), count=count, bitorder="little")
    return 1 - 2 * bits.astype(np.float64)


def _hadamard(vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The product with Sylvester's Hadamard matrix, of a vector of 2ⁿ numbers."""
    half = 1
    while half < vector.size:
        pairs = vector.reshape(-1, 2, half)
        vector = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return vector
