"""Shamir's sharing: known answers, laws, and what a liar can do."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import ProtectionError
from secure_fl.protect.primitives.shamir import PRIME, SHARE_BYTES, Interpolation, read_share, split
from secure_fl.randomness import UnsafeSeededRandomness
from tests.protect.laws import law

SECRET = bytes(range(32))


class Fixed:
    """Randomness that was written down."""

    def __init__(self, *numbers: int) -> None:
        self._bytes = b"".join(number.to_bytes(64, "little") for number in numbers)

    def bytes(self, count: int) -> bytes:
        taken, self._bytes = self._bytes[:count], self._bytes[count:]
        assert len(taken) == count
        return taken


def open_with(shares: list[bytes], parties: list[int], threshold: int) -> bytes:
    values = {party: read_share(shares[party - 1]) for party in parties}
    return Interpolation(parties, threshold=threshold).secret(values)


def test_the_field_is_the_smallest_prime_above_every_secret() -> None:
    def is_prime(number: int) -> bool:  # Miller and Rabin, with bases that leave no doubt worth having
        odd, twos = number - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        for base in range(2, 60):
            x = pow(base, odd, number)
            if x not in (1, number - 1) and all((x := x * x % number) != number - 1 for _ in range(twos - 1)):
                return False
        return True

    assert is_prime(PRIME)
    assert not any(is_prime(number) for number in range(2**256, PRIME))


def test_known_answers() -> None:
    # f(x) = 5 + 7x + 11x², by hand.
    secret = (5).to_bytes(32, "little")
    shares = split(secret, threshold=3, parties=4, randomness=Fixed(11, 7))
    assert [int.from_bytes(share, "little") for share in shares] == [23, 63, 125, 209]
    assert open_with(shares, [4, 1, 3], 3) == secret
    # Around the modulus: f(x) = (p − 1)·x + 1 is 1 − x.
    shares = split((1).to_bytes(32, "little"), threshold=2, parties=3, randomness=Fixed(PRIME - 1))
    assert [int.from_bytes(share, "little") for share in shares] == [0, PRIME - 1, PRIME - 2]


@law
@given(st.binary(min_size=32, max_size=32), st.integers(1, 9), st.integers(0, 4))
def test_any_threshold_of_shares_opens_the_secret(secret: bytes, threshold: int, more: int) -> None:
    parties = threshold + more
    shares = split(secret, threshold=threshold, parties=parties, randomness=UnsafeSeededRandomness(1))
    for chosen in itertools.islice(itertools.permutations(range(1, parties + 1), threshold), 20):
        assert open_with(shares, list(chosen), threshold) == secret
    assert open_with(shares, list(range(1, parties + 1)), threshold) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_every_string_of_32_bytes_is_a_secret(secret: bytes) -> None:
    shares = split(secret, threshold=2, parties=3, randomness=UnsafeSeededRandomness(2))
    assert all(len(share) == SHARE_BYTES for share in shares)
    assert open_with(shares, [3, 2], 2) == secret


def test_one_share_fewer_fits_every_secret_alike() -> None:
    # For any other secret there is exactly one share of party 3 that opens to it together with the two at hand.
    shares = split(SECRET, threshold=3, parties=3, randomness=UnsafeSeededRandomness(3))
    first, second = (read_share(share) for share in shares[:2])
    for guess in (bytes(32), b"\xff" * 32, bytes(reversed(SECRET))):
        wanted = int.from_bytes(guess, "little")
        # Lagrange at 0 for the points 1, 2, 3: secret = 3a − 3b + c.
        third = (wanted - 3 * first + 3 * second) % PRIME
        assert Interpolation([1, 2, 3], threshold=3).secret({1: first, 2: second, 3: third}) == guess


def test_shares_of_the_same_secret_look_uniform() -> None:
    randomness = UnsafeSeededRandomness(4)
    low = Counter(split(SECRET, threshold=2, parties=1 + 1, randomness=randomness)[0][0] for _ in range(25_600))
    chi = sum((low[byte] - 100) ** 2 / 100 for byte in range(256))
    assert chi < 256 + 6 * (2 * 256) ** 0.5


@pytest.mark.parametrize("raw", [b"", bytes(32), bytes(34), PRIME.to_bytes(33, "little"), b"\xff" * 33])
def test_a_share_outside_the_field_or_in_another_form_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtectionError, match="outside the field"):
        read_share(raw)


@pytest.mark.parametrize("parties", [[1, 1, 2], [0, 1, 2], [1, 2]])
def test_wrong_indices_are_refused(parties: list[int]) -> None:
    with pytest.raises(ProtectionError):
        Interpolation(parties, threshold=3)


def test_a_share_off_the_polynomial_is_noticed_where_there_is_one_more() -> None:
    shares = split(SECRET, threshold=3, parties=5, randomness=UnsafeSeededRandomness(5))
    values = {party: read_share(shares[party - 1]) for party in range(1, 5)}
    for liar, value in values.items():
        told = {**values, liar: (value + 1) % PRIME}
        with pytest.raises(ProtectionError, match="one polynomial"):
            Interpolation([1, 2, 3, 4], threshold=3).secret(told)


@pytest.mark.parametrize(("secret", "threshold", "parties"), [(b"short", 2, 3), (SECRET, 0, 3), (SECRET, 4, 3)])
def test_impossible_sharings_are_refused(secret: bytes, threshold: int, parties: int) -> None:
    with pytest.raises(ProtectionError):
        split(secret, threshold=threshold, parties=parties, randomness=UnsafeSeededRandomness(6))
