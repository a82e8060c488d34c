"""The error distribution: its table against the definition, and draws against the table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import accumulate, pairwise

import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import ProtectionError
from secure_fl.protect.sealed.error import Errors, Gaussian, probabilities
from secure_fl.randomness import KeyStream
from tests.protect.laws import law

SIGMAS = [6.4, 64.0]
SAMPLE = 1 << 21
KEY = bytes(range(32))

sigmas = pytest.mark.parametrize("sigma", SIGMAS)


class Words:
    """Randomness that answers with the 64-bit numbers that were written down: 16 bits at first, then all that is left.

    The last 16 of the 64 bits drawn where the first 16 do not decide are not used.
    """

    def __init__(self, *words: int) -> None:
        self._words = np.array(words, np.uint64)
        self._asked = 0

    def bytes(self, count: int) -> bytes:
        self._asked += 1
        if self._asked == 1:
            assert count == 2 * self._words.size
            return (self._words >> np.uint64(48)).astype("<u2").tobytes()
        assert count <= 8 * self._words.size
        return (self._words << np.uint64(16)).astype("<u8").tobytes()[:count]


def exact(sigma: float, reach: int) -> list[arb]:
    """exp(−x²/2σ²) for |x| ≤ reach, as FLINT has it, to 300 bits."""
    variance = arb(sigma) * arb(sigma)
    return [(-arb(x * x) / (2 * variance)).exp() for x in range(-reach, reach + 1)]


@pytest.fixture(autouse=True)
def _precise() -> Iterator[None]:
    before, ctx.prec = ctx.prec, 300
    yield
    ctx.prec = before


@pytest.fixture(scope="module", params=SIGMAS)
def drawn(request: pytest.FixtureRequest) -> tuple[Gaussian, Errors]:
    gaussian = Gaussian(request.param)
    return gaussian, gaussian.draw(KeyStream(KEY), SAMPLE)


# --- the table ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [*SIGMAS, 1.0, 3.2, 200.5])
def test_probabilities_are_the_nearest_multiples_of_the_definitions(sigma: float) -> None:
    units, bound = probabilities(sigma), int(6 * sigma)
    weights = exact(sigma, bound)
    norm = sum(weights, arb(0))
    assert sum(units) == 2**64
    assert units == units[::-1]
    assert len(units) == 2 * bound + 1
    half = arb(0.5)
    for x, (unit, weight) in enumerate(zip(units, weights, strict=True), start=-bound):
        room = half if x else bound  # zero takes what rounding left, half a unit from each of the others at most
        assert abs(weight / norm * 2**64 - unit) <= room


@sigmas
def test_the_distances_that_the_module_states(sigma: float) -> None:
    units, bound = probabilities(sigma), int(6 * sigma)
    weights = exact(sigma, bound)
    norm = sum(weights, arb(0))
    definition = [weight / norm for weight in weights]
    table = [arb(unit) / 2**64 for unit in units]
    pairs = list(zip(table, definition, strict=True))
    statistical = sum((abs(given - wanted) for given, wanted in pairs), arb(0)) / 2
    chi_square = sum(((given - wanted) ** 2 / wanted for given, wanted in pairs), arb(0))
    cut = 1 - norm / sum(exact(sigma, 10 * bound), arb(0))
    assert statistical < arb(2) ** -57
    assert chi_square < arb(2) ** -90
    assert arb(2) ** -30 < cut < arb(2) ** -28


# --- draws against the table ---------------------------------------------------------------------------------------


@law
@given(st.sampled_from(SIGMAS), st.integers(0, 2**64 - 1))
def test_a_draw_inverts_the_distribution_function(sigma: float, word: int) -> None:
    steps = list(accumulate(probabilities(sigma)))
    expected = next(index for index, step in enumerate(steps) if word < step) - int(6 * sigma)
    assert Gaussian(sigma).draw(Words(word), 1).tolist() == [expected]


@sigmas
def test_a_draw_changes_exactly_at_the_steps(sigma: float) -> None:
    gaussian = Gaussian(sigma)
    steps = list(accumulate(probabilities(sigma)))
    below = [gaussian.draw(Words(step - 1), 1).item() for step in steps]
    above = [gaussian.draw(Words(step), 1).item() for step in steps[:-1]]
    assert below == list(range(-gaussian.bound, gaussian.bound + 1))
    assert above == below[1:]
    assert all(first < second for first, second in pairwise(steps))  # every value can be drawn
    assert gaussian.draw(Words(0), 1).item() == -gaussian.bound


def test_no_draw_is_beyond_the_bound(drawn: tuple[Gaussian, Errors]) -> None:
    gaussian, errors = drawn
    assert gaussian.bound == {6.4: 38, 64.0: 384}[gaussian.sigma]
    assert errors.dtype == np.int16
    assert -gaussian.bound <= errors.min() <= errors.max() <= gaussian.bound


def test_moments(drawn: tuple[Gaussian, Errors]) -> None:
    # Of a Gaussian to within what the cut and the grid change, which is far less than five standard errors.
    gaussian, errors = drawn
    scaled = errors / gaussian.sigma
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((scaled**power).mean() - moment) < 5 * (variance / SAMPLE) ** 0.5
    assert abs(np.mean(errors > 0) - np.mean(errors < 0)) < 5 / SAMPLE**0.5
    assert abs((scaled[:-1] * scaled[1:]).mean()) < 5 / SAMPLE**0.5


def test_tails(drawn: tuple[Gaussian, Errors]) -> None:
    gaussian, errors = drawn
    units = np.array(probabilities(gaussian.sigma), np.float64) / 2.0**64
    values = np.arange(-gaussian.bound, gaussian.bound + 1)
    for tail in (2, 3, 4):
        expected = SAMPLE * units[np.abs(values) > tail * gaussian.sigma].sum()
        assert abs(np.count_nonzero(np.abs(errors) > tail * gaussian.sigma) - expected) < 5 * expected**0.5


def test_frequencies(drawn: tuple[Gaussian, Errors]) -> None:
    gaussian, errors = drawn
    expected = SAMPLE * np.array(probabilities(gaussian.sigma), np.float64) / 2.0**64
    counts = np.bincount(errors.astype(np.int64) + gaussian.bound, minlength=expected.size)
    often = expected >= 10  # The others are one class: the approximation needs some counts in each.
    counts = np.append(counts[often], counts[~often].sum())
    expected = np.append(expected[often], expected[~often].sum())
    chi = float(((counts - expected) ** 2 / expected).sum())
    freedom = expected.size - 1
    assert abs(chi - freedom) < 5 * (2 * freedom) ** 0.5


# --- as it once was -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sigma", "digest"),
    [
        (6.4, "847e3eb26d054d2bf8851345defdfef6eb41b58c8bf5364d66b0d9df3ff44515"),
        (64.0, "d3b5cc28075471d9a6bb8ebe26d0e63e876ae030ba22929211c0f7e13029dd0d"),
    ],
)
def test_known_answers(sigma: float, digest: str) -> None:
    errors = Gaussian(sigma).draw(KeyStream(KEY), 100_000)
    assert hashlib.sha256(errors.astype("<i2").tobytes()).hexdigest() == digest


def test_a_stream_goes_on_where_it_was() -> None:
    stream, gaussian = KeyStream(KEY), Gaussian(6.4)
    first, second = gaussian.draw(stream, 1000), gaussian.draw(stream, 1000)
    assert (first != second).any()
    assert (first == gaussian.draw(KeyStream(KEY), 1000)).all()
    assert gaussian.draw(stream, 0).size == 0


@pytest.mark.parametrize("sigma", [0.0, -1.0, 0.99, 4097.0, float("nan"), float("inf")])
def test_a_width_without_sense_is_refused(sigma: float) -> None:
    with pytest.raises(ProtectionError):
        Gaussian(sigma)
