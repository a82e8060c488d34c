"""The noise is Gaussian and the samples are Poisson's, from a CSPRNG: statistics with fixed keys."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from secure_fl.privacy import noise
from secure_fl.privacy.noise import PrivateRandomness, gaussians
from secure_fl.randomness import KeyStream

Numbers = npt.NDArray[np.float64]
COUNT = 400_000


def drawn(count: int = COUNT, key: int = 1) -> Numbers:
    values: Numbers = gaussians(KeyStream(bytes([key]) * 32), count).numpy()
    return values


def require_gaussian(values: Numbers, deviation: float = 1.0) -> None:
    """Mean, variance, kurtosis, both tails and the whole distribution. The keys are fixed, so this never flickers."""
    z, n = values / deviation, len(values)
    assert abs(z.mean()) < 4 / math.sqrt(n)
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / n)
    assert abs(stats.kurtosis(z)) < 4 * math.sqrt(24 / n)
    for threshold in (2.0, 3.0, 4.0):
        expected = n * stats.norm.sf(threshold)
        for tail in (z > threshold, z < -threshold):
            assert abs(tail.sum() - expected) < 4 * math.sqrt(expected) + 1
    assert stats.kstest(z, "norm").pvalue > 1e-3


def test_the_noise_is_gaussian() -> None:
    require_gaussian(drawn())


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros_like,
        lambda z: z / 10,
        lambda z: 1.02 * z,
        lambda z: np.clip(z, -3, 3),
        lambda z: np.sign(z) * np.abs(z) ** 1.03,
        lambda z: stats.t(8).ppf(stats.norm.cdf(z)) / math.sqrt(8 / 6),  # the same variance, other tails
        lambda z: z + 0.02,
    ],
)
def test_noise_that_is_something_else_is_found_out(wrong: Callable[[Numbers], Numbers]) -> None:
    with pytest.raises(AssertionError):
        require_gaussian(wrong(drawn()))


def test_neighbours_in_the_stream_are_independent() -> None:
    z = drawn()
    half = len(z) // 2
    for one, other in ((z[:-1], z[1:]), (z[:half], z[half:]), (z[:half] ** 2, z[half:] ** 2)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / math.sqrt(len(one))


def test_any_number_of_them_can_be_drawn() -> None:
    assert [len(drawn(count)) for count in (0, 1, 2, 7)] == [0, 1, 2, 7]
    assert np.isfinite(drawn(7)).all()


def test_the_extremes_of_the_stream_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in (0, 2**64 - 1):
        monkeypatch.setattr(noise, "_words", lambda _, count, word=word: np.full(count, word, np.uint64))
        largest = float(gaussians(KeyStream(bytes(32)), 2).abs().max())
        assert largest == pytest.approx(math.sqrt(130 * math.log(2)) if word == 0 else 0.0)


def test_what_is_noised_lies_on_a_grid_that_the_data_do_not_move() -> None:
    deviation = 0.3
    grid = 2.0 ** math.floor(math.log2(deviation) - 16)
    for total in (torch.zeros(1000), torch.rand(1000) * 7, torch.full((1000,), 1 / 3)):
        found = PrivateRandomness(b"key").step(1).noised(total, deviation)
        assert found.dtype == torch.float64
        assert (found / grid == (found / grid).round()).all()
        require_gaussian_loosely((found - total.double()).numpy() / deviation)


def require_gaussian_loosely(z: Numbers) -> None:
    assert stats.kstest(z, "norm").pvalue > 1e-3


def test_a_large_vector_is_noised_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_CHUNK", 1000)
    found = PrivateRandomness(b"key").step(1).noised(torch.zeros(20_500), 2.0).numpy()
    require_gaussian(found, 2.0)
    assert len(np.unique(found)) > 18_000  # No part repeats another.


# --- samples ----------------------------------------------------------------------------------------------------


def memberships(units: int, rate: float, steps: int) -> npt.NDArray[np.bool_]:
    """Who is in the sample of each step."""
    randomness = PrivateRandomness(b"samples")
    found = np.zeros((steps, units), bool)
    for step in range(steps):
        found[step, randomness.step(step).sample(units, rate)] = True
    return found


@pytest.mark.parametrize("rate", [0.01, 1 / 9, 0.5])
def test_each_unit_is_sampled_by_itself(rate: float) -> None:
    units, steps = 60, 4000
    members = memberships(units, rate, steps)
    assert stats.binomtest(int(members.sum()), members.size, rate).pvalue > 1e-3
    # Sizes vary as those of a binomial do: a batch of fixed size would not vary at all.
    sizes = members.sum(axis=1)
    expected = units * rate * (1 - rate)
    assert abs(sizes.var() - expected) < 5 * expected * math.sqrt(2 / steps)
    # Every unit as often, and no pair together more often than chance: a mean χ² of 1.
    per_unit = (members.sum(axis=0) - steps * rate) ** 2 / (steps * rate * (1 - rate))
    assert stats.chi2(units).sf(per_unit.sum()) > 1e-3
    pairs = np.asarray(np.corrcoef(members.T))[np.triu_indices(units, 1)]
    assert abs((pairs**2).mean() * steps - 1) < 5 * math.sqrt(2 / len(pairs))
    # Nor a unit in one step because it was in the last.
    again = (members[1:] & members[:-1]).sum()
    assert stats.binomtest(int(again), members[1:].size, rate**2).pvalue > 1e-3


def test_a_sample_can_be_empty_or_everybody() -> None:
    assert (memberships(5, 0.01, 200).sum(axis=1) == 0).any()
    assert memberships(5, 1.0, 20).all()
    assert memberships(0, 0.5, 3).shape == (3, 0)


def test_a_unit_more_does_not_change_who_else_is_sampled() -> None:
    assert (memberships(21, 0.3, 50)[:, :20] == memberships(20, 0.3, 50)).all()


# --- keys -------------------------------------------------------------------------------------------------------


def test_without_a_seed_every_execution_has_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    system = os.urandom

    def urandom(count: int) -> bytes:
        asked.append(count)
        return system(count)

    monkeypatch.setattr(os, "urandom", urandom)
    one, other = (PrivateRandomness().step(1).noised(torch.zeros(5), 1.0) for _ in range(2))
    assert asked == [32, 32]
    assert not (one == other).any()
    assert PrivateRandomness().kind == "system"


def test_a_seed_repeats_and_no_two_streams_are_one() -> None:
    assert PrivateRandomness(b"a").kind == "seeded"

    def looks(seed: bytes, step: int) -> list[tuple[float, ...]]:
        randomness = PrivateRandomness(seed).step(step)
        return [tuple(randomness.noised(torch.zeros(3), 1.0).tolist()), tuple(randomness.order(3).tolist())]

    assert looks(b"a", 1) == looks(b"a", 1)
    found = [look for seed in (b"a", b"b") for step in (1, 2, 11) for look in looks(seed, step)]
    assert len(set(found)) == len(found)
    assert PrivateRandomness(b"a").torch_seed() != PrivateRandomness(b"b").torch_seed()
