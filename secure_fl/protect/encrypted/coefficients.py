"""Coefficients modulo q: as bytes, of which each takes as few as q does, as 64-bit words, and in weighted sums."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from secure_fl.errors import ProtectionError
from secure_fl.protect.encrypted.terms import DEGREE, Terms
from secure_fl.protect.primitives.packing import WORD, Words

Raw: TypeAlias = bytes | bytearray | memoryview
Octets: TypeAlias = npt.NDArray[np.uint8]


def rows(raw: Raw, terms: Terms, *, values: int, what: str) -> Octets:
    """The bytes of a body, or of anything as long, by ciphertext. Raises `ProtectionError` for another length."""
    if len(raw) != terms.body_bytes(values):
        raise ProtectionError(f"{what}: {len(raw)} bytes, {terms.body_bytes(values)} were expected")
    return np.frombuffer(raw, np.uint8).reshape(-1, terms.chunk_bytes)


def widen(row: Octets, terms: Terms, *, what: str) -> Words:
    """The coefficients of one polynomial as words. Raises `ProtectionError` if one is not below q."""
    words = np.zeros(DEGREE, WORD)
    words.view(np.uint8).reshape(DEGREE, 8)[:, : terms.coefficient_bytes] = row.reshape(DEGREE, -1)
    # SEAL computes nonsense with what is not reduced, and two encodings of one number would be two messages.
    if int(words.max()) >= terms.modulus:
        raise ProtectionError(f"{what}: a coefficient is not below the modulus")
    return words


def narrow(words: Words, terms: Terms, out: Octets) -> None:
    """The inverse, for coefficients below q."""
    octets = words.view(np.uint8).reshape(DEGREE, 8)
    out.reshape(DEGREE, -1)[:] = octets[:, : terms.coefficient_bytes]


def reduce_once(words: Words, modulus: int) -> None:
    """Words below 2q modulo q, in place: where q is too much, the difference wraps and is the larger one."""
    np.minimum(words, words - np.uint64(modulus), out=words)


class WeightedSum:
    """Σ w·c modulo q, over polynomials that come as bytes. Its memory is one upload's, with 8 bytes a coefficient.

    Words of 64 bits hold sums of up to ⌊2⁶⁴/q⌋ coefficients (256 or more), so that few additions need a reduction.
    """

    def __init__(self, terms: Terms, *, values: int, what: str) -> None:
        self._terms, self._values, self._what = terms, values, what
        self._words = np.zeros((terms.chunks(values), DEGREE), WORD)
        self._room = 2**64 // terms.modulus
        self._load = 0  # every word is at most load·(q − 1)

    def add(self, weight: int, raw: Raw) -> None:
        """Add weight·c. Raises `ProtectionError` for bytes that are no such polynomials; the sum is then lost."""
        load = self._load
        for total, row in zip(self._words, rows(raw, self._terms, values=self._values, what=self._what), strict=True):
            load = self._add_one(total, widen(row, self._terms, what=self._what), weight)
        self._load = load

    def _add_one(self, total: Words, words: Words, weight: int) -> int:
        load = self._load
        while weight:
            times = min(weight, self._room - load)
            if times == 0:
                np.remainder(total, np.uint64(self._terms.modulus), out=total)
                load = 1
                continue
            total += words if times == 1 else words * np.uint64(times)
            load, weight = load + times, weight - times
        return load

    def close(self) -> bytes:
        """The sum, as long as what was added."""
        count = self._words.shape[0]
        octets = self._words.reshape(-1).view(np.uint8)
        packed = octets[: count * self._terms.chunk_bytes].reshape(count, self._terms.chunk_bytes)
        for words, row in zip(self._words, packed, strict=True):
            # Into the same memory, from the front: a row ends where the words that it comes from do, or before.
            narrow(words % np.uint64(self._terms.modulus), self._terms, row)
        return packed.tobytes()
