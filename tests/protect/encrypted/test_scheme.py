"""Ciphertexts add up exactly; halves of one show nothing; what does not belong together does not open."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.aggregation import RequestKind
from secure_fl.encoding.integers import Integers
from secure_fl.errors import OverflowInvariantError, ProtectionError
from secure_fl.protect.encrypted.coefficients import WeightedSum
from secure_fl.protect.encrypted.scheme import Cipher, Key, Scheme
from secure_fl.protect.encrypted.terms import CHECKS, DEGREE, SEED_BYTES, Terms
from secure_fl.protect.primitives.packing import WORD, Words
from secure_fl.secret import Secret
from tests.protect.encrypted.oracle import (
    decrypt,
    desk,
    errors,
    expand,
    key_coefficients,
    product,
    raw_of,
    words_of,
)
from tests.protect.laws import few

SUM, COMBINE = RequestKind.SUM, RequestKind.COMBINE

# One of each width of a coefficient; those of 64 nodes and of 2 nodes with 24 bits have hardly more room than needed.
COHORTS = [
    (SUM, 2, 24),
    (SUM, 65, 16),
    (SUM, 3, 16),
    (SUM, 10, 16),
    (SUM, 64, 16),
    (COMBINE, 10, 16),
    (COMBINE, 256, 8),
]

Upload = tuple[bytearray, bytes]


def drawn(seed: int, terms: Terms, size: int) -> Integers:
    limit = terms.packing.limit
    return np.random.default_rng(seed).integers(-limit, limit + 1, size).astype(np.int32)


def message_of(values: Integers, terms: Terms) -> Words:
    """m, of one ciphertext."""
    words = np.ones(DEGREE, WORD)
    terms.packing.pack(values, words[:-CHECKS])
    return words


def added(scheme: Scheme, uploads: Sequence[Upload], weights: Sequence[int], values: int) -> tuple[bytes, bytes]:
    bodies = scheme.add_bodies(zip(weights, (body for body, _ in uploads), strict=True), values=values)
    return bodies, scheme.add_seeds(zip(weights, (seeds for _, seeds in uploads), strict=True), values=values)


# --- exact ------------------------------------------------------------------------------------------------------


@few
@given(st.data(), st.sampled_from(COHORTS), st.sampled_from([0, 1, 2, -1, 4088, 4089]), st.integers(0, 2))
def test_weighted_sums_are_those_of_the_integers(
    data: st.DataObject, about: tuple[RequestKind, int, int], beyond: int, chunks: int
) -> None:
    scheme, _, cipher = desk(*about)
    terms = scheme.terms
    size = max(0, chunks * terms.chunk_values + beyond)
    left, weights = terms.weight_sum, []
    for _ in range(data.draw(st.integers(1, min(4, left)))):
        if left:
            weights.append(data.draw(st.integers(1, left) | st.just(left)))
            left -= weights[-1]
    rows = [drawn(data.draw(st.integers(0, 2**32)), terms, size) for _ in weights]
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=4)))
    uploads = [cipher.encrypt(np.split(row, cuts), values=size) for row in rows]
    bodies, mask = added(scheme, uploads, weights, size)
    assert all(len(body) == terms.body_bytes(size) for body, _ in uploads)
    assert all(len(seeds) == terms.seeds_bytes(size) for _, seeds in uploads)
    expected = sum(weight * row.astype(np.int64) for weight, row in zip(weights, rows, strict=True))
    opened = cipher.open(bodies, mask, values=size, weight=sum(weights))
    assert np.array_equal(opened, np.broadcast_to(expected, size))


@pytest.mark.parametrize("about", COHORTS)
def test_everybody_at_the_edge_of_the_grid(about: tuple[RequestKind, int, int]) -> None:
    scheme, _, cipher = desk(*about)
    terms = scheme.terms
    limit = terms.packing.limit
    values = np.where(np.arange(terms.chunk_values) % 3 == 0, -limit, limit).astype(np.int32)
    upload = cipher.encrypt([values], values=values.size)
    count = min(terms.weight_sum, 4)
    weights = [1] * (count - 1) + [terms.weight_sum - count + 1]
    bodies, mask = added(scheme, [upload] * count, weights, values.size)
    opened = cipher.open(bodies, mask, values=values.size, weight=terms.weight_sum)
    assert np.array_equal(opened, values.astype(np.int64) * terms.weight_sum)


def with_errors(about: tuple[RequestKind, int, int], message: Words, e: npt.NDArray[np.int64]) -> tuple[Words, Words]:
    """The pair that holds `message` beside these very errors."""
    scheme, _, cipher = desk(*about)
    terms = scheme.terms
    seeds = cipher.encrypt([np.zeros(1, np.int32)], values=1)[1]
    mask = words_of(scheme.add_seeds([(1, seeds)], values=1), terms)
    hidden = product(mask, key_coefficients(cipher, terms), terms.modulus)
    body = [
        (terms.scale * int(m) - int(p) - int(x)) % terms.modulus for m, p, x in zip(message, hidden, e, strict=True)
    ]
    return np.array(body, WORD), mask


@pytest.mark.parametrize("about", COHORTS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_errors_that_there_are_change_nothing(about: tuple[RequestKind, int, int], sign: int) -> None:
    scheme, _, cipher = desk(*about)
    terms = scheme.terms
    limit, size = terms.packing.limit, terms.chunk_values
    # Messages that are as large as can be, and as small; every error has the largest size.
    values = np.where(np.arange(size) % 2, -limit, limit).astype(np.int32)
    body, mask = with_errors(about, message_of(values, terms), np.full(DEGREE, 21 * sign))
    total = WeightedSum(terms, values=size, what="a body")
    total.add(terms.weight_sum, raw_of(body, terms))
    masks = WeightedSum(terms, values=size, what="a mask")
    masks.add(terms.weight_sum, raw_of(mask, terms))
    opened = cipher.open(total.close(), masks.close(), values=size, weight=terms.weight_sum)
    assert np.array_equal(opened, values.astype(np.int64) * terms.weight_sum)


@pytest.mark.parametrize("about", COHORTS)
def test_messages_open_up_to_the_errors_that_the_argument_says_and_not_beyond(
    about: tuple[RequestKind, int, int],
) -> None:
    scheme, _, cipher = desk(*about)
    terms = scheme.terms
    t, half = 2**terms.plain_bits, (terms.modulus - 1) // 2
    message = np.resize(np.array([0, 1, t // 2, t - 2, t - 1], WORD), DEGREE)
    largest = np.array([(half - int(m)) // t for m in message])  # M + t·E ≤ (q − 1)/2
    smallest = np.array([-((half + int(m)) // t) for m in message])
    assert largest.min() >= 21 * terms.weight_sum
    assert smallest.max() <= -21 * terms.weight_sum
    for edge, outwards in ((largest, 1), (smallest, -1)):
        assert np.array_equal(decrypt(cipher, *with_errors(about, message, edge), terms), message)
        beyond = decrypt(cipher, *with_errors(about, message, edge + outwards), terms)
        assert not (beyond == message).any()


def test_sums_with_more_weight_than_a_word_has_room_for() -> None:
    terms = Terms.among(COMBINE, nodes=256, bits=8)
    assert terms.weight_sum > 2**64 // terms.modulus
    first = np.full(DEGREE, terms.modulus - 1, WORD)
    second = np.arange(DEGREE, dtype=WORD) * np.uint64(terms.modulus // DEGREE)
    total = WeightedSum(terms, values=1, what="a body")
    for weight, words in ((255, first), (1, second), (700, first), (68, second)):
        total.add(weight, raw_of(words, terms))
    expected = [(955 * (terms.modulus - 1) + 69 * int(word)) % terms.modulus for word in second]
    assert words_of(total.close(), terms).tolist() == expected


# --- the scheme is what it says ---------------------------------------------------------------------------------


def test_masks_are_blake2xb_of_their_seeds() -> None:
    for about in COHORTS:
        scheme = desk(*about)[0]
        seed = bytes(range(SEED_BYTES))
        mask = words_of(scheme.add_seeds([(1, seed)], values=1), scheme.terms)
        assert mask.tolist() == expand(seed, scheme.terms.modulus)


def errors_of(values: Integers, about: tuple[RequestKind, int, int]) -> tuple[npt.NDArray[np.int64], Words]:
    """The errors in an encryption of `values`, and the messages beside them."""
    scheme, _, cipher = desk(*about)
    terms = scheme.terms
    body, seeds = cipher.encrypt([values], values=values.size)
    masks, key = scheme.add_seeds([(1, seeds)], values=values.size), key_coefficients(cipher, terms)
    found, messages = [], []
    for chunk in range(terms.chunks(values.size)):
        message = message_of(values[chunk * terms.chunk_values :][: terms.chunk_values], terms)
        hidden = product(words_of(masks, terms, chunk=chunk), key, terms.modulus)
        found.append(errors(words_of(body, terms, chunk=chunk), message, hidden, terms))
        messages.append(message)
    return np.concatenate(found), np.concatenate(messages)


def test_errors_are_as_the_terms_take_them_to_be_and_say_nothing_of_the_values() -> None:
    about = (SUM, 1, 16)  # Alone, a site's message takes all the room that sums have otherwise.
    terms = desk(*about)[0].terms
    found, messages = errors_of(drawn(1, terms, 24 * terms.chunk_values), about)
    assert np.abs(found).max() <= 21
    # The difference of two numbers of ones among 21 bits has the variance 10.5; a Gaussian of σ = 3.2 has 10.24.
    # With 98,304 of them the variance is known up to 0.05 and the mean of one half up to 0.015.
    assert found.var() == pytest.approx(10.5, abs=0.24)
    # Nearest integers to (q/t)·m, as SEAL itself would take them, move the mean by 1 where m is in the upper half.
    upper = messages >= 2 ** (terms.plain_bits - 1)
    assert 0.4 < upper.mean() < 0.6
    assert abs(found[upper].mean() - found[~upper].mean()) < 0.15


def test_keys_are_ternary() -> None:
    for about in COHORTS:
        scheme, _, cipher = desk(*about)
        key = key_coefficients(cipher, scheme.terms)
        counts = {int(value): int((key == value).sum()) for value in np.unique(key)}
        assert counts.keys() == {-1, 0, 1}
        assert min(counts.values()) > DEGREE / 4  # a third, give or take 30


@few
@given(st.sampled_from(COHORTS), st.data())
def test_halves_add_up_as_seal_adds_whole_ciphertexts(about: tuple[RequestKind, int, int], data: st.DataObject) -> None:
    scheme, _, cipher = desk(*about)
    terms, seal = scheme.terms, scheme.seal
    weights = [data.draw(st.integers(1, terms.weight_sum // 2)) for _ in range(2)]
    uploads = [cipher.encrypt([drawn(seed, terms, 9)], values=9) for seed in range(2)]
    evaluator = seal.api.Evaluator(seal.context)
    with seal.files() as files:
        whole = []
        for weight, (body, seeds) in zip(weights, uploads, strict=True):
            mask = words_of(scheme.add_seeds([(1, seeds)], values=9), terms)
            pair, product_ = files.ciphertext(words_of(body, terms), mask), seal.api.Ciphertext()
            evaluator.multiply_plain(pair, seal.api.Plaintext(f"{weight:x}"), product_)
            whole.append(product_)
        total = seal.api.Ciphertext()
        evaluator.add(whole[0], whole[1], total)
        raw = files._saved(total)
    halves = np.frombuffer(raw, WORD, offset=len(raw) - 2 * DEGREE * 8).reshape(2, DEGREE)
    bodies, mask_sum = added(scheme, uploads, weights, 9)
    assert np.array_equal(halves[0], words_of(bodies, terms))
    assert np.array_equal(halves[1], words_of(mask_sum, terms))


def test_no_two_encryptions_share_anything() -> None:
    scheme, _, cipher = desk(SUM, 10, 16)
    terms = scheme.terms
    values = np.zeros(3 * terms.chunk_values, np.int32)
    uploads = [cipher.encrypt([values], values=values.size) for _ in range(2)]
    seeds = [raw[at : at + SEED_BYTES] for _, raw in uploads for at in range(0, len(raw), SEED_BYTES)]
    assert len(set(seeds)) == 6
    bodies = [words_of(body, terms, chunk=chunk) for body, _ in uploads for chunk in range(3)]
    equal = sum(int((first == other).sum()) for first in bodies for other in bodies if other is not first)
    assert equal == 0  # by chance: 2⁻⁴⁰


# --- what a half shows ------------------------------------------------------------------------------------------


def chi_square(words: Words, end: int) -> float:
    """Of 256 equal parts of [0, end): 255 on average with a deviation of 23 if words are uniform."""
    counts = np.bincount((words // np.uint64(end // 256 + 1)).astype(np.intp), minlength=256)
    return float(((counts - words.size / 256) ** 2 / (words.size / 256)).sum())


def test_a_body_under_the_key_is_noise_without_its_seeds() -> None:
    scheme, _, cipher = desk(SUM, 10, 16)
    terms = scheme.terms
    values = np.full(20 * terms.chunk_values, 7, np.int32)  # nothing could be easier to recognise
    body, seeds = cipher.encrypt([values], values=values.size)
    mask = scheme.add_seeds([(1, seeds)], values=values.size)
    bodies = [words_of(body, terms, chunk=chunk) for chunk in range(20)]
    opened = np.concatenate([decrypt(cipher, words, np.zeros(DEGREE, WORD), terms) for words in bodies])
    assert chi_square(opened, 2**terms.plain_bits) < 255 + 6 * 23
    assert (opened == message_of(values[: terms.chunk_values], terms)[0]).mean() < 0.001
    # The test can tell: with its mask, the same body opens to the same values everywhere.
    right = np.concatenate(
        [decrypt(cipher, words, words_of(mask, terms, chunk=chunk), terms) for chunk, words in enumerate(bodies)]
    )
    assert chi_square(right, 2**terms.plain_bits) > 10**6
    with pytest.raises(ProtectionError):
        cipher.open(body, bytes(len(body)), values=values.size, weight=1)


def test_bodies_are_uniform_and_seeds_alone_open_to_noise() -> None:
    scheme, _, cipher = desk(SUM, 3, 16)
    terms = scheme.terms
    values = np.zeros(20 * terms.chunk_values, np.int32)
    body, seeds = cipher.encrypt([values], values=values.size)
    mask = scheme.add_seeds([(1, seeds)], values=values.size)
    rows = range(20)
    assert chi_square(np.concatenate([words_of(body, terms, chunk=row) for row in rows]), terms.modulus) < 393
    zeros = np.zeros(DEGREE, WORD)
    opened = [decrypt(cipher, zeros, words_of(mask, terms, chunk=row), terms) for row in rows]
    assert chi_square(np.concatenate(opened), 2**terms.plain_bits) < 393


def unchecked(scheme: Scheme, words: Words) -> Key:
    """A key that nobody has looked at."""
    key = object.__new__(Key)
    key.terms, key._secret, key.id = scheme.terms, Secret(raw_of(words, scheme.terms)), b""
    return key


def test_a_key_without_an_inverse_is_refused_because_it_hides_nothing() -> None:
    scheme, good, _ = desk(SUM, 10, 16)
    terms = scheme.terms
    # SEAL takes a key of zeros. Without the check, who hands out such a key reads every body without its seed.
    values = drawn(5, terms, 100)
    body, _ = Cipher(scheme, unchecked(scheme, np.zeros(DEGREE, WORD))).encrypt([values], values=100)
    read = (words_of(body, terms).astype(object) + terms.scale // 2) // terms.scale
    assert np.array_equal(terms.packing.unpack(read.astype(WORD)[:-CHECKS], 100, contributors=1), values)
    with pytest.raises(ProtectionError, match="no inverse"):
        Key.read(scheme, bytes(terms.chunk_bytes))
    # One zero among the values at the roots already makes one linear function of every body readable.
    words = good.words()
    words[1234] = 0
    with pytest.raises(ProtectionError, match="no inverse"):
        Key.read(scheme, raw_of(words, terms))


# --- what does not belong together ------------------------------------------------------------------------------


@pytest.mark.parametrize("about", COHORTS)
def test_another_key_opens_nothing(about: tuple[RequestKind, int, int]) -> None:
    scheme, _, cipher = desk(*about)
    body, seeds = cipher.encrypt([drawn(1, scheme.terms, 5)], values=5)
    mask = scheme.add_seeds([(1, seeds)], values=5)
    with pytest.raises(ProtectionError, match="does not open"):
        Cipher(scheme, Key.generate(scheme)).open(body, mask, values=5, weight=1)
    assert np.array_equal(cipher.open(body, mask, values=5, weight=1), drawn(1, scheme.terms, 5))


def test_bodies_and_masks_of_other_sites_or_weights_do_not_open() -> None:
    scheme, _, cipher = desk(SUM, 64, 16)
    terms = scheme.terms
    uploads = [cipher.encrypt([drawn(seed, terms, 3)], values=3) for seed in range(3)]
    whole = scheme.add_bodies([(1, body) for body, _ in uploads], values=3)
    masks = {
        "one is missing": [(1, uploads[0][1]), (1, uploads[1][1])],
        "one is there twice": [(1, uploads[0][1]), (1, uploads[1][1]), (1, uploads[1][1])],
        "another weight": [(1, uploads[0][1]), (1, uploads[1][1]), (2, uploads[2][1])],
    }
    for parts in masks.values():
        mask = scheme.add_seeds(parts, values=3)
        with pytest.raises(ProtectionError, match="does not open"):
            cipher.open(whole, mask, values=3, weight=3)
        # Ranges alone let it pass: lanes for 64 sites of 16 bits have hardly a number that is out of range.
        opened = decrypt(cipher, words_of(whole, terms), words_of(mask, terms), terms)
        terms.packing.unpack(opened[:-CHECKS], 3, contributors=64)
    right = scheme.add_seeds([(1, seeds) for _, seeds in uploads], values=3)
    with pytest.raises(ProtectionError, match="does not open"):
        cipher.open(whole, right, values=3, weight=4)
    cipher.open(whole, right, values=3, weight=3)


def test_every_chunk_is_checked() -> None:
    scheme, _, cipher = desk(SUM, 3, 16)
    terms = scheme.terms
    size = 2 * terms.chunk_values
    (body, seeds), (other, _) = (cipher.encrypt([drawn(seed, terms, size)], values=size) for seed in range(2))
    mask = scheme.add_seeds([(1, seeds)], values=size)
    body[terms.chunk_bytes :] = other[terms.chunk_bytes :]
    with pytest.raises(ProtectionError, match="does not open"):
        cipher.open(body, mask, values=size, weight=1)


def test_a_total_that_no_honest_sites_make_is_refused() -> None:
    scheme, _, cipher = desk(SUM, 3, 16)
    terms = scheme.terms
    body, seeds = cipher.encrypt([np.array([32767], np.int32)], values=1)
    words = words_of(body, terms)
    words[0] = (int(words[0]) + 3 * terms.scale) % terms.modulus  # the value becomes 32770
    with pytest.raises(OverflowInvariantError):
        cipher.open(raw_of(words, terms), scheme.add_seeds([(1, seeds)], values=1), values=1, weight=1)


def test_what_is_too_short_too_long_or_not_reduced_is_refused() -> None:
    scheme, key, cipher = desk(SUM, 2, 24)  # q is well below 2³²
    terms = scheme.terms
    body, seeds = cipher.encrypt([np.zeros(1, np.int32)], values=1)
    mask = scheme.add_seeds([(1, seeds)], values=1)
    unreduced = bytearray(body)
    unreduced[40:44] = terms.modulus.to_bytes(4, "little")
    for bad in (bytes(body[:-1]), bytes(body) + b"\0", b"", bytes(body) * 2, bytes(unreduced), b"\xff" * len(body)):
        with pytest.raises(ProtectionError):
            scheme.add_bodies([(1, bad)], values=1)
        with pytest.raises(ProtectionError):
            cipher.open(bad, mask, values=1, weight=1)
        with pytest.raises(ProtectionError):
            cipher.open(body, bad, values=1, weight=1)
        with pytest.raises(ProtectionError):
            Key.read(scheme, bad)
    for bad in (seeds[:-1], seeds + b"\0", b"", seeds * 2):
        with pytest.raises(ProtectionError):
            scheme.add_seeds([(1, bad)], values=1)
    largest = bytearray(body)
    largest[40:44] = (terms.modulus - 1).to_bytes(4, "little")
    assert scheme.add_bodies([(1, largest)], values=1) == largest
    Key.read(scheme, key.raw)


@pytest.mark.parametrize("weights", [[], [0], [-1], [1, 0], [4], [2, 2]])
def test_weights_that_there_are_no_sums_for(weights: list[int]) -> None:
    scheme, _, cipher = desk(SUM, 3, 16)
    body, seeds = cipher.encrypt([np.zeros(1, np.int32)], values=1)
    with pytest.raises(ProtectionError):
        scheme.add_bodies([(weight, body) for weight in weights], values=1)
    with pytest.raises(ProtectionError):
        scheme.add_seeds([(weight, seeds) for weight in weights], values=1)


@pytest.mark.parametrize("weight", [0, -1, 4])
def test_weights_that_nothing_opens_with(weight: int) -> None:
    _, _, cipher = desk(SUM, 3, 16)
    with pytest.raises(OverflowInvariantError):
        cipher.open(b"", b"", values=0, weight=weight)


@pytest.mark.parametrize("value", [32768, -32768, 2**31 - 1, -(2**31)])
def test_a_value_beyond_the_grid_is_not_encrypted(value: int) -> None:
    _, _, cipher = desk(SUM, 3, 16)
    with pytest.raises(OverflowInvariantError):
        cipher.encrypt([np.array([0, value], np.int32)], values=2)


@pytest.mark.parametrize("values", [0, 2, 4, 100_000])
def test_as_many_values_as_were_promised(values: int) -> None:
    _, _, cipher = desk(SUM, 3, 16)
    with pytest.raises(ProtectionError):
        cipher.encrypt([np.zeros(1, np.int32), np.zeros(2, np.int32)], values=values)


def test_integers_that_32_bits_might_not_hold_are_not_cut() -> None:
    _, _, cipher = desk(SUM, 3, 16)
    with pytest.raises(TypeError):
        cipher.encrypt([np.array([2**32 + 1])], values=1)


# --- keys -------------------------------------------------------------------------------------------------------


def test_a_key_that_was_sent_opens_what_the_first_one_encrypted() -> None:
    scheme, key, cipher = desk(SUM, 10, 16)
    again = Key.read(Scheme(scheme.terms), key.raw)
    assert again.id == key.id
    values = drawn(3, scheme.terms, 50)
    body, seeds = cipher.encrypt([values], values=50)
    opened = Cipher(scheme, again).open(body, scheme.add_seeds([(1, seeds)], values=50), values=50, weight=1)
    assert np.array_equal(opened, values)


def test_a_key_belongs_to_its_terms() -> None:
    _, key, _ = desk(SUM, 10, 16)
    same_modulus = Scheme(Terms.among(SUM, nodes=11, bits=16))
    assert same_modulus.terms.modulus == key.terms.modulus
    with pytest.raises(ProtectionError, match="other terms"):
        Cipher(same_modulus, key)
    assert Key.read(same_modulus, key.raw).id != key.id
    assert Key.generate(desk(SUM, 10, 16)[0]).id != key.id


def test_a_key_shows_nothing_by_accident() -> None:
    scheme, _, _ = desk(SUM, 10, 16)
    key = Key.generate(scheme)
    assert repr(key) == str(key) == "Key(…)"
    with pytest.raises(TypeError):
        pickle.dumps(key)
    key.wipe()
    with pytest.raises(ValueError, match="wiped"):
        key.raw  # noqa: B018


# --- threads and processes --------------------------------------------------------------------------------------


def round_trip(seed: int) -> bool:
    scheme, _, cipher = desk(SUM, 3, 16)
    size = 3 * scheme.terms.chunk_values
    values = drawn(seed, scheme.terms, size)
    body, seeds = cipher.encrypt([values], values=size)
    mask = scheme.add_seeds([(1, seeds)], values=size)
    return np.array_equal(cipher.open(body, mask, values=size, weight=1), values)


def test_threads_share_a_cipher() -> None:
    desk(SUM, 3, 16)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(round_trip, range(12)))


FORKED = """
import os, sys
import numpy as np
from secure_fl.aggregation import RequestKind
from secure_fl.protect.encrypted.scheme import Cipher, Key, Scheme
from secure_fl.protect.encrypted.terms import Terms
scheme = Scheme(Terms.among(RequestKind.SUM, nodes=3, bits=16))
cipher = Cipher(scheme, Key.generate(scheme))
values = np.arange(20000, dtype=np.int32)
child = os.fork()
for _ in range(20):
    body, seeds = cipher.encrypt([values + bool(child)], values=20000)
    mask = scheme.add_seeds([(1, seeds)], values=20000)
    if not np.array_equal(cipher.open(body, mask, values=20000, weight=1), values + bool(child)):
        os._exit(3)
os.write(1, (seeds.hex() + chr(10)).encode())
if not child:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_and_its_fork_share_neither_files_nor_randomness() -> None:
    run = subprocess.run([sys.executable, "-c", FORKED], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    first, second = run.stdout.split()
    assert first != second
