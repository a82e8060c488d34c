"""A short integer vector in place of a long one: distances between sketches are those between the vectors, roughly.

A count sketch. Each coordinate is added, with a random sign, to one of k places; all nodes of a round draw the same
places and signs, from the round's own binding. The squared length of a sketched difference has the right mean and a
relative standard deviation of at most √(2/k): 4.4 % with k = 1024. A vector of at most k coordinates is kept as it is,
and its distances are exact to rounding. Values are integers in steps of 2⁻¹⁴, so that a squared distance is an integer
too: below 2⁶⁰, and the same for whoever computes it in whatever way.
"""

from __future__ import annotations

import numpy as np

from secure_fl.blocks import Vector
from secure_fl.encoding.integers import Integers
from secure_fl.errors import NonFiniteUpdateError
from secure_fl.randomness import KeyStream, derive_key

SIZE = 1024  # k
LIMIT = 1 << 24  # of a sketch's magnitude: k·(2·LIMIT)² = 2⁶⁰
_STEPS = 1 << 14  # per unit
_CHUNK = 1 << 16


def sketch(features: Vector, *, binding: bytes) -> Integers:
    """The sketch of `features` in the round with this binding. Raises `NonFiniteUpdateError`."""
    if not np.isfinite(features).all():
        raise NonFiniteUpdateError("the features contain NaN or infinity")
    places = np.zeros(SIZE, np.float64)
    if features.size <= SIZE:
        places[: features.size] = features
    else:
        stream = KeyStream(derive_key(binding, b"sketch"))
        for start in range(0, features.size, _CHUNK):
            part = features[start : start + _CHUNK]
            draws = np.frombuffer(stream.bytes(2 * part.size), "<u2")
            signed = np.where(draws & SIZE, -part, part)
            places += np.bincount(draws % SIZE, weights=signed, minlength=SIZE)
    # What is larger than a sketch can hold (±LIMIT/_STEPS) is cut off and its distances come out too small. Refusing to
    # be compared would tell whoever made the model that this site's features are that large.
    return np.clip(np.rint(places * _STEPS), -LIMIT, LIMIT).astype(np.int32)


def squared_distance(mine: Integers, theirs: Integers) -> int:
    """Between two sketches, in steps."""
    gap = mine.astype(np.int64) - theirs
    return int(gap @ gap)


def in_units(steps: int) -> float:
    """A squared distance of sketches as one of features."""
    return steps / _STEPS**2
