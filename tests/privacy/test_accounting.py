"""What events cost: the same as dp-accounting and Opacus say, and never less where they cannot say."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Sequence
from random import Random

import dp_accounting as dp
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.privacy import accounting
from secure_fl.privacy.accounting import INTERVAL, composed, epsilon_pld, epsilon_rdp, rdp_at
from secure_fl.privacy.events import Event, NoisySteps, NonPrivate

Triples = Sequence[tuple[float, float, int]]


def steps(sampling: float, noise: float, count: int) -> NoisySteps:
    return NoisySteps(sampling=sampling, noise=noise, steps=count)


def listed(triples: Triples) -> list[NoisySteps]:
    return [steps(*triple) for triple in triples]


REFERENCE = [steps(0.01, 1.0, 1000)]

SCHEDULES: dict[str, Triples] = {
    "reference": [(0.01, 1.0, 1000)],
    "digits": [(1 / 9, 3.08, 360)],
    "half of the units": [(0.5, 5.0, 60)],
    "every unit": [(1.0, 19.0, 30)],
    "noise changes mid-way": [(0.01, 1.0, 500), (0.01, 1.4, 500)],
    "batch changes mid-way and back": [(0.01, 1.2, 300), (0.04, 2.0, 200), (0.01, 1.2, 300)],
    "two studies on one data set, in turns": [(0.1, 4.0, 36), (0.02, 1.1, 50)] * 5,
}


def test_reference_values() -> None:
    assert epsilon_rdp(REFERENCE, delta=1e-5) == pytest.approx(2.1014, abs=5e-5)
    assert epsilon_pld(REFERENCE, delta=1e-5) == pytest.approx(1.828, abs=5e-4)


def opacus_epsilon(schedule: Triples, *, delta: float, orders: Sequence[float]) -> float:
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    for sampling, noise, count in schedule:
        for _ in range(count):
            accountant.step(noise_multiplier=noise, sample_rate=sampling)
    return float(accountant.get_epsilon(delta, alphas=orders))


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("delta", [1e-4, 1e-7])
def test_rdp_is_what_opacus_computes_at_the_same_orders(schedule: Triples, delta: float) -> None:
    orders = [*range(2, 64), 128, 256]
    expected = opacus_epsilon(schedule, delta=delta, orders=orders)
    assert epsilon_rdp(listed(schedule), delta=delta, orders=orders) == pytest.approx(expected, rel=0, abs=1e-6)


def opacus_divergence(schedule: Triples, order: float) -> float:
    from opacus.accountants.analysis.rdp import compute_rdp

    return float(sum(compute_rdp(q=q, noise_multiplier=s, steps=n, orders=float(order)) for q, s, n in schedule))


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("order", [2, 7, 18, 194])
def test_the_divergence_at_one_order_is_the_one_that_opacus_composes(schedule: Triples, order: int) -> None:
    assert rdp_at(listed(schedule), order=order) == pytest.approx(opacus_divergence(schedule, order), rel=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("order", [3.5, 4.2, 5.9, 7.8, 10.9])
def test_between_whole_orders_the_divergence_is_never_too_small(schedule: Triples, order: float) -> None:
    # There it is a series with terms of both signs. Opacus adds them up as they are, which agrees with the integral;
    # dp-accounting adds up their magnitudes. That is an upper bound, and still below the next whole order's.
    ours = rdp_at(listed(schedule), order=order)
    assert opacus_divergence(schedule, order) * (1 - 1e-9) <= ours < opacus_divergence(schedule, math.ceil(order))


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("interval", [1e-3, 1e-4])
def test_pld_is_a_separately_built_one(schedule: Triples, interval: float) -> None:
    built = privacy_loss_distribution.identity(value_discretization_interval=interval)
    for (sampling, noise), group in itertools.groupby(sorted(schedule), key=lambda triple: triple[:2]):
        one = privacy_loss_distribution.from_gaussian_mechanism(
            noise, sampling_prob=sampling, value_discretization_interval=interval
        )
        built = built.compose(one.self_compose(sum(count for _, _, count in group)))
    expected = built.get_epsilon_for_delta(1e-5)
    assert epsilon_pld(listed(schedule), delta=1e-5, interval=interval) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_pld_is_tighter_than_rdp(schedule: Triples) -> None:
    events = listed(schedule)
    assert 0.5 * epsilon_rdp(events, delta=1e-5) < epsilon_pld(events, delta=1e-5) < epsilon_rdp(events, delta=1e-5)


def test_nothing_costs_nothing() -> None:
    assert epsilon_pld([], delta=1e-5) == epsilon_rdp([], delta=1e-5) == rdp_at([], order=8) == 0


@pytest.mark.parametrize("others", [[], REFERENCE])
def test_a_release_without_noise_has_no_bound(others: list[NoisySteps]) -> None:
    events: list[Event] = [*others, NonPrivate()]
    assert epsilon_pld(events, delta=1e-5) == epsilon_rdp(events, delta=1e-5) == rdp_at(events, order=8) == math.inf
    # The library agrees about the event that is handed to it.
    assert dp.pld.PLDAccountant().compose(composed(events)).get_epsilon(1e-5) == math.inf
    assert dp.rdp.RdpAccountant().compose(composed(events)).get_epsilon(1e-5) == math.inf


def test_equal_events_are_composed_once() -> None:
    event = composed([*REFERENCE, steps(0.1, 2.0, 3), *REFERENCE])
    assert sorted((part.event.sampling_probability, part.count) for part in event.events) == [(0.01, 2000), (0.1, 3)]


@pytest.mark.parametrize("event", [steps(0.3, 1e9, 1), steps(0.7, 1e12, 1)])
def test_what_the_library_cannot_tell_from_nothing_is_not_for_free(event: NoisySteps) -> None:
    theirs = dp.rdp.RdpAccountant(orders=[18]).compose(composed([event])).rdp[0]
    assert theirs <= 0  # Taken at its word, this could be repeated for ever.
    assert rdp_at([event], order=18) == math.inf
    assert rdp_at([event, *REFERENCE], order=18) == math.inf


EXTREMES = [steps(1.0, 1e-200, 1), steps(0.5, 1e-200, 1), steps(0.5, 1e200, 1), steps(0.5, 1.0, 10**400)]


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("event", EXTREMES)
def test_what_the_library_cannot_compute_has_no_bound(event: NoisySteps) -> None:
    for events in ([event], [event, *REFERENCE]):
        assert (
            rdp_at(events, order=18) == epsilon_rdp(events, delta=1e-5) == epsilon_pld(events, delta=1e-5) == math.inf
        )


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, math.inf])
def test_a_delta_is_between_zero_and_one(delta: float) -> None:
    for events in ([], REFERENCE):
        with pytest.raises(ValueError, match="delta"):
            epsilon_pld(events, delta=delta)
        with pytest.raises(ValueError, match="delta"):
            epsilon_rdp(events, delta=delta)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_intervals_and_orders_are_numbers(value: float) -> None:
    with pytest.raises(ValueError, match="interval"):
        epsilon_pld(REFERENCE, delta=1e-5, interval=value)
    with pytest.raises(ValueError, match="order"):
        rdp_at(REFERENCE, order=value)


def test_small_losses_get_a_finer_interval() -> None:
    events = [steps(256 / 60_000, 113.0, 23_400)]
    plain = dp.pld.PLDAccountant(value_discretization_interval=INTERVAL).compose(composed(events)).get_epsilon(1e-6)
    fine = dp.pld.PLDAccountant(value_discretization_interval=1e-6).compose(composed(events)).get_epsilon(1e-6)
    assert plain > 1.4 * fine
    assert fine <= epsilon_pld(events, delta=1e-6) < 1.01 * fine


def test_an_enormous_epsilon_takes_no_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[float] = []

    def pld(events: object, delta: float, interval: float) -> float:
        used.append(interval)
        return math.inf

    monkeypatch.setattr(accounting, "_pld", pld)
    events = [steps(0.5, 0.1, 1000)]
    assert epsilon_pld(events, delta=1e-5) == epsilon_rdp(events, delta=1e-5)  # never more than this
    assert used == [epsilon_rdp(events, delta=1e-5) / 1_000_000]


def test_what_was_computed_is_remembered() -> None:
    events = [steps(0.02, 1.3, 77), steps(0.03, 1.3, 78)]
    first = epsilon_pld(events, delta=1e-5)
    hits = accounting._pld.cache_info().hits
    assert epsilon_pld([events[1], steps(0.02, 1.3, 70), steps(0.02, 1.3, 7)], delta=1e-5) == first
    assert accounting._pld.cache_info().hits == hits + 1


EVENTS = st.builds(
    steps, st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.0]), st.sampled_from([0.8, 1.5, 4.0, 20.0]), st.integers(1, 500)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=6), EVENTS, st.sampled_from([2, 7, 18]), st.randoms())
def test_laws_of_the_divergence(events: list[NoisySteps], more: NoisySteps, order: int, chance: Random) -> None:
    total = rdp_at(events, order=order)
    shuffled = sorted(events, key=lambda _: chance.random())
    assert rdp_at(shuffled, order=order) == total
    # It adds up, so that more costs more ...
    assert rdp_at([*events, more], order=order) == pytest.approx(total + rdp_at([more], order=order), rel=1e-12)
    assert rdp_at([*events, more], order=order) > total
    # ... and grows with the order.
    assert rdp_at(events, order=order + 1) > total


@settings(max_examples=40, deadline=None)
@given(EVENTS)
def test_less_noise_larger_samples_and_more_steps_cost_more(event: NoisySteps) -> None:
    def cost(sampling: float, noise: float, count: int) -> tuple[float, float]:
        changed = [steps(sampling, noise, count)]
        return rdp_at(changed, order=8), epsilon_rdp(changed, delta=1e-5, orders=range(2, 40))

    base = cost(event.sampling, event.noise, event.steps)
    for worse in (
        cost(event.sampling, event.noise * 0.9, event.steps),
        cost(event.sampling, event.noise, event.steps + 50),
        cost(min(1.0, event.sampling * 1.1), event.noise, event.steps + 1),
    ):
        assert worse[0] > base[0]
        assert worse[1] >= base[1]


def test_heavy_libraries_wait_until_something_is_computed() -> None:
    code = (
        "import sys, secure_fl.privacy.plan; "
        "print(sorted({'torch', 'opacus', 'dp_accounting', 'scipy'} & {name.split('.')[0] for name in sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_cost_beyond_what_distributions_hold_is_the_rougher_bound_and_no_crash() -> None:
    enormous = (NoisySteps(sampling=1.0, noise=0.1, steps=10**9),)
    assert epsilon_pld(enormous, delta=1e-5) == epsilon_rdp(enormous, delta=1e-5) > 1e9
