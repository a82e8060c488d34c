"""Mask streams: AES-256-CTR as published, independent of how they are cut into pieces, uniform, bound to their use."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import ProtectionError
from secure_fl.protect.primitives import masks
from secure_fl.protect.primitives.agreement import _FIELD, _SMALL_ORDER, agree, usable
from secure_fl.protect.primitives.masks import add_masks
from secure_fl.protect.primitives.packing import WORD
from secure_fl.randomness import KeyStream
from tests.protect.laws import law

KEY = bytes(range(32))


def test_the_stream_is_aes_256_in_counter_mode() -> None:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    block = Cipher(algorithms.AES256(KEY), modes.ECB()).encryptor()  # noqa: S305 - a single block, to check CTR
    expected = b"".join(block.update(counter.to_bytes(16, "big")) for counter in range(4))
    words = np.zeros(8, WORD)
    add_masks(words, plus=[KEY])
    assert words.tobytes() == expected
    # FIPS 197, appendix C.3: the same key, its plaintext instead of a counter.
    assert block.update(bytes.fromhex("00112233445566778899aabbccddeeff")).hex() == "8ea2b7ca516745bfeafc49904b496089"


@law
@given(st.integers(0, 300), st.integers(1, 64))
def test_pieces_do_not_show(size: int, piece: int) -> None:
    whole = np.frombuffer(KeyStream(KEY).bytes(8 * size), WORD)
    before = masks._PIECE
    masks._PIECE = piece
    try:
        words = np.zeros(size, WORD)
        add_masks(words, plus=[KEY])
    finally:
        masks._PIECE = before
    assert (words == whole).all()


def test_a_mask_added_and_subtracted_is_gone() -> None:
    words = np.arange(100_000, dtype=WORD)
    add_masks(words, plus=[KEY, b"\x01" * 32], minus=[b"\x02" * 32])
    assert (words != np.arange(100_000, dtype=WORD)).all()
    add_masks(words, plus=[b"\x02" * 32], minus=[b"\x01" * 32, KEY])
    assert (words == np.arange(100_000, dtype=WORD)).all()


def test_masks_are_uniform_in_every_bit_and_byte() -> None:
    words = np.zeros(1 << 18, WORD)
    add_masks(words, plus=[KEY])
    ones = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / words.size**0.5
    counts = np.bincount(words.view(np.uint8), minlength=256)
    expected = words.nbytes / 256
    assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * (2 * 255) ** 0.5


def test_both_sides_agree_and_every_field_matters() -> None:
    a, b, c = (X25519PrivateKey.generate() for _ in range(3))
    public = {key: key.public_key().public_bytes_raw() for key in (a, b, c)}
    key = agree(a, public[b], salt=b"rho", info=b"mask")
    assert key == agree(b, public[a], salt=b"rho", info=b"mask")
    others = (
        agree(a, public[b], salt=b"other", info=b"mask"),
        agree(a, public[b], salt=b"rho", info=b"envelope"),
        agree(a, public[c], salt=b"rho", info=b"mask"),
    )
    assert len({key, *others}) == 4


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31), b"short"])
def test_points_of_small_order_are_refused(point: bytes) -> None:
    with pytest.raises(ProtectionError):
        agree(X25519PrivateKey.generate(), point, salt=b"", info=b"")


def _refused(public: bytes) -> bool:
    try:
        agree(X25519PrivateKey.generate(), public, salt=b"", info=b"")
    except ProtectionError:
        return True
    return False


# Every point of small order on the curve and on its twist, in each encoding that 32 bytes have room for.
@pytest.mark.parametrize("representative", [0, 1, 2])
@pytest.mark.parametrize("high_bit", [0, 1])
@pytest.mark.parametrize("u", sorted(_SMALL_ORDER), ids=lambda u: f"{u:x}"[:6])
def test_what_is_usable_is_what_the_exchange_takes(u: int, representative: int, high_bit: int) -> None:
    value = u + representative * _FIELD + (high_bit << 255)
    if value < 2**256:
        encoded = value.to_bytes(32, "little")
        assert usable(encoded) is not _refused(encoded)
        if representative == 0:
            assert not usable(encoded)


@given(st.binary(min_size=32, max_size=32))
def test_any_other_key_is_usable(public: bytes) -> None:
    assert usable(public) is not _refused(public)
