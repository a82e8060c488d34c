"""One step of a round passes, whatever float32 makes of it, and hardly anything beyond does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.blocks import BlockShape, Layout, TensorShape, Vector
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum
from secure_fl.encoding.steps import _CHUNK, require_step
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.errors import StepTooLargeError
from secure_fl.randomness import KeyStream


def layout(size: int, name: str = "w") -> Layout:
    return Layout((BlockShape(name=name, tensors=(TensorShape(name="t", shape=(size,)),)),))


def moved(before: Vector, after: Vector, largest: float, name: str = "w", steps: int = 1) -> bool:
    """Whether the step is taken for one of a round, or of several."""
    try:
        require_step({name: before}, {name: after}, layout(before.size, name), largest=largest, steps=steps)
    except StepTooLargeError:
        return False
    return True


clips = st.floats(1e-6, 1e6)


@given(clip=clips, beta=st.floats(1e-3, 10), size=st.floats(-1e9, 1e9), sign=st.sampled_from([-1, 1]))
def test_the_largest_honest_step_passes_whatever_is_rounded(clip: float, beta: float, size: float, sign: int) -> None:
    """w + β·mean in float32, as strategies compute it, with a mean of exactly the clip."""
    w = np.array([size, 0, 1, size / 3], np.float32)
    mean = np.full(4, sign * clip, np.float64).astype(np.float32)
    assert moved(w, w + np.float32(beta) * mean, beta * clip)


@given(clip=clips, size=st.floats(-1e9, 1e9), sign=st.sampled_from([-1, 1]), steps=st.integers(1, 300))
def test_the_largest_honest_steps_one_after_the_other_pass_at_once(
    clip: float, size: float, sign: int, steps: int
) -> None:
    w = before = np.array([size, 0, 1, size / 3], np.float32)
    for _ in range(steps):
        w = w + np.full(4, sign * clip, np.float32)
    assert moved(before, w, clip, steps=steps)


@given(clip=clips, sign=st.sampled_from([-1, 1]), steps=st.integers(1, 300))
def test_no_more_than_so_many_steps_pass(clip: float, sign: int, steps: int) -> None:
    w = np.zeros(3, np.float32)
    beyond = w.astype(np.float64)
    beyond[0] = sign * clip * (steps + 0.01)
    assert not moved(w, beyond.astype(np.float32), clip, steps=steps)


@given(clip=clips, size=st.floats(-100, 100), sign=st.sampled_from([-1, 1]))
def test_more_than_rounding_can_explain_does_not(clip: float, size: float, sign: int) -> None:
    """A thousandth of the clip more, or two units in the last place of a large weight: whichever is larger."""
    w = np.array([size * clip, 0, 0], np.float32)
    beyond = w.astype(np.float64)
    beyond[0] += sign * clip * 1.001
    assert not moved(w, beyond.astype(np.float32), clip)


@given(
    bits=st.integers(4, 24), clip=st.floats(1e-3, 1e3), weights=st.lists(st.integers(1, WEIGHT_UNITS), min_size=3),
    seed=st.binary(min_size=32, max_size=32),
)  # fmt: skip
def test_no_mean_of_clipped_updates_is_larger_than_said(
    bits: int, clip: float, weights: list[int], seed: bytes
) -> None:
    """Everybody sends the clip or more, and rounding falls as it likes."""
    codec, stream = FixedPoint(bits=bits, clip=clip), KeyStream(seed)
    for value in (clip, -clip, np.float32(3e38), np.nextafter(np.float32(clip), np.float32(0))):
        values = np.full(8, value, np.float32)
        encoded = [codec.encode(values, weight=weight, stream=stream)[0] for weight in weights]
        total = np.stack(encoded).astype(np.int64).sum(axis=0)
        # Without the bound of `decode`, which counts every contributor as if it weighed 1.
        mean = total / codec.scale / (sum(weights) / WEIGHT_UNITS)
        assert np.abs(mean).max() <= codec.largest_mean(lightest=min(weights)) * (1 + 1e-12)
        block = BlockSum(total=total, weight=sum(weights), contributors=len(weights))
        assert np.abs(codec.decode(block)).max() <= codec.largest_mean(lightest=min(weights)) * (1 + 2**-23)


def test_equal_weights_reach_the_clip_and_no_more() -> None:
    assert FixedPoint(bits=16, clip=0.25).largest_mean(lightest=WEIGHT_UNITS) == 0.25
    assert FixedPoint(bits=16, clip=0.25).largest_mean(lightest=32) == pytest.approx(0.25, rel=1e-4)


@pytest.mark.parametrize("place", [0, _CHUNK - 1, _CHUNK, 2 * _CHUNK + 6])
@pytest.mark.parametrize("value", [1.1, -1.1, np.nan, np.inf, -np.inf])
def test_one_coordinate_is_enough_wherever_it_is(place: int, value: float) -> None:
    before = np.zeros(2 * _CHUNK + 7, np.float32)
    after = before.copy()
    assert moved(before, after, 1.0)
    after[place] = value
    assert not moved(before, after, 1.0)


def test_what_is_shipped_does_not_move_and_neither_does_a_model_without_a_step() -> None:
    before = np.array([1, 2, 3], np.float32)
    after = np.nextafter(before, np.float32(9))
    assert moved(before, after, 1.0)
    assert not moved(before, after, 1.0, name="@hint")
    assert not moved(before, after, 0.0)
    assert moved(before, before.copy(), 0.0)
    assert moved(before, before.copy(), 1.0, name="@hint")
    assert not moved(before, after, 1.0, name="@hint", steps=5)
    assert not moved(before, after, 1.0, steps=0)
