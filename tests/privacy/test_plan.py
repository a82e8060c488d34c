"""A plan's noise is just enough: the planned rounds and the spare attempts pass a site's filter, and not one more."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting as dp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.errors import BudgetExceededError, SettingsError
from secure_fl.privacy import plan as plans
from secure_fl.privacy.accounting import epsilon_pld
from secure_fl.privacy.events import NoisySteps
from secure_fl.privacy.filter import BudgetFilter
from secure_fl.privacy.mechanism import Mechanism
from secure_fl.privacy.plan import PrivacyPlan

DIGITS: dict[str, Any] = {
    "epsilon": 3.0,
    "delta": 1e-5,
    "rounds": 20,
    "epochs": 2,
    "batch_size": 20,
    "units": 180,
    "spare_attempts": 2,
}


def plan(**changes: Any) -> PrivacyPlan:
    return PrivacyPlan(**{**DIGITS, **changes})


def passed(budget: BudgetFilter, each: tuple[NoisySteps, ...], most: int) -> int:
    """How many trainings a site lets through, asked one by one as it is in a study."""
    spent: list[NoisySteps] = []
    for done in range(most):
        try:
            budget.require(spent, each)
        except BudgetExceededError:
            return done
        spent += each
    return most


# The first line of each is the reference by privacy loss distributions; the docstring of plan.py has both.
@pytest.mark.parametrize(
    ("epsilon", "tight", "noise", "reported"),
    [(1.0, 7.98, 8.65, 0.91), (3.0, 3.08, 3.33, 2.74), (8.0, 1.48, 1.58, 7.28)],
)
def test_the_price_of_the_filter(epsilon: float, tight: float, noise: float, reported: float) -> None:
    made = plan(epsilon=epsilon, rounds=20, epochs=2, spare_attempts=0)  # 360 steps at q = 1/9
    assert made.noise == pytest.approx(noise, abs=0.005)
    assert made.epsilon_total == pytest.approx(reported, abs=0.005)
    by_pld = dp.calibrate_dp_mechanism(
        lambda: dp.pld.PLDAccountant(value_discretization_interval=1e-3),
        lambda sigma: dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(1 / 9, dp.GaussianDpEvent(sigma)), 360),
        epsilon,
        1e-5,
        bracket_interval=dp.ExplicitBracketInterval(1, 10),
        tol=1e-3,
    )
    assert by_pld == pytest.approx(tight, abs=0.01)
    # Why the price is paid: with the tight noise the site that allows exactly this would stop before the end.
    budget = BudgetFilter(epsilon=epsilon, delta=1e-5)
    assert passed(budget, (NoisySteps(sampling=1 / 9, noise=by_pld, steps=18),), 20) < 20
    assert passed(budget, made.cost_per_round, 21) == 20


@pytest.mark.parametrize("spare", [0, 2, 5])
@pytest.mark.parametrize("rounds", [1, 20, 300])
@pytest.mark.parametrize("epsilon", [0.5, 3.0, 12.0])
def test_rounds_and_spare_attempts_pass_and_the_next_is_refused(epsilon: float, rounds: int, spare: int) -> None:
    made = plan(epsilon=epsilon, rounds=rounds, spare_attempts=spare)
    budget = BudgetFilter(epsilon=epsilon, delta=1e-5)
    assert passed(budget, made.cost_per_round, rounds + spare + 5) == rounds + spare
    assert budget.rounds_left((), made.cost_per_round) == rounds + spare


def test_a_larger_policy_admits_more_than_one_such_study() -> None:
    left = BudgetFilter(epsilon=6.0, delta=1e-5).rounds_left((), plan().cost_per_round)
    assert left is not None
    assert left > 2 * 22  # ε does not simply add up


PLANS = st.builds(
    lambda epsilon, delta, rounds, epochs, batch, times, spare: plan(
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        epochs=epochs,
        batch_size=batch,
        units=batch * times,
        spare_attempts=spare,
    ),
    st.floats(0.5, 15),
    st.sampled_from([1e-5, 1e-7]),
    st.integers(1, 60),
    st.integers(1, 5),
    st.integers(64, 256),
    st.integers(1, 200),
    st.integers(0, 3),
)


@settings(max_examples=60, deadline=None)
@given(PLANS)
def test_the_noise_is_enough_and_hardly_more(made: PrivacyPlan) -> None:
    budget = BudgetFilter(epsilon=made.epsilon, delta=made.delta)
    whole = made.trainings * made.epochs * made.epoch_steps
    assert budget.allows((), [NoisySteps(sampling=made.sampling, noise=made.noise, steps=whole)])
    assert not budget.allows((), [NoisySteps(sampling=made.sampling, noise=made.noise - 5e-6, steps=whole)])
    assert sum(event.steps for event in made.cost_per_round) * made.trainings == whole


@settings(max_examples=8, deadline=None)
@given(PLANS)
def test_what_is_reported_stays_below_what_was_promised(made: PrivacyPlan) -> None:
    assert 0 < made.epsilon_total <= made.epsilon_after(made.trainings) <= made.epsilon


def test_epsilon_grows_with_the_rounds() -> None:
    made = plan()
    after = [made.epsilon_after(rounds) for rounds in (0, 1, 5, 20, 22)]
    assert after[0] == 0
    assert after == sorted(set(after))
    assert made.epsilon_total == after[3] == epsilon_pld(made.cost_per_round * 20, delta=1e-5)
    assert after[4] <= 3.0


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 2.9},
        {"delta": 9e-6},
        {"rounds": 21},
        {"epochs": 3},
        {"spare_attempts": 3},
        {"batch_size": 30},
        {"units": 90},
    ],
)
def test_whatever_asks_for_more_or_promises_more_needs_more_noise(changes: dict[str, Any]) -> None:
    assert plan(**changes).noise > plan().noise


def test_the_mechanism_has_the_constants_of_the_plan() -> None:
    made = plan(unit="group", clip=0.5, group_rows=4)
    assert made.mechanism == Mechanism(
        unit="group", units=180, sampling=1 / 9, noise=made.noise, clip=0.5, epoch_steps=9, group_rows=4
    )
    assert made.cost_per_round == (NoisySteps(sampling=1 / 9, noise=made.noise, steps=18),)
    assert made.noise == plan().noise == round(made.noise, 6)


@pytest.mark.parametrize(
    ("batch", "units", "steps"), [(20, 180, 9), (20, 189, 9), (20, 191, 10), (20, 20, 1), (20, 25, 1)]
)
def test_steps_stand_for_passes_over_the_declared_units(batch: int, units: int, steps: int) -> None:
    made = plan(batch_size=batch, units=units)
    assert (made.epoch_steps, made.sampling) == (steps, batch / units)


def test_it_is_worked_out_once() -> None:
    first = plan(epsilon=2.71)
    before = plans._calibrated.cache_info()
    again = plan(epsilon=2.71)
    assert (again, again.noise, hash(again)) == (first, first.noise, hash(first))
    after = plans._calibrated.cache_info()
    assert after.misses == before.misses
    assert after.hits > before.hits


@pytest.mark.parametrize(
    ("changes", "says", "advises"),
    [
        ({"delta": 1 / 180}, "privacy.delta", "below 1 / 180"),
        ({"delta": 0.0}, "privacy.delta", "1e-10"),
        ({"delta": 1e-12}, "privacy.delta", "1e-10"),
        ({"delta": math.nan}, "privacy.delta", "1e-10"),
        ({"batch_size": 181}, "a batch of 181 out of 180 records", "batch size"),
        ({"batch_size": 0}, "a batch of 0", "at least 1"),
        ({"units": 0}, "out of 0", "units"),
        ({"epsilon": 0.0}, "epsilon", "positive"),
        ({"epsilon": -1.0}, "epsilon", "positive"),
        ({"epsilon": math.nan}, "epsilon", "positive"),
        ({"epsilon": math.inf}, "epsilon", "positive"),
        ({"epsilon": 0.001}, "leaves nothing to spend", "larger epsilon"),
        ({"epsilon": 0.01}, "nothing would be learnt", "larger privacy.epsilon"),
        ({"rounds": 10**5, "epsilon": 0.2}, "nothing would be learnt", "fewer rounds"),
        ({"rounds": 0}, "at least one round", "none"),
        ({"epochs": 0}, "at least one round and one pass", "none"),
        ({"spare_attempts": -1}, "plan", ""),
        ({"clip": 0.0}, "privacy.clip", ""),
        ({"clip": math.nan}, "privacy.clip", ""),
        ({"group_rows": 0}, "group_rows", ""),
    ],
)
def test_what_makes_no_sense_is_refused_with_advice(changes: dict[str, Any], says: str, advises: str) -> None:
    with pytest.raises(SettingsError) as caught:
        plan(**changes)
    assert says in caught.value.message
    assert caught.value.hint
    assert advises in caught.value.hint


@pytest.mark.parametrize("missing", ["epsilon", "delta"])
def test_what_a_study_may_cost_has_no_default(missing: str) -> None:
    with pytest.raises(SettingsError, match=f"privacy.{missing} is missing") as caught:
        PrivacyPlan.make(**{**DIGITS, missing: None})
    assert "epsilon = 3.0" in caught.value.hint
    assert PrivacyPlan.make(**DIGITS) == plan()


def test_an_epsilon_that_allows_no_noise_at_all_still_gets_some() -> None:
    made = plan(epsilon=1e6)
    assert made.noise == 0.1
    assert made.epsilon_total < 1e6


def test_it_explains_itself() -> None:
    made = plan()
    text = " ".join(made.explain())
    assert "epsilon is at most 3 (delta 1e-05)" in text
    assert "20.1 times as likely" in text  # e³
    assert "about 180 records" in text
    assert f"noise {made.noise:.3g} times as large" in text
    assert f"20 rounds of 18 steps use epsilon {made.epsilon_total:.3g}." in text
    assert f"2 more trainings, where attempts fail (then epsilon {made.epsilon_after(22):.3g})" in text
    assert "promises little" not in text
    assert "more trainings" not in " ".join(plan(spare_attempts=0).explain())
    assert "promises little" in plan(epsilon=12.0).explain()[-1]
    assert "every single group" in plan(unit="group").explain()[0]
    assert "astronomical" in plan(epsilon=500.0).explain()[1]
