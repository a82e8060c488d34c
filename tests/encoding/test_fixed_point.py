"""Fixed point: unbiased, bounded, and never beyond the range that the ring was sized for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.blocks import Vector
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.errors import NonFiniteUpdateError, OverflowInvariantError
from secure_fl.randomness import KeyStream
from tests.protect.laws import law

FLOAT32_MAX = float(np.finfo(np.float32).max)
FLOAT32_TINY = float(np.finfo(np.float32).tiny)
EPSILON = float(np.finfo(np.float32).eps)

bits_of = st.integers(4, 24)
clips = st.floats(2.0**-20, 2.0**20, width=32)
weights = st.just(WEIGHT_UNITS) | st.integers(1, WEIGHT_UNITS)
keys = st.binary(min_size=32, max_size=32)


class Constant(KeyStream):
    """A stream whose every number is the smallest, or the largest, that rounding can draw."""

    def __init__(self, byte: int) -> None:
        super().__init__(bytes(32))
        self._byte = byte

    def bytes(self, count: int) -> bytes:
        return bytes([self._byte]) * count


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


# --- rounding ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 8, 16, 24])
@pytest.mark.parametrize("value", [0.37, -0.37, 0.999, -0.001, 1e-9, 0.0])
@pytest.mark.parametrize("weight", [64, 37])
def test_rounding_is_unbiased(bits: int, value: float, weight: int) -> None:
    codec, count = FixedPoint(bits=bits, clip=1.0), 100_000
    encoded, _ = codec.encode(np.full(count, value, np.float32), weight=weight, stream=KeyStream(bytes([bits] * 32)))
    exact = float(np.float32(value)) * codec.scale * weight / WEIGHT_UNITS
    fraction = exact - np.floor(exact)
    # One rounding is a Bernoulli trial of variance f(1 − f); the grid of the uniform numbers shifts f by 2⁻²⁴ at most.
    error = 4 * np.sqrt(fraction * (1 - fraction) / count) + 2.0**-24
    assert abs(encoded.mean() - exact) <= error
    assert set(np.unique(encoded)) <= {int(np.floor(exact)), int(np.floor(exact)) + 1}


def test_errors_of_many_nodes_average_out() -> None:
    # Rounding to nearest would make the same error at every node; n unbiased ones shrink like 1/√n.
    codec, nodes = FixedPoint(bits=4, clip=1.0), 4096
    values = vector(0.2, -0.2, 0.05)
    total = sum(codec.encode(values, weight=64, stream=KeyStream(i.to_bytes(32, "big")))[0] for i in range(nodes))
    mean = codec.decode(BlockSum(total=np.asarray(total, np.int64), weight=64 * nodes, contributors=nodes))
    assert np.abs(mean - values).max() < 4 * 0.5 / codec.scale / np.sqrt(nodes)


# --- bounds -----------------------------------------------------------------------------------------------------


@law
@given(bits_of, clips, weights)
def test_no_value_leaves_the_range_however_extreme(bits: int, clip: float, weight: int) -> None:
    codec = FixedPoint(bits=bits, clip=clip)
    extremes = vector(clip, -clip, np.nextafter(np.float32(clip), np.float32(0)), FLOAT32_MAX, -FLOAT32_MAX, 1e-45, 0.0)
    for stream in (Constant(0x00), Constant(0xFF), KeyStream(bytes(32))):
        encoded, _ = codec.encode(extremes, weight=weight, stream=stream)
        assert encoded.dtype == np.int32
        assert np.abs(encoded).max() <= codec.limit


def test_the_edge_where_floating_point_alone_would_leave_the_range() -> None:
    # (2²⁰ − 1)/clip·clip is 1e-10 too large in float64, and rounding down makes that a whole integer.
    codec = FixedPoint(bits=21, clip=2.770888566970825)
    encoded, _ = codec.encode(vector(-codec.clip), weight=64, stream=Constant(0x00))
    assert codec.clip * codec.scale > codec.limit
    assert encoded.tolist() == [-codec.limit]


@pytest.mark.parametrize("bits", range(4, 25))
def test_plus_and_minus_clip_are_the_ends_of_the_range(bits: int) -> None:
    codec = FixedPoint(bits=bits, clip=0.75)
    assert codec.limit == 2 ** (bits - 1) - 1
    encoded, clipped = codec.encode(vector(0.75, -0.75), weight=64, stream=KeyStream(bytes(32)))
    assert encoded.tolist() == [codec.limit, -codec.limit]
    assert clipped == 0


@law
@given(st.lists(st.floats(-4, 4, width=32), max_size=20), st.floats(0.5, 2, width=32), weights)
def test_clipped_coordinates_are_counted_and_moved_to_the_edge(values: list[float], clip: float, weight: int) -> None:
    codec = FixedPoint(bits=16, clip=clip)
    encoded, clipped = codec.encode(vector(*values), weight=weight, stream=KeyStream(bytes(32)))
    assert clipped == sum(abs(value) > clip for value in values)
    for value, integer in zip(values, encoded.tolist(), strict=True):
        if abs(value) > clip:
            assert abs(integer - np.sign(value) * codec.limit * weight / WEIGHT_UNITS) <= 1


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 1, 65_535, 65_536, 70_000])
def test_nan_and_infinity_are_refused_wherever_they_hide(poison: float, position: int) -> None:
    values = np.zeros(70_001, np.float32)
    values[position] = poison
    with pytest.raises(NonFiniteUpdateError):
        FixedPoint(bits=16, clip=1.0).encode(values, weight=64, stream=KeyStream(bytes(32)))


@pytest.mark.parametrize(
    ("bits", "coin", "places"), [(4, "<u2", 16), (16, "<u2", 16), (20, "<u2", 12), (21, "<u4", 32)]
)
def test_long_vectors_use_fresh_randomness_throughout(bits: int, coin: str, places: int) -> None:
    size = 3 * 65_536 + 7
    value = np.float32(0.25)
    codec = FixedPoint(bits=bits, clip=1.0)
    encoded, _ = codec.encode(np.full(size, value), weight=64, stream=KeyStream(bytes(32)))
    coins = np.frombuffer(KeyStream(bytes(32)).bytes(size * np.dtype(coin).itemsize), coin)
    spare = 8 * np.dtype(coin).itemsize - places
    expected = np.floor(0.25 * codec.limit + (coins >> spare) / 2.0**places)
    assert (encoded == expected).all()


@pytest.mark.parametrize("weight", [0, -1, WEIGHT_UNITS + 1])
def test_a_weight_outside_its_range_is_refused_not_saturated(weight: int) -> None:
    with pytest.raises(OverflowInvariantError):
        FixedPoint(bits=16, clip=1.0).encode(vector(0.5), weight=weight, stream=KeyStream(bytes(32)))


@pytest.mark.parametrize("bits", [0, 3, 25, 32])
def test_bits_are_bounded(bits: int) -> None:
    with pytest.raises(OverflowInvariantError, match="bits"):
        FixedPoint(bits=bits, clip=1.0)


@pytest.mark.parametrize("clip", [0.0, -1.0, np.nan, np.inf, 1e-310, FLOAT32_TINY / 2, FLOAT32_MAX * 1.01])
def test_the_clip_is_a_positive_normal_float32(clip: float) -> None:
    # Below that the scale is infinite or the grid finer than the values on it; above, means cannot be said.
    with pytest.raises(OverflowInvariantError, match="clip"):
        FixedPoint(bits=16, clip=clip)


@pytest.mark.parametrize("clip", [FLOAT32_TINY, FLOAT32_MAX])
@pytest.mark.parametrize("bits", [4, 24])
def test_the_smallest_and_the_largest_clip_work(clip: float, bits: int) -> None:
    codec = FixedPoint(bits=bits, clip=clip)
    encoded, _ = codec.encode(vector(clip, 0.0, -clip), weight=64, stream=KeyStream(bytes(32)))
    total = 256 * encoded.astype(np.int64)
    assert codec.decode(BlockSum(total=total, weight=64 * 256, contributors=256)).tolist() == [clip, 0.0, -clip]


# --- back to floats ---------------------------------------------------------------------------------------------


@law
@given(bits_of, clips, weights, keys, st.lists(st.floats(-1, 1), min_size=1, max_size=8))
def test_one_nodes_error_is_at_most_one_step(
    bits: int, clip: float, weight: int, key: bytes, fractions: list[float]
) -> None:
    codec = FixedPoint(bits=bits, clip=clip)
    values = vector(*(clip * fraction for fraction in fractions))
    encoded, _ = codec.encode(values, weight=weight, stream=KeyStream(key))
    decoded = codec.decode(BlockSum(total=encoded.astype(np.int64), weight=weight, contributors=1))
    step = WEIGHT_UNITS / weight / codec.scale
    assert np.abs(decoded.astype(np.float64) - values).max() <= step + EPSILON * (clip + step)


@law
@given(bits_of, clips, st.lists(weights, min_size=3, max_size=12), st.integers(0, 2**32 - 1))
def test_the_ratio_of_sums_is_the_weighted_mean(bits: int, clip: float, cohort: list[int], seed: int) -> None:
    codec = FixedPoint(bits=bits, clip=clip)
    generator = np.random.default_rng(seed)
    updates = generator.uniform(-clip, clip, (len(cohort), 16)).astype(np.float32)
    total = np.zeros(16, np.int64)
    for node, (weight, update) in enumerate(zip(cohort, updates, strict=True)):
        total += codec.encode(update, weight=weight, stream=KeyStream(node.to_bytes(32, "big")))[0]
    mean = codec.decode(BlockSum(total=total, weight=sum(cohort), contributors=len(cohort)))
    exact = np.average(updates.astype(np.float64), axis=0, weights=cohort)
    # Each node errs by less than one integer; the sum is divided by scale·Σω.
    bound = len(cohort) * WEIGHT_UNITS / sum(cohort) / codec.scale
    assert np.abs(mean - exact).max() <= bound * (1 + 1e-6) + 2 * EPSILON * clip


# --- the invariant ----------------------------------------------------------------------------------------------


@law
@given(bits_of, st.integers(1, 2**20), st.integers(8, 64))
def test_room_is_exact_at_the_edge(bits: int, contributors: int, ring_bits: int) -> None:
    codec = FixedPoint(bits=bits, clip=1.0)
    largest = 2 ** (ring_bits - 1) - 1
    if contributors * codec.limit <= largest:
        codec.require_room(contributors=contributors, ring_bits=ring_bits)
    else:
        with pytest.raises(OverflowInvariantError, match="do not fit"):
            codec.require_room(contributors=contributors, ring_bits=ring_bits)


def test_room_at_the_edge_itself() -> None:
    codec = FixedPoint(bits=4, clip=1.0)  # limit 7; a signed ring of 11 bits ends at 1023 = 146·7 + 1
    codec.require_room(contributors=146, ring_bits=11)
    with pytest.raises(OverflowInvariantError):
        codec.require_room(contributors=147, ring_bits=11)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("bits", [4, 16, 24])
def test_a_total_that_its_contributors_cannot_have_made_is_refused(sign: int, bits: int) -> None:
    codec = FixedPoint(bits=bits, clip=1.0)
    largest = 5 * codec.limit
    fits = BlockSum(total=np.array([0, sign * largest]), weight=5 * 64, contributors=5)
    assert codec.decode(fits).tolist() == [0.0, sign * 1.0]
    for total in (sign * (largest + 1), sign * 2**62, -(2**63)):
        with pytest.raises(OverflowInvariantError, match="larger than its contributors"):
            codec.decode(BlockSum(total=np.array([0, total]), weight=5 * 64, contributors=5))


@law
@given(bits_of, st.lists(weights, min_size=1, max_size=12), st.sampled_from([1, -1]))
def test_a_mean_is_within_the_clip_whatever_the_weights_say(bits: int, cohort: list[int], sign: int) -> None:
    codec = FixedPoint(bits=bits, clip=1.0)
    extreme = [codec.encode(vector(sign * 1.0), weight=weight, stream=Constant(0xFF))[0] for weight in cohort]
    total, weight, count = sum(int(one[0]) for one in extreme), sum(cohort), len(cohort)
    codec.require_range(BlockSum(total=np.array([total]), weight=weight, contributors=count))
    # One step for each that may have rounded, and no more: a small weight does not make room for a large mean.
    steps = min(count, WEIGHT_UNITS * count - weight)
    beyond = np.array([sign * (codec.limit * weight // WEIGHT_UNITS + steps + 1)])
    with pytest.raises(OverflowInvariantError):
        codec.require_range(BlockSum(total=beyond, weight=weight, contributors=count))


@pytest.mark.parametrize("weight", [0, -64])
def test_a_sum_without_weight_is_refused(weight: int) -> None:
    with pytest.raises(OverflowInvariantError):
        FixedPoint(bits=16, clip=1.0).decode(BlockSum(total=np.array([0]), weight=weight, contributors=3))


def test_an_empty_block_has_an_empty_mean() -> None:
    codec = FixedPoint(bits=16, clip=1.0)
    encoded, clipped = codec.encode(vector(), weight=64, stream=KeyStream(bytes(32)))
    assert (encoded.size, clipped) == (0, 0)
    assert codec.decode(BlockSum(total=np.zeros(0, np.int64), weight=64, contributors=3)).size == 0
