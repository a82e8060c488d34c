"""SEAL and its files: polynomials go in and come out as files in memory, since TenSEAL offers no other way.

A file of SEAL is a header of 16 bytes and then what it holds, compressed with zstd where SEAL wrote it. We write it
without compression, which SEAL reads as well. Whatever comes from another party is checked by its length and its range
(`coefficients`) before SEAL sees it, and no file of SEAL ever crosses between parties.

TenSEAL has no types: what is `Any` here and in `scheme` is an object of SEAL.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from secure_fl.errors import ProtectionError
from secure_fl.memory_file import MemoryFile, Piece
from secure_fl.protect.encrypted.terms import DEGREE, LARGEST_MODULUS_BITS, SECURITY_BITS, SEED_BYTES, Terms
from secure_fl.protect.primitives.packing import WORD, Words

_HEADER = struct.Struct("<HB2sBHQ")  # magic, its length, version, compression, nothing, length of the file
_MAGIC, _UNCOMPRESSED, _ZSTD = 0xA15E, 0, 2
_MAJOR_VERSION = 4
_COUNT = struct.Struct("<Q")  # how many words follow
_CIPHERTEXT = struct.Struct("<32s?QQQdQ")  # parameters, NTT form, polynomials, N, primes, scale, correction factor
_PLAINTEXT = struct.Struct("<32sQd")  # parameters (zero outside NTT form), coefficients, scale
_GENERATOR = struct.Struct(f"<B{SEED_BYTES}s")  # which generator expands the seed, and the seed
_BLAKE2XB = 1
_WORD = WORD.itemsize
_POLYNOMIAL = DEGREE * _WORD
_LARGEST_FILE = 1 << 20  # several times what a ciphertext takes


class Seal:
    """SEAL with the parameters of some terms. Any number of threads may use it."""

    def __init__(self, terms: Terms) -> None:
        import tenseal.sealapi as api

        # SEAL checks the same against its own copy of the table. Two tables are better than one.
        if terms.modulus.bit_length() > LARGEST_MODULUS_BITS[SECURITY_BITS]:
            raise ProtectionError(f"a modulus of {terms.modulus.bit_length()} bits is not {SECURITY_BITS}-bit secure")
        parameters = api.EncryptionParameters(api.SCHEME_TYPE.BFV)
        parameters.set_poly_modulus_degree(DEGREE)
        parameters.set_coeff_modulus([api.Modulus(terms.modulus)])
        parameters.set_plain_modulus(1 << terms.plain_bits)
        # No random generator is set: SEAL then seeds a new one from the operating system for every key and every
        # encryption. One with a seed of ours would repeat a and e, and two ciphertexts with one a show a difference.
        self.api: Any = api
        self.context: Any = api.SEALContext(parameters, True, api.SEC_LEVEL_TYPE.TC256)
        if not self.context.parameters_set():
            raise ProtectionError(f"SEAL refuses the parameters: {self.context.parameters_error_message()}")
        self._version = self._learn_version()
        parameters_id = struct.pack("<4Q", *self.context.first_parms_id())
        pair = _CIPHERTEXT.pack(parameters_id, False, 2, DEGREE, 1, 1.0, 1)
        # What stands before the coefficients of a whole ciphertext, of one whose second half is a seed, and of a key.
        self.whole = pair + self._array(2 * DEGREE)
        self.seeded = pair + self._array(DEGREE)
        self.key = _PLAINTEXT.pack(parameters_id, DEGREE, 1.0) + self._array(DEGREE)
        self.generator = self.header(_GENERATOR.size)

    def header(self, size: int) -> bytes:
        """The header of a file, or of a part of one, that holds `size` bytes without compression."""
        return _HEADER.pack(_MAGIC, _HEADER.size, self._version, _UNCOMPRESSED, 0, _HEADER.size + size)

    @contextmanager
    def files(self) -> Iterator[SealFiles]:
        """A place for files, for one piece of work in one thread."""
        with MemoryFile() as file:
            yield SealFiles(self, file)

    def _array(self, count: int) -> bytes:
        """What stands before so many words."""
        return self.header(_COUNT.size + count * _WORD) + _COUNT.pack(count)

    def _learn_version(self) -> bytes:
        """The two bytes that this SEAL writes as its version."""
        with MemoryFile() as file:
            self.api.Plaintext("1").save(file.path)
            version: bytes = _HEADER.unpack_from(file.read())[2]
        if version[0] != _MAJOR_VERSION:
            raise _another_form()
        return version


class SealFiles:
    """SEAL's objects from polynomials, and back."""

    def __init__(self, seal: Seal, file: MemoryFile) -> None:
        import zstandard

        self._seal, self._file = seal, file
        self._decompressor = zstandard.ZstdDecompressor()

    # --- into SEAL ---------------------------------------------------------------------------------------------

    def ciphertext(self, body: Words, mask: Words) -> Any:
        """The pair of two polynomials."""
        return self._load(self._seal.api.Ciphertext(), self._seal.whole, _octets(body), _octets(mask))

    def expanded(self, seed: bytes) -> Any:
        """The pair (0, a), with a expanded from its seed."""
        generator = self._seal.generator + _GENERATOR.pack(_BLAKE2XB, seed)
        return self._load(self._seal.api.Ciphertext(), self._seal.seeded, bytes(_POLYNOMIAL), generator)

    def secret_key(self, words: Words) -> Any:
        """A key, from its values at the roots of X⁴⁰⁹⁶ + 1 (SEAL's NTT form)."""
        return self._load(self._seal.api.SecretKey(), self._seal.key, _octets(words))

    def _load(self, target: Any, *pieces: Piece) -> Any:
        self._file.write(self._seal.header(sum(len(piece) for piece in pieces)), *pieces)
        try:
            target.load(self._seal.context, self._file.path)
        except (RuntimeError, ValueError) as error:
            raise ProtectionError("SEAL does not accept a polynomial, a key or a seed") from error
        return target

    # --- out of SEAL -------------------------------------------------------------------------------------------

    def body_and_seed(self, encrypted: Any) -> tuple[Words, bytes]:
        """The two halves of a fresh ciphertext."""
        raw = self._save(encrypted, self._seal.seeded, _POLYNOMIAL + _HEADER.size + _GENERATOR.size)
        generator, seed = _GENERATOR.unpack_from(raw, len(raw) - _GENERATOR.size)
        if generator != _BLAKE2XB:
            raise _another_form()
        return np.frombuffer(raw, WORD, DEGREE, len(self._seal.seeded)), seed

    def mask(self, ciphertext: Any) -> Words:
        """The second half of a whole ciphertext."""
        raw = self._save(ciphertext, self._seal.whole, 2 * _POLYNOMIAL)
        return np.frombuffer(raw, WORD, DEGREE, len(self._seal.whole) + _POLYNOMIAL)

    def key_words(self, key: Any) -> Words:
        """The values of a key at the roots."""
        raw = self._save(key, self._seal.key, _POLYNOMIAL)
        return np.frombuffer(raw, WORD, DEGREE, len(self._seal.key))

    def plaintext_words(self, plaintext: Any) -> Words:
        """The coefficients of an opened plaintext. SEAL leaves zeros at its end out."""
        raw = self._saved(plaintext)
        start = _PLAINTEXT.size + _HEADER.size + _COUNT.size
        count = _PLAINTEXT.unpack_from(raw)[1]
        if count > DEGREE or len(raw) != start + count * _WORD:
            raise _another_form()
        words = np.zeros(DEGREE, WORD)
        words[:count] = np.frombuffer(raw, WORD, count, start)
        return words

    def _save(self, source: Any, head: bytes, rest: int) -> bytes:
        """What SEAL saves, if it begins as it should and is as long as it should be."""
        raw = self._saved(source)
        if not raw.startswith(head) or len(raw) != len(head) + rest:
            raise _another_form()
        return raw

    def _saved(self, source: Any) -> bytes:
        source.save(self._file.path)
        raw = self._file.read()
        magic, length, _, compression, _, size = _HEADER.unpack_from(raw)
        if (magic, length, size) != (_MAGIC, _HEADER.size, len(raw)) or compression not in (_UNCOMPRESSED, _ZSTD):
            raise _another_form()
        content = memoryview(raw)[_HEADER.size :]
        if compression == _UNCOMPRESSED:
            return bytes(content)
        return self._decompressor.decompress(content, max_output_size=_LARGEST_FILE)


def _octets(words: Words) -> memoryview:
    return words.data.cast("B")


def _another_form() -> ProtectionError:
    return ProtectionError(
        "SEAL writes files of another form than this version knows",
        advice="install the version of tenseal that constraints.txt names",
    )
