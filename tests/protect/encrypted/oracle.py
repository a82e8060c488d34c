"""The scheme once more, from its definition and without SEAL: what the tests compare with.

SEAL expands a seed with BLAKE2Xb (Aumasson, Neves, Wilcox-O'Hearn, Winnerlein: "BLAKE2X", 2016): block number `counter`
of its stream is BLAKE2Xb with the seed as key, the counter as input and 4096 bytes of output. Coefficients are the
stream's 64-bit words modulo q; words that would make some residues likelier are drawn anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from secure_fl.aggregation import RequestKind
from secure_fl.protect.encrypted.coefficients import narrow, widen
from secure_fl.protect.encrypted.scheme import Cipher, Key, Scheme
from secure_fl.protect.encrypted.terms import DEGREE, Terms
from secure_fl.protect.primitives.packing import WORD, Words

Signed = npt.NDArray[np.int64]

_STREAM_BLOCK = 4096

# Of BLAKE2b (RFC 7693, 2.6, 2.7 and 3.2).
_IV = np.array(
    [
        0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
        0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
    ],
    WORD,
)  # fmt: skip
_SIGMA = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
    ]
)
_COLUMNS_AND_DIAGONALS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip


@cache
def desk(kind: RequestKind, nodes: int, bits: int) -> tuple[Scheme, Key, Cipher]:
    """A scheme with a key. Generating one for every example would be most of the time that tests take."""
    scheme = Scheme(Terms.among(kind, nodes=nodes, bits=bits))
    key = Key.generate(scheme)
    return scheme, key, Cipher(scheme, key)


def blake2xb(key: bytes, content: bytes) -> Words:
    """512 words of BLAKE2Xb. hashlib has the root: its `node_offset` of 64 bits ends in the length of the output."""
    root = hashlib.blake2b(content, key=key, node_offset=_STREAM_BLOCK << 32).digest()
    nodes = _STREAM_BLOCK // 64
    # The parameters of an output node, which hashlib does not take: 64 bytes, no key, fanout and depth 0, leaves of
    # 64 bytes; its number and the whole length; node depth 0, inner length 64.
    parameters = np.zeros((8, nodes), WORD)
    parameters[0] = 64 | 64 << 32
    parameters[1] = np.arange(nodes) | _STREAM_BLOCK << 32
    parameters[2] = 64 << 8
    state = _IV[:, None] ^ parameters
    message = np.append(np.frombuffer(root, WORD), np.zeros(8, WORD))
    v = np.concatenate([state, np.repeat(_IV[:, None], nodes, axis=1)])
    v[12] ^= np.uint64(64)  # bytes so far
    v[14] = ~v[14]  # the last block
    for turn in range(12):
        x = message[_SIGMA[turn % 10]]
        for index, (i, j, k, m) in enumerate(_COLUMNS_AND_DIAGONALS):
            for word, (first, second) in ((x[2 * index], (32, 24)), (x[2 * index + 1], (16, 63))):
                v[i] += v[j] + word
                v[m] = _turned(v[m] ^ v[i], first)
                v[k] += v[m]
                v[j] = _turned(v[j] ^ v[k], second)
    return np.ascontiguousarray((state ^ v[:8] ^ v[8:]).T).reshape(-1)


def _turned(words: Words, by: int) -> Words:
    return (words >> np.uint64(by)) | (words << np.uint64(64 - by))


def expand(seed: bytes, modulus: int) -> list[int]:
    """a."""

    def stream() -> Iterator[int]:
        counter = 0
        while True:
            yield from (int(word) for word in blake2xb(seed, counter.to_bytes(8, "little")))
            counter += 1

    words = stream()
    first = [next(words) for _ in range(DEGREE)]
    largest = 2**64 - 1
    end = largest - largest % modulus - 1

    def accepted(word: int) -> int:
        while word >= end:
            word = next(words)
        return word % modulus

    return [accepted(word) for word in first]


def words_of(raw: bytes | bytearray, terms: Terms, *, chunk: int = 0) -> Words:
    """One polynomial of a body, a mask or a key."""
    start = chunk * terms.chunk_bytes
    row = np.frombuffer(raw, np.uint8)[start : start + terms.chunk_bytes]
    return widen(row, terms, what="a polynomial")


def raw_of(words: Words, terms: Terms) -> bytes:
    """The inverse."""
    out = np.empty(terms.chunk_bytes, np.uint8)
    narrow(words, terms, out)
    return out.tobytes()


def decrypt(cipher: Cipher, body: Words, mask: Words, terms: Terms) -> Words:
    """The message of one ciphertext, without any check of what it is."""
    rows = [np.frombuffer(raw_of(words, terms), np.uint8) for words in (body, mask)]
    return next(cipher._decrypt([(rows[0], rows[1])]))


def key_coefficients(cipher: Cipher, terms: Terms) -> Signed:
    """s, of −1, 0 and 1: the pair (0, Δ) opens to it, since its phase is Δ·s."""
    mask = np.zeros(DEGREE, WORD)
    mask[0] = terms.scale
    opened = decrypt(cipher, np.zeros(DEGREE, WORD), mask, terms).astype(np.int64)
    return np.where(opened == 2**terms.plain_bits - 1, -1, opened)


def product(mask: Words, key: Signed, modulus: int) -> Words:
    """a·s modulo X⁴⁰⁹⁶ + 1 and q, by definition, in two halves so that 64 bits hold every sum."""
    parts = []
    for half in (mask >> np.uint64(28), mask & np.uint64(2**28 - 1)):
        full = np.convolve(half.astype(np.int64), key)
        full = np.append(full, 0)
        parts.append([int(low) - int(high) for low, high in zip(full[:DEGREE], full[DEGREE:], strict=True)])
    return np.array([((high << 28) + low) % modulus for high, low in zip(*parts, strict=True)], WORD)


def errors(body: Words, message: Words, masked: Words, terms: Terms) -> Signed:
    """e of one ciphertext: Δ·m − a·s − c₀, between −q/2 and q/2."""
    modulus = terms.modulus
    found = [(terms.scale * int(m) - int(p) - int(c)) % modulus for m, p, c in zip(message, masked, body, strict=True)]
    return np.array([value - modulus if value > modulus // 2 else value for value in found], np.int64)
