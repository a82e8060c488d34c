"""Products of the ring: against FLINT, against schoolbook multiplication, by the laws, and as they once were."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from flint import nmod_poly
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import OverflowInvariantError, ProtectionError
from secure_fl.protect.primitives.field import ELEMENT, MODULUS, Elements, add, to_signed, uniform
from secure_fl.protect.sealed.ring import DEGREE, Product, public_residues, residues
from secure_fl.randomness import UnsafeSeededRandomness
from tests.protect.laws import few

SEED = bytes(range(32))
BATCH = 32 * DEGREE
ROOT = pow(3, (MODULUS - 1) // 128, MODULUS)


def monomial(power: int, factor: int = 1) -> Elements:
    element = np.zeros(DEGREE, ELEMENT)
    element[power] = factor % MODULUS
    return element


def products(secret: Elements, *, count: int = 1, seed: bytes = SEED, at: int = 0) -> Elements:
    return Product(secret).seal(np.zeros(count * DEGREE, np.int32), seed=seed, at=at).reshape(count, DEGREE)


def by_flint(left: Elements, right: Elements) -> list[int]:
    modulus = nmod_poly([1, *[0] * (DEGREE - 1), 1], MODULUS)
    product = nmod_poly(left.tolist(), MODULUS) * nmod_poly(right.tolist(), MODULUS) % modulus
    return [int(product[power]) for power in range(DEGREE)]


def by_hand(left: Elements, right: Elements) -> list[int]:
    """Schoolbook: every shift of one factor times a coefficient of the other, with the sign of X²⁰⁴⁸ = −1."""
    both = np.concatenate([-right.astype(np.object_), right.astype(np.object_)])
    total = np.zeros(DEGREE, np.object_)
    for power, coefficient in enumerate(left.tolist()):
        total += coefficient * both[DEGREE - power : 2 * DEGREE - power]
    return list((total % MODULUS).tolist())


PUBLIC = products(monomial(0), count=40)  # times one: the public elements themselves

secrets = (
    st.integers(0, 2**32).map(lambda seed: uniform(UnsafeSeededRandomness(seed), DEGREE))
    | st.sampled_from([0, 1, MODULUS - 1, MODULUS // 2, 2**16 - 1, 2**31]).map(lambda c: np.full(DEGREE, c, ELEMENT))
    | st.builds(monomial, st.integers(0, DEGREE - 1), st.sampled_from([1, MODULUS - 1, 2**31]))
)  # fmt: skip


# --- oracles ------------------------------------------------------------------------------------------------------


@few
@given(secrets, st.integers(0, 39))
def test_a_product_is_flints(secret: Elements, row: int) -> None:
    assert products(secret, at=row * DEGREE)[0].tolist() == by_flint(PUBLIC[row], secret)


def test_a_product_is_the_schoolbooks() -> None:
    secret = uniform(UnsafeSeededRandomness(1), DEGREE)
    assert products(secret)[0].tolist() == by_hand(PUBLIC[0], secret)


@pytest.mark.parametrize("public", [0, 1, MODULUS - 1, 2**32 - 2**15, 2**16 - 1, 2**31 - 1])
@pytest.mark.parametrize("secret", [1, MODULUS - 1, MODULUS // 2])
def test_extremes_everywhere(monkeypatch: pytest.MonkeyPatch, public: int, secret: int) -> None:
    # Residues that are all the same, whatever they are: the limbs and the matrices at the ends of their ranges.
    def same(seed: bytes, batch: int) -> Elements:
        return np.full((64, 32, 32), public % MODULUS, ELEMENT)

    monkeypatch.setattr("secure_fl.protect.sealed.ring.public_residues", same)
    public_element = products(monomial(0))[0]
    assert (residues(public_element) == public % MODULUS).all()
    factor = np.full(DEGREE, secret, ELEMENT)
    assert products(factor)[0].tolist() == by_flint(public_element, factor)


# --- the definition of a ------------------------------------------------------------------------------------------


def test_the_public_elements_have_the_residues_that_were_drawn() -> None:
    drawn = public_residues(SEED, 0)
    for factor in (0, 1, 31, 63):
        short = nmod_poly([-pow(ROOT, 2 * factor + 1, MODULUS), *[0] * 31, 1], MODULUS)
        for row in (0, 31):
            rest = nmod_poly(PUBLIC[row].tolist(), MODULUS) % short
            assert [int(rest[power]) for power in range(32)] == drawn[factor, :, row].tolist()
    assert (residues(PUBLIC[5]) == drawn[:, :, 5]).all()
    assert (residues(PUBLIC[32]) == public_residues(SEED, 1)[:, :, 0]).all()


def test_the_factors_are_those_of_the_ring() -> None:
    product = nmod_poly([1], MODULUS)
    for factor in range(64):
        product *= nmod_poly([-pow(ROOT, 2 * factor + 1, MODULUS), *[0] * 31, 1], MODULUS)
    assert product == nmod_poly([1, *[0] * (DEGREE - 1), 1], MODULUS)


def test_known_answers() -> None:
    # Every party has to compute the same a: whatever changes these digests makes versions that cannot work together.
    assert (
        hashlib.sha256(public_residues(SEED, 0).tobytes()).hexdigest()
        == "79a2c1bba511fa20bc7a718da8cbeb5262a5dabc3b537c9ad9e5ee25972ec58d"
    )
    assert (
        hashlib.sha256(public_residues(SEED, 2**40).tobytes()).hexdigest()
        == "fa6ee0e9e02eee218f81edbcc4c4b12b6918d3ce7ed66200e6a1658dc1d6a2dc"
    )
    assert (
        hashlib.sha256(PUBLIC.tobytes()).hexdigest()
        == "77857d9645a048c6c9e3aa55b5937522370f963e35b767802be4e36abdab4b37"
    )
    secret = uniform(UnsafeSeededRandomness(2), DEGREE)
    assert (
        hashlib.sha256(products(secret, count=33).tobytes()).hexdigest()
        == "06927774c3023bbcfa885747349a2c68d7d0bd4fcf6927a4ffd6dae02179b90a"
    )


def test_seeds_and_batches_differ() -> None:
    rows = [public_residues(seed, batch).tobytes() for seed in (SEED, bytes(32)) for batch in (0, 1, 256)]
    assert len(set(rows)) == len(rows)


# --- laws ---------------------------------------------------------------------------------------------------------


@few
@given(secrets, secrets)
def test_products_distribute(one: Elements, other: Elements) -> None:
    both = one.copy()
    add(both, other)
    total = products(one, count=2).reshape(-1)
    add(total, products(other, count=2).reshape(-1))
    assert (products(both, count=2).reshape(-1) == total).all()


@few
@given(secrets, st.integers(0, DEGREE - 1))
def test_a_power_of_x_turns_the_coefficients_and_what_comes_around_changes_sign(secret: Elements, power: int) -> None:
    turned = np.roll(secret, power)
    turned[:power] = (MODULUS - turned[:power].astype(np.uint64)) % MODULUS
    plain = products(secret)[0]
    expected = np.roll(plain, power)
    expected[:power] = (MODULUS - expected[:power].astype(np.uint64)) % MODULUS
    assert (products(turned)[0] == expected).all()


def test_x_to_the_degree_is_minus_one() -> None:
    # a·X¹⁰²⁴·X¹⁰²⁴, the second factor by rotation.
    half = products(monomial(1024))[0]
    whole = np.concatenate([(MODULUS - half[1024:].astype(np.uint64)) % MODULUS, half[:1024]])
    assert whole.tolist() == [-value % MODULUS for value in PUBLIC[0].tolist()]


@few
@given(secrets)
def test_a_multiple_added_and_subtracted_is_gone(secret: Elements) -> None:
    before = to_signed(uniform(UnsafeSeededRandomness(3), 2 * DEGREE + 5)) // 2
    product = Product(secret)
    elements = product.seal(before.astype(np.int32), seed=SEED)
    assert not secret.any() or (to_signed(elements) != before).any()
    product.unseal(elements, seed=SEED)
    assert (to_signed(elements) == before).all()


WHOLE = products(uniform(UnsafeSeededRandomness(4), DEGREE), count=70).reshape(-1)


@few
@given(st.integers(0, WHOLE.size), st.lists(st.integers(0, WHOLE.size), max_size=4))
def test_pieces_do_not_show(first: int, cuts: list[int]) -> None:
    product = Product(uniform(UnsafeSeededRandomness(4), DEGREE))
    bounds = sorted({first, *cuts})
    for start, end in itertools.pairwise(bounds):
        elements = product.seal(np.zeros(end - start, np.int32), seed=SEED, at=start)
        assert (elements == WHOLE[start:end]).all()


def test_nothing_is_done_to_no_coefficients() -> None:
    assert Product(monomial(0)).seal(np.zeros(0, np.int32), seed=SEED, at=BATCH).size == 0


@pytest.mark.parametrize("value", [2**30 + 1, -(2**30) - 1, 2**31 - 1, -(2**31)])
def test_a_value_that_could_wrap_is_refused(value: int) -> None:
    values = np.zeros(DEGREE + 1, np.int32)
    values[-1] = value
    with pytest.raises(OverflowInvariantError):
        Product(monomial(0)).seal(values, seed=SEED)


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "secret", [np.zeros(2047, ELEMENT), np.zeros((1, DEGREE), ELEMENT), np.full(DEGREE, MODULUS, ELEMENT)]
)
def test_what_is_no_element_of_the_ring_is_refused(secret: Elements) -> None:
    with pytest.raises(ProtectionError):
        Product(secret)


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33)])
def test_a_seed_of_another_length_is_refused(seed: bytes) -> None:
    with pytest.raises(ProtectionError, match="seed"):
        products(monomial(0), seed=seed)
