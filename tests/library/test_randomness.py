"""Random bytes: a published vector, and seeds that never meet."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from secure_fl.randomness import KeyStream, SystemRandomness, UnsafeSeededRandomness, derive_key
from tests.protect.laws import law

# AES-256 of the counter blocks 0, 1 and 2 under the all-zero key, from a source that does not use CTR mode:
# McGrew and Viega, "The Galois/Counter Mode of Operation (GCM)", appendix B. In test case 13 (key and 96-bit IV
# zero, nothing to encrypt) H = E(K, 0¹²⁸) and the tag is E(K, 0¹²⁷1), since GHASH of nothing is zero; in test case
# 14 the ciphertext of one zero block is E(K, 0¹²⁶10).
GCM_13_H = "dc95c078a2408989ad48a21492842087"
GCM_13_TAG = "530f8afbc74536b9a963b4f1c4cb738b"
GCM_14_CIPHERTEXT = "cea7403d4d606b6e074ec5d3baf39d18"

# RFC 5869, A.1: HKDF-SHA256; `derive_key` returns the first 32 of the vector's 42 bytes.
RFC_5869_A1 = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


def test_the_key_stream_is_aes_256_in_counter_mode() -> None:
    assert KeyStream(bytes(32)).bytes(48).hex() == GCM_13_H + GCM_13_TAG + GCM_14_CIPHERTEXT


def test_key_derivation_is_hkdf_sha256() -> None:
    key = derive_key(b"\x0b" * 22, bytes(range(0xF0, 0xFA)), salt=bytes(range(13)))
    assert key.hex() == RFC_5869_A1


@law
@given(st.binary(min_size=32, max_size=32), st.lists(st.integers(0, 40), max_size=6))
def test_the_stream_does_not_depend_on_how_it_is_read(key: bytes, counts: list[int]) -> None:
    stream = KeyStream(key)
    pieces = b"".join(stream.bytes(count) for count in counts)
    assert pieces == KeyStream(key).bytes(sum(counts))


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_key_has_32_bytes(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        KeyStream(bytes(length))


# --- sources ----------------------------------------------------------------------------------------------------


def test_the_systems_randomness_does_not_repeat() -> None:
    drawn = {SystemRandomness().bytes(16) for _ in range(100)}
    assert len(drawn) == 100
    assert SystemRandomness().bytes(0) == b""


seeds = st.integers(-(2**127), 2**127 - 1)
contexts = st.lists(st.text("ab\x00\x01,", max_size=3), max_size=3).map(tuple)


@law
@given(seeds, contexts)
def test_seeded_randomness_repeats(seed: int, context: tuple[str, ...]) -> None:
    assert UnsafeSeededRandomness(seed, *context).bytes(32) == UnsafeSeededRandomness(seed, *context).bytes(32)


@law
@given(seeds, seeds, contexts, contexts)
def test_seeded_randomness_differs_with_the_seed_and_with_the_context(
    seed: int, other_seed: int, context: tuple[str, ...], other_context: tuple[str, ...]
) -> None:
    assume((seed, context) != (other_seed, other_context))
    mine, other = UnsafeSeededRandomness(seed, *context), UnsafeSeededRandomness(other_seed, *other_context)
    assert mine.bytes(32) != other.bytes(32)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b"), ("a\x00b",)),
        (("ab",), ("a", "b")),
        (("a", ""), ("a",)),
        (("", "a"), ("a", "")),
        ((), ("",)),
        (("", ""), ("\x00",)),
    ],
)
def test_contexts_are_told_apart_however_they_are_cut(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert UnsafeSeededRandomness(0, *one).bytes(32) != UnsafeSeededRandomness(0, *other).bytes(32)
