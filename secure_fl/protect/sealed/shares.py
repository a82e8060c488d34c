"""Shamir's sharing of ring elements, coefficient by coefficient over F_q: any `threshold` shares tell everything.

Holder k (k = 1, 2, …) gets the values at k of 2048 polynomials of degree threshold − 1, whose values at zero are the
secret. Such polynomials are determined by the secret and any threshold − 1 other values, so those are drawn first: the
shares of the first threshold − 1 holders are 32-byte seeds of pseudo-random vectors, and the others follow by
interpolation. With threshold − 1 shares every secret has exactly one set of polynomials that fits.

Sharing is linear: Σ w·share is a share of Σ w·secret, for weights that every holder knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from secure_fl.errors import ProtectionError
from secure_fl.protect.primitives.field import ELEMENT, MODULUS, Elements, multiply, read_elements, uniform
from secure_fl.protect.primitives.lagrange import lagrange
from secure_fl.protect.sealed.ring import DEGREE
from secure_fl.randomness import KeyStream, Randomness, derive_key

SEED_BYTES = 32
VECTOR_BYTES = DEGREE * ELEMENT.itemsize


def split(secret: Elements, *, threshold: int, holders: int, randomness: Randomness) -> list[bytes]:
    """One share for each of the holders 1 … `holders`: seeds for the first `threshold` − 1, vectors for the rest."""
    if not 1 <= threshold <= holders < MODULUS:
        raise ProtectionError("a secret is shared among at least `threshold` holders")
    _require_element(secret)
    seeds = [randomness.bytes(SEED_BYTES) for _ in range(threshold - 1)]
    known = np.stack([secret, *(expand_share(seed) for seed in seeds)])
    weights = _lagrange(tuple(range(threshold)), tuple(range(threshold, holders + 1)))
    return [*seeds, *(vector.astype(ELEMENT).tobytes() for vector in multiply(weights, known))]


def expand_share(raw: bytes) -> Elements:
    """The vector that a share is, or is the seed of; `ProtectionError` if it is neither."""
    if len(raw) == SEED_BYTES:
        return uniform(KeyStream(derive_key(raw, b"secure-fl sealed share")), DEGREE)
    if len(raw) != VECTOR_BYTES:
        raise ProtectionError("a share is a seed of 32 bytes or a vector of 8192")
    return read_elements(raw)


def interpolate(shares: Mapping[int, Elements], *, threshold: int) -> Elements:
    """The secret, once every share, also those beyond the threshold, lies on one set of polynomials."""
    if any(not 0 < holder < MODULUS for holder in shares):
        raise ProtectionError("a holder has no place on the polynomial")
    if not 1 <= threshold <= len(shares):
        raise ProtectionError(f"{len(shares)} shares do not reach the threshold of {threshold}")
    for share in shares.values():
        _require_element(share)
    holders = sorted(shares)
    base, rest = tuple(holders[:threshold]), tuple(holders[threshold:])
    values = multiply(_lagrange(base, (0, *rest)), np.stack([shares[holder] for holder in base]))
    for holder, expected in zip(rest, values[1:], strict=True):
        if not np.array_equal(shares[holder], expected):
            raise ProtectionError("the shares do not lie on one polynomial")
    secret: Elements = values[0]
    return secret


def _require_element(vector: Elements) -> None:
    if vector.shape != (DEGREE,) or vector.max() >= MODULUS:
        raise ProtectionError("what is shared, and a share, is 2048 elements of the field")


@lru_cache(maxsize=64)  # An opening asks for the same holders again and again.
def _lagrange(base: tuple[int, ...], others: tuple[int, ...]) -> Elements:
    return np.array(lagrange(base, others, prime=MODULUS), ELEMENT)
