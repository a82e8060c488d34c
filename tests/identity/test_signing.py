"""Signatures: one string, one meaning; keys that do not show themselves."""

from __future__ import annotations

import copy
import logging
import pickle

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import IdentityError, SignatureError
from secure_fl.identity import signing
from secure_fl.identity.signing import SigningKey, transcript, verify

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P

domains = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
# Fields that look like lengths and tags, which is where an ambiguous encoding would give way.
fields = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.integers(0, 30).map(lambda n: n.to_bytes(8, "little")),
        domains.map(transcript),
    ),
    max_size=4,
)


def read_transcript(encoded: bytes) -> tuple[str, list[bytes]]:
    """The inverse, whose existence is what injectivity means."""
    parts = []
    while encoded:
        length = int.from_bytes(encoded[:8], "little")
        parts.append(encoded[8 : 8 + length])
        encoded = encoded[8 + length :]
    return parts[0].decode().removeprefix("secure-fl/").removesuffix("/v1"), parts[1:]


@given(domain=domains, parts=fields)
def test_a_transcript_can_be_read_back_in_one_way(domain: str, parts: list[bytes]) -> None:
    assert read_transcript(transcript(domain, *parts)) == (domain, parts)


@given(first=st.tuples(domains, fields), second=st.tuples(domains, fields))
def test_two_transcripts_are_equal_only_if_everything_is(
    first: tuple[str, list[bytes]], second: tuple[str, list[bytes]]
) -> None:
    same = transcript(first[0], *first[1]) == transcript(second[0], *second[1])
    assert same == (first == second)


def test_moving_a_boundary_changes_the_transcript() -> None:
    assert transcript("x", b"ab", b"c") != transcript("x", b"a", b"bc") != transcript("x", b"abc")
    assert transcript("x") != transcript("x", b"")


def test_the_layout_of_a_transcript_is_fixed() -> None:
    tag = b"secure-fl/round/v1"
    expected = len(tag).to_bytes(8, "little") + tag + (2).to_bytes(8, "little") + b"hi"
    assert transcript("round", b"hi") == expected


def test_a_signature_verifies() -> None:
    key = SigningKey.generate()
    verify(key.public, key.sign("round", b"1", b"2"), "round", b"1", b"2")


def test_a_key_survives_its_file() -> None:
    key = SigningKey.generate()
    again = SigningKey.from_pem(key.to_pem())
    assert again.public == key.public
    assert again.sign("round", b"1") == key.sign("round", b"1")  # Ed25519 is deterministic.


def test_every_change_is_noticed() -> None:
    key, other = SigningKey.generate(), SigningKey.generate()
    good = key.sign("round", b"1", b"2")
    for public, signature, domain, parts in (
        (other.public, good, "round", (b"1", b"2")),
        (key.public, bytes(64), "round", (b"1", b"2")),
        (key.public, good[:-1], "round", (b"1", b"2")),
        (key.public, good + b"\0", "round", (b"1", b"2")),
        (key.public, b"", "round", (b"1", b"2")),
        (key.public, good, "upload", (b"1", b"2")),
        (key.public, good, "round", (b"12",)),
        (key.public, good, "round", (b"2", b"1")),
        (key.public[:-1], good, "round", (b"1", b"2")),
        (b"", good, "round", (b"1", b"2")),
    ):
        with pytest.raises(SignatureError):
            verify(public, signature, domain, *parts)


def _double(point: tuple[int, int]) -> tuple[int, int]:
    """Affine doubling on edwards25519 (RFC 8032, 5.1.4 with both points the same)."""
    x, y = point
    k = D * x * x * y * y % P
    return 2 * x * y * pow(1 + k, -1, P) % P, (y * y + x * x) * pow(1 - k, -1, P) % P


def _x_of(y: int) -> int:
    """RFC 8032, 5.1.3."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    root = pow(square, (P + 3) // 8, P)
    if root * root % P != square:
        root = root * pow(2, (P - 1) // 4, P) % P
    assert root * root % P == square
    return root


def test_the_listed_points_are_the_ones_of_small_order() -> None:
    ys = {y % P for y in signing._SMALL_ORDER}
    points = {(x, y) for y in ys for x in (_x_of(y), -_x_of(y) % P)}
    assert len(points) == 8  # The whole torsion subgroup: the cofactor of the curve is 8.
    for point in points:
        for _ in range(3):
            point = _double(point)  # noqa: PLW2901
        assert point == (0, 1)


def test_a_key_of_small_order_is_refused_although_openssl_takes_it() -> None:
    identity = (1).to_bytes(32, "little")
    forged = identity + bytes(32)  # R is the identity, S is 0: S·B = R + h·A for every message.
    Ed25519PublicKey.from_public_bytes(identity).verify(forged, transcript("round", b"anything"))
    with pytest.raises(SignatureError, match="small order"):
        verify(identity, forged, "round", b"anything")


@pytest.mark.parametrize("y", sorted(signing._SMALL_ORDER))
@pytest.mark.parametrize("sign", [0, 1 << 255])
def test_every_encoding_of_small_order_is_refused(y: int, sign: int) -> None:
    with pytest.raises(SignatureError, match="small order"):
        verify((y | sign).to_bytes(32, "little"), bytes(64), "round")


def test_a_file_that_is_no_ed25519_key_is_refused_without_quoting_it() -> None:
    elliptic = ec.generate_private_key(ec.SECP256R1())
    encrypted = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    plain = elliptic.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for content in (b"", b"hunter2", plain, encrypted):
        with pytest.raises(IdentityError) as caught:
            SigningKey.from_pem(content)
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_key_does_not_show_itself(caplog: pytest.LogCaptureFixture) -> None:
    key = SigningKey.generate()
    body = key.to_pem().splitlines()[1].decode()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").warning("key %s %r", key, key)
    for text in (repr(key), str(key), f"{key}", caplog.text):
        assert body not in text
    assert not hasattr(key, "__dict__")
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never pickled"):
            attempt(key)
