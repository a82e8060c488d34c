"""The pieces of `sealed` together: sealed values, added under weights and opened with shares, are sums and errors."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.protect.primitives.field import to_signed, uniform, weighted_sum
from secure_fl.protect.sealed.error import Gaussian
from secure_fl.protect.sealed.ring import DEGREE, Product
from secure_fl.protect.sealed.shares import expand_share, interpolate, split
from secure_fl.randomness import KeyStream, UnsafeSeededRandomness
from tests.protect.laws import few

SEED = bytes(range(32))


@few
@given(st.lists(st.integers(0, 64), min_size=1, max_size=5), st.integers(1, 3 * DEGREE), st.sampled_from([6.4, 64.0]))
def test_what_is_opened_is_the_weighted_sum_and_its_error(weights: list[int], size: int, sigma: float) -> None:
    gaussian = Gaussian(sigma)
    limit = (2**31 - 2**14) // max(2, sum(weights)) - gaussian.bound
    plain, sealed, shares = [], [], []
    for node in range(len(weights)):
        randomness = UnsafeSeededRandomness(node)
        secret = uniform(randomness, DEGREE)
        values = np.frombuffer(randomness.bytes(8 * size), np.int64) % (2 * limit + 1) - limit
        errors = gaussian.draw(KeyStream(randomness.bytes(32)), size)
        upload = Product(secret).seal((values + errors).astype(np.int32), seed=SEED)
        plain.append(values)
        sealed.append(upload)
        shares.append([expand_share(raw) for raw in split(secret, threshold=3, holders=4, randomness=randomness)])

    opened = weighted_sum(weights, sealed, size=size)
    keys = {k + 1: weighted_sum(weights, (each[k] for each in shares), size=DEGREE) for k in range(4)}
    Product(interpolate(keys, threshold=3)).unseal(opened, seed=SEED)

    expected = sum((weight * values for weight, values in zip(weights, plain, strict=True)), np.zeros(size, np.int64))
    assert np.abs(to_signed(opened) - expected).max() <= sum(weights) * gaussian.bound
    assert (sum(weights) > 0) == (to_signed(opened) != expected).any() or size < 8
