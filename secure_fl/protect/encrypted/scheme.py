"""Encryption whose ciphertexts can be added: BFV, with the arithmetic of ciphertexts done by SEAL.

A ciphertext (c₀, a) is kept as two halves, which go to different parties. The **body** is c₀, 4096 coefficients of a
few bytes each. The **seed** is the 64 bytes from which a is expanded. Both halves add up, each by itself:

    bodies   Scheme.add_bodies   Σ w·c₀     needs neither key nor seeds
    seeds    Scheme.add_seeds    Σ w·a      the **mask** of the sum; needs neither key nor bodies
    opening  Cipher.open         Σ w·values from the added bodies, the mask and the key

Who has the key but not the seeds learns nothing from bodies: a·s is uniformly random, because a is and the key has an
inverse (`Key.read` refuses any other). Who has bodies and seeds but not the key learns nothing by ring-LWE. Who opens
learns Σ w·values and a sum of errors that does not depend on them (`terms`).

Anybody can change what a body holds without the key: the scheme hides values and does not authenticate them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NoReturn, Self, TypeVar, final

import numpy as np

from secure_fl.encoding.integers import Integers, Totals
from secure_fl.errors import OverflowInvariantError, ProtectionError
from secure_fl.identity.signing import transcript
from secure_fl.protect.encrypted.coefficients import Raw, WeightedSum, narrow, reduce_once, rows, widen
from secure_fl.protect.encrypted.seal_files import Seal
from secure_fl.protect.encrypted.terms import CHECKS, DEGREE, SEED_BYTES, Terms
from secure_fl.protect.primitives.packing import WORD, Words
from secure_fl.secret import Secret

Part = TypeVar("Part", bound=Raw)


class Scheme:
    """What needs no key. Adding bodies does not even load SEAL."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    @property
    def seal(self) -> Seal:
        """SEAL with the parameters of the terms, which takes a moment to prepare and is then kept."""
        return _seal(self.terms)

    def add_bodies(self, parts: Iterable[tuple[int, Raw]], *, values: int) -> bytes:
        """Σ w·c₀ over (w, body). Of the bodies one at a time is needed.

        Raises `OverflowInvariantError` if weights add up to too much, `ProtectionError` for what is no body.
        """
        total = WeightedSum(self.terms, values=values, what="a body")
        for weight, body in self._weighed(parts):
            total.add(weight, body)
        return total.close()

    def add_seeds(self, parts: Iterable[tuple[int, bytes]], *, values: int) -> bytes:
        """Σ w·a over (w, seeds), as long as a body. Raises like `add_bodies`."""
        weighed = list(self._weighed(parts))
        for _, seeds in weighed:
            if len(seeds) != self.terms.seeds_bytes(values):
                raise ProtectionError(f"seeds: {len(seeds)} bytes, {self.terms.seeds_bytes(values)} were expected")
        out = np.empty((self.terms.chunks(values), self.terms.chunk_bytes), np.uint8)
        seal = self.seal
        evaluator = seal.api.Evaluator(seal.context)
        # A weight is below t/2, so that SEAL takes it for what it is and not for a negative number.
        factors = [(seal.api.Plaintext(f"{weight:x}") if weight > 1 else None) for weight, _ in weighed]
        with seal.files() as files:
            for chunk, row in enumerate(out):
                total: Any = None
                for factor, (_, seeds) in zip(factors, weighed, strict=True):
                    mask = files.expanded(seeds[chunk * SEED_BYTES : (chunk + 1) * SEED_BYTES])
                    if factor is not None:
                        evaluator.multiply_plain_inplace(mask, factor)
                    if total is None:
                        total = mask
                    else:
                        evaluator.add_inplace(total, mask)
                narrow(files.mask(total), self.terms, row)
        return out.tobytes()

    def _weighed(self, parts: Iterable[tuple[int, Part]]) -> Iterator[tuple[int, Part]]:
        """`parts`, as long as their weights are in order; there must be one at least."""
        added = 0
        for weight, part in parts:
            if weight < 1:
                raise ProtectionError(f"weights are positive integers, not {weight}")
            added += weight
            if added > self.terms.weight_sum:
                raise OverflowInvariantError(
                    f"weights add up to {added}, and sums have room for {self.terms.weight_sum}"
                )
            yield weight, part
        if not added:
            raise ProtectionError("there is nothing to add")


@lru_cache(maxsize=8)
def _seal(terms: Terms) -> Seal:
    return Seal(terms)


@final
class Key:
    """The key of a round: s by its values at the roots of X⁴⁰⁹⁶ + 1, none of which is zero. Its repr shows nothing."""

    __slots__ = ("_secret", "id", "terms")

    def __init__(self, scheme: Scheme, raw: bytes) -> None:
        """A key from its bytes; raises `ProtectionError` if they are none."""
        self.terms = scheme.terms
        words = _key_words(raw, self.terms)
        # A key without an inverse leaves parts of a·s constant, and with s = 0 bodies would be the values themselves.
        if not words.all():
            raise ProtectionError("a key has no inverse: it would not hide bodies from those who know it")
        self._secret = Secret(raw)
        self.id = hashlib.sha256(transcript("encrypted key", self.terms.encoded, raw)).digest()

    @classmethod
    def generate(cls, scheme: Scheme) -> Self:
        """A new key of −1, 0 and 1, from SEAL, which draws it from the operating system's randomness."""
        seal, raw = scheme.seal, np.empty(scheme.terms.chunk_bytes, np.uint8)
        with seal.files() as files:
            words = np.zeros(DEGREE, WORD)
            while not words.all():  # With a modulus of 32 bits one in a million has no inverse.
                words = files.key_words(seal.api.KeyGenerator(seal.context).secret_key())
            narrow(words, scheme.terms, raw)
        return cls(scheme, raw.tobytes())

    @classmethod
    def read(cls, scheme: Scheme, raw: bytes) -> Self:
        """A key that somebody else generated. Raises `ProtectionError` unless it is one and has an inverse."""
        return cls(scheme, raw)

    @property
    def raw(self) -> bytes:
        """The key itself: what is sent, under another encryption, to those who may open."""
        return self._secret.reveal()

    def words(self) -> Words:
        """Its values as words."""
        return _key_words(self.raw, self.terms)

    def wipe(self) -> None:
        """Overwrite and forget, as far as Python allows."""
        self._secret.wipe()

    def __repr__(self) -> str:
        return "Key(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Key is never pickled")


def _key_words(raw: bytes, terms: Terms) -> Words:
    return widen(rows(raw, terms, values=1, what="a key")[0], terms, what="a key")


class Cipher:
    """A key at work."""

    def __init__(self, scheme: Scheme, key: Key) -> None:
        if key.terms != scheme.terms:
            raise ProtectionError("a key belongs to a round with other terms")
        self._terms, self._seal = scheme.terms, scheme.seal
        with self._seal.files() as files:
            secret = files.secret_key(key.words())
        self._encryptor = self._seal.api.Encryptor(self._seal.context, secret)
        self._decryptor = self._seal.api.Decryptor(self._seal.context, secret)

    def encrypt(self, parts: Iterable[Integers], *, values: int) -> tuple[bytearray, bytes]:
        """Body and seeds of `values` integers, which come in parts of any length.

        Raises `OverflowInvariantError` for an integer outside the study's range, `ProtectionError` if there are more
        or fewer of them.
        """
        terms = self._terms
        packing, modulus, scale = terms.packing, terms.modulus, np.uint64(terms.scale)
        body, seeds = bytearray(terms.body_bytes(values)), bytearray()
        out = iter(np.frombuffer(body, np.uint8).reshape(-1, terms.chunk_bytes))
        message = np.empty(DEGREE, WORD)
        with self._seal.files() as files:
            for chunk in _chunks(parts, values=values, size=terms.chunk_values):
                packing.pack(chunk, message[:-CHECKS])
                message[-CHECKS:] = 1
                # SEAL encrypts zero, with a new seed and a new error. Adding Δ·m to it is all there is to encryption.
                zero, seed = files.body_and_seed(self._encryptor.encrypt_zero_symmetric())
                np.multiply(message, scale, out=message)
                message += zero
                reduce_once(message, modulus)
                narrow(message, terms, next(out))
                seeds += seed
        return body, bytes(seeds)

    def open(self, body: Raw, mask: Raw, *, values: int, weight: int) -> Totals:
        """Σ w·values behind added bodies and their mask, where the weights w add up to `weight`: exact.

        Raises `ProtectionError` if body, mask, key and weight do not belong together, and `OverflowInvariantError` if
        a total is larger than honest values allow. The former overlooks a mistake with a probability below 2⁻¹²⁸, as
        any of them makes a whole ciphertext random. A body in which single coefficients were changed opens to changed
        values: that it is the body that was sent is for signatures and digests to say.
        """
        terms = self._terms
        packing, size = terms.packing, terms.chunk_values
        if not 0 < weight <= terms.weight_sum:
            raise OverflowInvariantError(f"weights add up to {weight}, and sums have room for {terms.weight_sum}")
        bodies = rows(body, terms, values=values, what="a sum of bodies")
        masks = rows(mask, terms, values=values, what="a mask")
        totals = np.empty(values, np.int32)
        for chunk, words in enumerate(self._decrypt(zip(bodies, masks, strict=True))):
            if (words[-CHECKS:] != weight).any():
                raise ProtectionError("a sum of ciphertexts does not open: bodies, mask, key or weights do not match")
            part = totals[chunk * size : (chunk + 1) * size]
            part[:] = packing.unpack(words[:-CHECKS], part.size, contributors=weight)
        return totals

    def _decrypt(self, pairs: Iterable[tuple[Any, Any]]) -> Iterator[Words]:
        """The message of each pair of a body and a mask, whatever it may be."""
        with self._seal.files() as files:
            for body, mask in pairs:
                pair = files.ciphertext(
                    widen(body, self._terms, what="a sum of bodies"), widen(mask, self._terms, what="a mask")
                )
                plaintext = self._seal.api.Plaintext()
                self._decryptor.decrypt(pair, plaintext)
                yield files.plaintext_words(plaintext)


def _chunks(parts: Iterable[Integers], *, values: int, size: int) -> Iterator[Integers]:
    """`values` integers in arrays of `size`, the last one shorter. Each is valid until the next is asked for."""
    buffer, filled, left = np.empty(min(size, values), np.int32), 0, values
    for part in parts:
        rest = part.reshape(-1)
        left -= rest.size
        if left < 0:
            raise ProtectionError(f"there are more values than {values}")
        while rest.size:
            taken = min(size - filled, rest.size)
            np.copyto(buffer[filled : filled + taken], rest[:taken], casting="safe")
            filled, rest = filled + taken, rest[taken:]
            if filled == size:
                yield buffer
                filled = 0
    if left:
        raise ProtectionError(f"there are {values - left} values instead of {values}")
    if filled:
        yield buffer[:filled]
