"""Sharing of ring elements: known answers, laws, what too few shares leave open, and what a liar can do."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import ProtectionError
from secure_fl.protect.primitives.field import ELEMENT, MODULUS, Elements, uniform, weighted_sum
from secure_fl.protect.sealed.ring import DEGREE
from secure_fl.protect.sealed.shares import VECTOR_BYTES, expand_share, interpolate, split
from secure_fl.randomness import UnsafeSeededRandomness
from tests.protect.laws import few, law

SECRET = uniform(UnsafeSeededRandomness(1), DEGREE)


def shared(secret: Elements, threshold: int, holders: int, seed: int = 2) -> dict[int, Elements]:
    shares = split(secret, threshold=threshold, holders=holders, randomness=UnsafeSeededRandomness(seed))
    return {holder: expand_share(share) for holder, share in enumerate(shares, start=1)}


def at(shares: dict[int, Elements], holders: tuple[int, ...]) -> dict[int, Elements]:
    return {holder: shares[holder] for holder in holders}


def value_at(points: dict[int, int], x: int) -> int:
    """Lagrange with Python's integers: where the polynomial through `points` passes at x."""
    total = 0
    for k, value in points.items():
        above = below = 1
        for m in points:
            if m != k:
                above, below = above * (x - m), below * (k - m)
        total += value * above * pow(below, -1, MODULUS)
    return total % MODULUS


secrets = (
    st.integers(0, 2**32).map(lambda seed: uniform(UnsafeSeededRandomness(seed), DEGREE))
    | st.sampled_from([0, 1, MODULUS - 1]).map(lambda value: np.full(DEGREE, value, ELEMENT))
)  # fmt: skip


# --- forms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("threshold", "holders"), [(1, 1), (1, 3), (2, 3), (3, 3), (6, 10)])
def test_one_holder_less_than_the_threshold_gets_a_seed(threshold: int, holders: int) -> None:
    shares = split(SECRET, threshold=threshold, holders=holders, randomness=UnsafeSeededRandomness(2))
    assert [len(share) for share in shares] == [32] * (threshold - 1) + [VECTOR_BYTES] * (holders - threshold + 1)
    assert len(set(shares[: threshold - 1])) == threshold - 1


def test_known_answers() -> None:
    # By hand: from a seed's vector r at 1, the line through (0, s) and (1, r) is at 2r − s when it is at 2.
    shares = shared(SECRET, 2, 3)
    expected = [(2 * r - s) % MODULUS for r, s in zip(shares[1].tolist(), SECRET.tolist(), strict=True)]
    assert shares[2].tolist() == expected
    # Every party has to expand a seed alike: whatever changes these makes versions that cannot work together.
    digest = hashlib.sha256(expand_share(bytes(range(32))).tobytes()).hexdigest()
    assert digest == "1556c439d3de414964b9358a70643c76a9d4c64d38e619fad1e30624ac235160"
    shares_of_three = split(SECRET, threshold=3, holders=5, randomness=UnsafeSeededRandomness(3))
    assert (
        hashlib.sha256(b"".join(shares_of_three)).hexdigest()
        == "3ca23af3b182e86b0d7f8232067968bc6bcf7f9b409ff4775d2e3118f9ba1065"
    )


def test_the_largest_cohort_against_pythons_integers() -> None:
    shares = shared(SECRET, 129, 256)
    points = {0: int(SECRET[7]), **{holder: int(shares[holder][7]) for holder in range(1, 129)}}
    for holder in (129, 200, 256):
        assert int(shares[holder][7]) == value_at(points, holder)
    assert (interpolate(shares, threshold=129) == SECRET).all()
    assert (interpolate(at(shares, tuple(range(128, 257))), threshold=129) == SECRET).all()


# --- laws ---------------------------------------------------------------------------------------------------------


@few
@given(secrets, st.integers(1, 6), st.integers(0, 4), st.integers(0, 2**32))
def test_any_threshold_of_shares_opens_the_secret(secret: Elements, threshold: int, more: int, seed: int) -> None:
    shares = shared(secret, threshold, threshold + more, seed)
    for chosen in itertools.islice(itertools.combinations(sorted(shares, reverse=True), threshold), 12):
        assert (interpolate(at(shares, chosen), threshold=threshold) == secret).all()
    assert (interpolate(shares, threshold=threshold) == secret).all()


@few
@given(st.lists(st.tuples(secrets, st.integers(0, 2**16)), min_size=1, max_size=4), st.integers(1, 4))
def test_weighted_sums_of_shares_are_shares_of_weighted_sums(terms: list[tuple[Elements, int]], threshold: int) -> None:
    weights = [weight for _, weight in terms]
    several = [shared(secret, threshold, 5, seed) for seed, (secret, _) in enumerate(terms)]
    summed = {k: weighted_sum(weights, (shares[k] for shares in several), size=DEGREE) for k in range(1, 6)}
    expected = weighted_sum(weights, (secret for secret, _ in terms), size=DEGREE)
    assert (interpolate(summed, threshold=threshold) == expected).all()
    assert (interpolate(at(summed, tuple(range(6 - threshold, 6))), threshold=threshold) == expected).all()


# --- what one share fewer tells -----------------------------------------------------------------------------------


@few
@given(secrets, st.integers(2, 5), st.data())
def test_one_share_fewer_fits_every_secret(other: Elements, threshold: int, data: st.DataObject) -> None:
    # Whoever the threshold − 1 are: with any other secret there are shares of the rest, one each, that fit with theirs.
    shares = shared(SECRET, threshold, 6)
    chosen = data.draw(st.permutations(range(1, 7)).map(lambda holders: tuple(sorted(holders[: threshold - 1]))))
    told = at(shares, chosen)
    for holder in sorted(shares.keys() - told.keys()):
        # `combine` opens at zero. With every index moved by `holder` it opens there, and the secret is at −holder.
        moved = {(k - holder) % MODULUS: vector for k, vector in told.items()}
        told[holder] = interpolate({**moved, -holder % MODULUS: other}, threshold=threshold)
    assert told.keys() == shares.keys()
    assert (interpolate(told, threshold=threshold) == other).all()
    assert all((told[holder] == shares[holder]).all() for holder in chosen)


def test_shares_of_those_with_seeds_do_not_depend_on_the_secret() -> None:
    one, other = (
        split(secret, threshold=4, holders=6, randomness=UnsafeSeededRandomness(5))
        for secret in (SECRET, np.zeros(DEGREE, ELEMENT))
    )
    assert one[:3] == other[:3]
    assert all(mine != theirs for mine, theirs in zip(one[3:], other[3:], strict=True))


@pytest.mark.parametrize("holder", [1, 3])
def test_shares_of_the_same_secret_look_uniform(holder: int) -> None:
    secret, randomness = np.zeros(DEGREE, ELEMENT), UnsafeSeededRandomness(4)
    counts = np.zeros(256, np.int64)
    for _ in range(50):
        share = expand_share(split(secret, threshold=2, holders=3, randomness=randomness)[holder - 1])
        counts += np.bincount((share >> np.uint32(24)).astype(np.int64), minlength=256)
    expected = counts.sum() / 256
    assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * (2 * 255) ** 0.5


# --- refusals -----------------------------------------------------------------------------------------------------


@law
@given(st.integers(1, 5), st.integers(0, DEGREE - 1), st.integers(1, MODULUS - 1))
def test_a_share_off_the_polynomial_is_noticed_where_there_is_one_more(liar: int, where: int, by: int) -> None:
    shares = shared(SECRET, 3, 5)
    told = shares[liar].copy()
    told[where] = (int(told[where]) + by) % MODULUS
    with pytest.raises(ProtectionError, match="one polynomial"):
        interpolate({**shares, liar: told}, threshold=3)
    four = {holder: share for holder, share in shares.items() if holder != liar % 5 + 1}
    with pytest.raises(ProtectionError, match="one polynomial"):
        interpolate({**four, liar: told}, threshold=3)


def test_shares_under_each_others_index_are_noticed() -> None:
    shares = shared(SECRET, 3, 4)
    with pytest.raises(ProtectionError, match="one polynomial"):
        interpolate({**shares, 1: shares[2], 2: shares[1]}, threshold=3)


@pytest.mark.parametrize(
    "raw",
    [b"", bytes(31), bytes(33), bytes(VECTOR_BYTES - 4), bytes(VECTOR_BYTES + 1), b"\xff" * VECTOR_BYTES,
     bytes(VECTOR_BYTES - 4) + MODULUS.to_bytes(4, "little")],
)  # fmt: skip
def test_a_malformed_share_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtectionError):
        expand_share(raw)


def test_the_largest_element_is_a_share() -> None:
    raw = (MODULUS - 1).to_bytes(4, "little") * DEGREE
    assert (expand_share(raw) == MODULUS - 1).all()


@pytest.mark.parametrize("holders", [(0, 1, 2), (-1, 1, 2), (1, 2, MODULUS), (1, 2, MODULUS + 1), (1, 2)])
def test_wrong_indices_and_too_few_shares_are_refused(holders: tuple[int, ...]) -> None:
    with pytest.raises(ProtectionError):
        interpolate(dict.fromkeys(holders, SECRET), threshold=3)


@pytest.mark.parametrize("threshold", [0, -1])
def test_a_threshold_of_nobody_is_refused(threshold: int) -> None:
    with pytest.raises(ProtectionError):
        interpolate({1: SECRET}, threshold=threshold)


@pytest.mark.parametrize("vector", [SECRET[:-1], np.full(DEGREE, MODULUS, ELEMENT), SECRET[None]])
def test_vectors_that_are_no_ring_element_are_neither_shared_nor_opened(vector: Elements) -> None:
    with pytest.raises(ProtectionError):
        split(vector, threshold=2, holders=3, randomness=UnsafeSeededRandomness(6))
    with pytest.raises(ProtectionError):
        interpolate({1: SECRET, 2: vector}, threshold=2)


@pytest.mark.parametrize(("threshold", "holders"), [(0, 3), (4, 3), (1, 0), (2, MODULUS)])
def test_impossible_sharings_are_refused(threshold: int, holders: int) -> None:
    with pytest.raises(ProtectionError):
        split(SECRET, threshold=threshold, holders=holders, randomness=UnsafeSeededRandomness(6))
