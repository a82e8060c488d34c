"""Masks: AES-256-CTR key streams read as 64-bit words, added to a vector in pieces that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from secure_fl.protect.primitives.packing import WORD, Words
from secure_fl.randomness import KeyStream

_PIECE = 1 << 14  # words: piece, mask and zeros together stay well inside a core's own cache


def add_masks(words: Words, *, plus: Iterable[bytes] = (), minus: Iterable[bytes] = ()) -> None:
    """words += Σ stream(key) over `plus` − Σ stream(key) over `minus`, modulo 2⁶⁴, in place."""
    streams = [(KeyStream(key), np.add) for key in plus] + [(KeyStream(key), np.subtract) for key in minus]
    buffer = KeyStream.buffer(_PIECE * WORD.itemsize)
    for start in range(0, words.size, _PIECE):
        piece = words[start : start + _PIECE]
        for stream, combine in streams:
            stream.fill(buffer, piece.nbytes)
            combine(piece, np.frombuffer(buffer, WORD, piece.size), out=piece)
