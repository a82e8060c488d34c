"""Shamir's secret sharing of 32-byte secrets: any `threshold` shares tell everything, fewer tell nothing.

A secret is a number below p, the constant term of a polynomial of degree threshold − 1 whose other coefficients are
uniform. Party k (k = 1, 2, …) gets its value at k. Every 32-byte string is a secret, since p > 2²⁵⁶; shares need 33
bytes. With threshold − 1 shares every secret has exactly one polynomial that fits, hence the same probability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from secure_fl.errors import ProtectionError
from secure_fl.protect.primitives.lagrange import lagrange
from secure_fl.randomness import Randomness

PRIME = 2**256 + 297  # the smallest prime above 2²⁵⁶
SECRET_BYTES = 32
SHARE_BYTES = 33

_WIDE = 64  # bytes per coefficient: reducing 512 bits modulo p leaves a bias below 2⁻²⁵⁵


def split(secret: bytes, *, threshold: int, parties: int, randomness: Randomness) -> list[bytes]:
    """One share for each of the parties 1 … `parties`."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= parties < PRIME:
        raise ProtectionError("a secret of 32 bytes is shared among at least `threshold` parties")
    wide = randomness.bytes(_WIDE * (threshold - 1))
    coefficients = [
        int.from_bytes(wide[start : start + _WIDE], "little") % PRIME for start in range(0, len(wide), _WIDE)
    ]
    coefficients.append(int.from_bytes(secret, "little"))
    return [_evaluate(coefficients, party).to_bytes(SHARE_BYTES, "little") for party in range(1, parties + 1)]


def read_share(raw: bytes) -> int:
    """A share as a number; `ProtectionError` unless it is one of the field's, in the one form it can have."""
    value = int.from_bytes(raw, "little")
    if len(raw) != SHARE_BYTES or value >= PRIME:
        raise ProtectionError("a share is outside the field")
    return value


class Interpolation:
    """Secrets shared among the same parties, interpolated from the shares of the same `threshold` of them."""

    def __init__(self, parties: Sequence[int], *, threshold: int) -> None:
        if len(set(parties)) != len(parties) or any(not 0 < party < PRIME for party in parties):
            raise ProtectionError("a party appears twice, or has no place on the polynomial")
        if len(parties) < threshold:
            raise ProtectionError(f"{len(parties)} shares do not reach the threshold of {threshold}")
        self._base, self._rest = tuple(parties[:threshold]), tuple(parties[threshold:])
        self._at_zero, *at_rest = lagrange(self._base, (0, *self._rest), prime=PRIME)
        self._at_rest = dict(zip(self._rest, at_rest, strict=True))

    def secret(self, shares: Mapping[int, int]) -> bytes:
        """The secret, once every share, also those beyond the threshold, lies on one polynomial."""
        values = [shares[party] for party in self._base]
        for party, weights in self._at_rest.items():
            if _dot(weights, values) != shares[party]:
                raise ProtectionError("the shares do not lie on one polynomial")
        secret = _dot(self._at_zero, values)
        if secret >= 2**256:
            raise ProtectionError("the shares are not those of a secret")
        return secret.to_bytes(SECRET_BYTES, "little")


def _evaluate(coefficients: Sequence[int], at: int) -> int:
    """Horner's rule; the highest coefficient comes first."""
    value = 0
    for coefficient in coefficients:
        value = (value * at + coefficient) % PRIME
    return value


def _dot(weights: Sequence[int], values: Sequence[int]) -> int:
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) % PRIME
