"""The numbers of an encrypted round: always exact, never larger than they need be, and safe by the standard's table."""

from __future__ import annotations

import subprocess
import sys

import pytest
from flint import fmpz
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.aggregation import RequestKind
from secure_fl.errors import OverflowInvariantError, ProtectionError
from secure_fl.protect.encrypted.terms import CHECKS, DEGREE, LARGEST_MODULUS_BITS, SEED_BYTES, Terms, largest_modulus
from secure_fl.protect.release.combinations import row_total
from tests.protect.cohorts import context
from tests.protect.laws import law

SUM, COMBINE = RequestKind.SUM, RequestKind.COMBINE


@pytest.mark.parametrize(
    ("kind", "nodes", "bits", "lanes", "lane_bits", "width", "modulus"),
    [
        (SUM, 3, 16, 2, 18, 6, 0xFEE000000001),
        (SUM, 10, 16, 2, 20, 7, 0xFFE80000000001),
        (SUM, 64, 16, 2, 22, 7, 0xFD000000000001),
        (SUM, 65, 16, 1, 23, 5, 0xFFFD800001),
        (SUM, 2, 24, 1, 25, 4, 0xFA000001),
        (SUM, 2, 8, 5, 9, 7, 0xFD000000000001),
        (COMBINE, 10, 16, 2, 22, 7, 0xFD000000000001),
        (COMBINE, 17, 16, 1, 23, 5, 0xFFFD800001),
    ],
)
def test_known_choices(
    kind: RequestKind, nodes: int, bits: int, lanes: int, lane_bits: int, width: int, modulus: int
) -> None:
    # Every party computes its own: a change here is a change of what parties send each other.
    terms = Terms.among(kind, nodes=nodes, bits=bits)
    found = (terms.lanes, terms.lane_bits, terms.coefficient_bytes, terms.modulus)
    assert found == (lanes, lane_bits, width, modulus)


cohorts = st.integers(1, 256)
widths = st.integers(2, 20)


@law
@given(st.sampled_from([SUM, COMBINE]), cohorts, widths)
def test_what_is_chosen_is_exact_and_safe(kind: RequestKind, nodes: int, bits: int) -> None:
    terms = Terms.among(kind, nodes=nodes, bits=bits)
    weight_sum, t, q = terms.weight_sum, 2**terms.plain_bits, terms.modulus
    assert weight_sum == (nodes if kind is SUM else row_total(nodes))
    # The largest message, and the largest error of the same sign: what opening is off by is below one half.
    largest = 2 * (2 ** (bits - 1) - 1) * weight_sum
    message = sum(largest << (lane * terms.lane_bits) for lane in range(terms.lanes))
    assert largest < 2**terms.lane_bits
    assert 2 * (message + t * 21 * weight_sum) < q
    assert q == terms.scale * t + 1
    assert fmpz(q).is_prime()
    assert q % (2 * DEGREE) == 1
    assert q < 2 ** (8 * terms.coefficient_bytes)
    assert q.bit_length() <= LARGEST_MODULUS_BITS[256]
    assert terms.plain_bits <= 60  # SEAL's limit
    assert terms.plain_bits * CHECKS >= 128  # what a ciphertext that opens to anything passes with
    assert (terms.packing.lanes, terms.packing.lane_bits) == (terms.lanes, terms.lane_bits)
    assert weight_sum < t // 2  # a weight as a constant is no negative number


@law
@given(cohorts, widths)
def test_nothing_cheaper_would_be_exact(nodes: int, bits: int) -> None:
    terms = Terms.among(SUM, nodes=nodes, bits=bits)
    for width in range(4, 8):
        lanes = width * terms.lanes // terms.coefficient_bytes + 1  # the fewest that take fewer bytes per value
        plain_bits = lanes * terms.lane_bits
        assert 2 ** (plain_bits + 1) * (21 * nodes + 1) > largest_modulus(8 * width, plain_bits)


@pytest.mark.parametrize(("bits", "plain_bits"), [(32, 5), (32, 18), (40, 24), (48, 38), (56, 44), (56, 50)])
def test_the_modulus_is_the_largest_of_its_form(bits: int, plain_bits: int) -> None:
    step = 2 ** max(13, plain_bits)
    found = [number for number in range(2**bits - step + 1, step, -step) if fmpz(number).is_prime()][:1]
    assert [largest_modulus(bits, plain_bits)] == found


def test_where_there_is_no_prime_there_is_no_modulus() -> None:
    assert largest_modulus(32, 31) == 0
    assert largest_modulus(32, 40) == 0


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(OverflowInvariantError, match=r"24-bit values of 100 nodes.* 512,.* at most 23 bits"):
        Terms.among(COMBINE, nodes=100, bits=24)
    Terms.among(COMBINE, nodes=100, bits=23)


@pytest.mark.parametrize(("nodes", "bits"), [(0, 16), (3, 1), (2, 60)])
def test_what_makes_no_sense_is_refused(nodes: int, bits: int) -> None:
    with pytest.raises(OverflowInvariantError):
        Terms.among(SUM, nodes=nodes, bits=bits)


def test_totals_fit_32_bits() -> None:
    assert Terms.among(SUM, nodes=256, bits=24).weight_sum * (2**23 - 1) < 2**31
    with pytest.raises(OverflowInvariantError):
        Terms.among(SUM, nodes=257, bits=24)


def test_sizes() -> None:
    terms = Terms.among(SUM, nodes=10, bits=16)
    chunk = (4096 - 8) * 2
    assert terms.chunk_values == chunk
    assert [terms.chunks(values) for values in (0, 1, chunk, chunk + 1)] == [0, 1, 1, 2]
    assert terms.body_bytes(chunk + 1) == 2 * 4096 * 7
    assert terms.seeds_bytes(chunk + 1) == 2 * SEED_BYTES
    assert (terms.body_bytes(chunk) + terms.seeds_bytes(chunk)) / chunk == pytest.approx(3.51, abs=0.02)  # a value
    with pytest.raises(ProtectionError):
        terms.chunks(-1)


def test_terms_of_a_round() -> None:
    about = context("a", "b", "c", kind=COMBINE, bits=12)
    assert Terms.of(about) == Terms.among(COMBINE, nodes=3, bits=12)
    assert Terms.of(about).encoded != Terms.among(SUM, nodes=3, bits=12).encoded


def test_terms_and_sums_of_bodies_load_nothing_heavy() -> None:
    program = (
        "import sys; from secure_fl.aggregation import RequestKind\n"
        "from secure_fl.protect.encrypted.scheme import Scheme\n"
        "from secure_fl.protect.encrypted.terms import Terms\n"
        "terms = Terms.among(RequestKind.SUM, nodes=3, bits=16)\n"
        "Scheme(terms).add_bodies([(1, bytes(terms.body_bytes(5)))], values=5)\n"
        "print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    loaded = set(run.stdout.split())
    assert "secure_fl.protect.encrypted.seal_files" in loaded
    assert loaded & {"tenseal", "zstandard", "torch"} == set()
