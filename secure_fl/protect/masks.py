"""Masks: AES-256-CTR key streams read as 64-bit words, added to a vector in pieces that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from secure_fl.errors import ProtectionError
from secure_fl.protect.packing import WORD, Words
from secure_fl.randomness import KeyStream, derive_key

_PIECE = 1 << 14  # words: piece, mask and zeros together stay well inside a core's own cache


_ANY_KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))  # no secret: it only tries public keys


def usable(public: bytes) -> bool:
    """Whether `agree` takes this key, whoever holds the other one: X25519 clears the small orders alike for all."""
    try:
        _ANY_KEY.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def agree(mine: X25519PrivateKey, theirs: bytes, *, salt: bytes, info: bytes) -> bytes:
    """A 32-byte key that two parties share, bound to a transcript (`salt`) and to one purpose (`info`)."""
    try:
        shared = mine.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:  # a point of small order: everybody would know the key
        raise ProtectionError("a public key is not acceptable") from None
    return derive_key(shared, info, salt=salt)


def add_masks(words: Words, *, plus: Iterable[bytes] = (), minus: Iterable[bytes] = ()) -> None:
    """words += Σ stream(key) over `plus` − Σ stream(key) over `minus`, modulo 2⁶⁴, in place."""
    streams = [(KeyStream(key), np.add) for key in plus] + [(KeyStream(key), np.subtract) for key in minus]
    buffer = KeyStream.buffer(_PIECE * WORD.itemsize)
    for start in range(0, words.size, _PIECE):
        piece = words[start : start + _PIECE]
        for stream, combine in streams:
            stream.fill(buffer, piece.nbytes)
            combine(piece, np.frombuffer(buffer, WORD, piece.size), out=piece)
