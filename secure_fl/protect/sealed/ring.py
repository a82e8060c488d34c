"""Products in Z_q[X]/(X²⁰⁴⁸ + 1): public elements a₀, a₁, …, which a seed determines, times one secret.

X²⁰⁴⁸ + 1 = Π (X³² − ζ), over the 64 numbers ζ with ζ⁶⁴ = −1 modulo q. So an element is 64 residues of degree below
32, and a product is 64 products of residues: each the product with a 32 × 32 matrix that the secret determines. One
64 × 64 matrix, the same for every element, leads back to coefficients. Two matrix products of small size is all there
is to it, and they do not mind how many elements pass at once.

The public elements are *defined* by their residues. As those are uniform and the residues determine the element,
the elements are uniform, and nobody ever transforms them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from secure_fl.encoding.integers import Integers
from secure_fl.errors import OverflowInvariantError, ProtectionError
from secure_fl.protect.primitives.field import (
    ELEMENT,
    MODULUS,
    Elements,
    Floats,
    beside_limbs,
    cut,
    multiply,
    reduce,
    signed_sum,
    subtract,
    uniform,
    wrap,
)
from secure_fl.randomness import KeyStream, derive_key

DEGREE = 2048
SEED_BYTES = 32
LARGEST_VALUE = 2**30  # and a coefficient of a product is below 2³¹: their sum is below q

_FACTORS, _SHORT = 64, 32  # the product of 64 factors of degree 32
_ROOT = pow(3, (MODULUS - 1) // (2 * _FACTORS), MODULUS)  # of order 128, hence _ROOT⁶⁴ = −1
_ZETAS = [pow(_ROOT, 2 * factor + 1, MODULUS) for factor in range(_FACTORS)]

# Elements that are drawn and multiplied together. Part of the definition of a. The arrays of one batch pass through a
# core's own cache, and no single product has more than 2¹⁸ multiplications, below which OpenBLAS wakes no threads.
_BATCH = 32


class Product:
    """One secret, ready to be multiplied by any number of public elements. Its buffers make it one thread's own."""

    def __init__(self, secret: Elements) -> None:
        if secret.shape != (DEGREE,) or secret.max() >= MODULUS:
            raise ProtectionError("a secret is 2048 elements of the field")
        # Limbs of a word are below 2¹⁶: 2·32 of them times 2³¹ − 6144 stay below 2⁵³ − 2³⁷.
        self._matrices = beside_limbs(_multiplication(residues(secret)))
        self._limbs = np.empty(2 * _BATCH * DEGREE)
        self._integers = np.empty((_FACTORS, _SHORT, _BATCH))
        self._scratch = np.empty_like(self._integers)
        self._signed = np.empty((_BATCH, DEGREE), np.int32)

    def seal(self, values: Integers, *, seed: bytes, at: int = 0) -> Elements:
        """values + a·secret, in the same memory, where a₀·secret, a₁·secret, … are one long vector read from `at`."""
        for part, products in self._parts(values.size, seed, at):
            given = values[part]
            if given.min() < -LARGEST_VALUE or given.max() > LARGEST_VALUE:
                raise OverflowInvariantError("a value is too large to be sealed")
            signed_sum(given, products)
        return values.view(np.uint32)

    def unseal(self, elements: Elements, *, seed: bytes, at: int = 0) -> None:
        """elements −= a·secret, in place."""
        for part, products in self._parts(elements.size, seed, at):
            subtract(elements[part], wrap(products))

    def _parts(self, size: int, seed: bytes, at: int) -> Iterator[tuple[slice, Integers]]:
        """Which places, and the products that belong to them: valid until the next are asked for."""
        span = _BATCH * DEGREE
        for batch in range(at // span, -(-(at + size) // span)):
            first, end = max(at, batch * span), min(at + size, (batch + 1) * span)
            products = self._multiply(public_residues(seed, batch))
            yield slice(first - at, end - at), products[first - batch * span : end - batch * span]

    def _multiply(self, public: Elements) -> Integers:
        """The coefficients of all products of a batch, one after the other; at most HALF + 1 in magnitude."""
        limbs = self._limbs.reshape(_FACTORS, 2 * _SHORT, _BATCH)
        words = public.view("<u2").reshape(*public.shape, 2)
        limbs[:, :_SHORT], limbs[:, _SHORT:] = words[..., 1], words[..., 0]
        np.matmul(self._matrices, limbs, out=self._integers)
        reduce(self._integers, self._scratch)
        # The same memory again; the matrix is now the same for every position below 32.
        limbs = self._limbs.reshape(2 * _FACTORS, _SHORT, _BATCH)
        cut(self._integers, limbs[:_FACTORS], limbs[_FACTORS:])
        np.matmul(_back(), limbs.transpose(1, 0, 2), out=self._integers.transpose(1, 0, 2))
        reduce(self._integers, self._scratch)
        self._signed[:] = self._integers.reshape(DEGREE, _BATCH).T
        return self._signed.reshape(-1)


def public_residues(seed: bytes, batch: int) -> Elements:
    """What defines a: for each factor and each power of X below 32, the residues of the 32 elements of a batch."""
    if len(seed) != SEED_BYTES:
        raise ProtectionError("public elements have a seed of 32 bytes")
    stream = KeyStream(derive_key(seed, b"secure-fl sealed elements" + batch.to_bytes(8, "little")))
    return uniform(stream, _BATCH * DEGREE).reshape(_FACTORS, _SHORT, _BATCH)


def residues(element: Elements) -> Elements:
    """An element modulo X³² − ζ, for every ζ: Xʲ·³² becomes ζʲ."""
    return multiply(_powers(1), element.reshape(_FACTORS, _SHORT))


def _multiplication(short: Elements) -> Elements:
    """For each residue r the matrix of r·u mod X³² − ζ: entry (n, m) is the coefficient of Xⁿ in r·Xᵐ."""
    zetas = np.array(_ZETAS, np.uint64)[:, None]
    beyond = (short * zetas % np.uint64(MODULUS)).astype(ELEMENT)  # Xⁿ⁺³² = ζ·Xⁿ
    powers = np.arange(_SHORT)
    return np.concatenate([beyond, short], axis=1)[:, _SHORT + powers[:, None] - powers]


@cache
def _back() -> Floats:
    """From residues to coefficients: the inverse of ζʲ is ζ⁻ʲ/64, transposed."""
    inverse = pow(_FACTORS, -1, MODULUS)
    return beside_limbs((_powers(-1).T.astype(np.uint64) * np.uint64(inverse) % np.uint64(MODULUS)).astype(ELEMENT))


@cache
def _powers(sign: int) -> Elements:
    """ζ^(±j), one row per ζ."""
    return np.array([[pow(zeta, sign * power, MODULUS) for power in range(_FACTORS)] for zeta in _ZETAS], ELEMENT)
