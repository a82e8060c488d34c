"""A budget is never overspent, whatever is asked for and in whatever order, and is refused at the right round."""

from __future__ import annotations

import math
from random import Random

import pytest
from dp_accounting import rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.errors import BudgetExceededError, RefusedError, SettingsError
from secure_fl.privacy import filter as filters
from secure_fl.privacy.accounting import epsilon_pld, epsilon_rdp
from secure_fl.privacy.events import Event, NoisySteps, NonPrivate
from secure_fl.privacy.filter import BudgetFilter, order_for

ROUND = NoisySteps(sampling=1 / 9, noise=3.4, steps=36)
BUDGET = BudgetFilter(epsilon=3.0, delta=1e-5)

BUDGETS = st.builds(
    lambda epsilon, delta: BudgetFilter(epsilon=epsilon, delta=delta),
    st.floats(0.3, 20),
    st.sampled_from([1e-7, 1e-5, 1e-3]),
)
EVENTS = st.builds(
    lambda sampling, noise, steps: NoisySteps(sampling=sampling, noise=noise, steps=steps),
    st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.0]),
    st.sampled_from([0.7, 1.0, 3.0, 10.0, 40.0]),
    st.integers(1, 400),
)


def admitted(budget: BudgetFilter, spent: list[Event], wanted: list[NoisySteps]) -> bool:
    try:
        budget.require(spent, wanted)
    except BudgetExceededError:
        return False
    return True


def greedy(budget: BudgetFilter, tried: list[tuple[NoisySteps, bool]]) -> list[Event]:
    """An adversary that chooses from what it got so far: each event as it is, or as often as it still fits, and on."""
    spent: list[Event] = []
    for event, as_often_as_it_fits in tried:
        times = budget.rounds_left(spent, [event]) if as_often_as_it_fits else 1
        wanted = [event] * min(times or 0, 2000) or [event]
        if admitted(budget, spent, wanted):
            spent += wanted
    return spent


TRIED = st.lists(st.tuples(EVENTS, st.booleans()), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(BUDGETS, TRIED)
def test_what_is_admitted_never_passes_the_policy(budget: BudgetFilter, tried: list[tuple[NoisySteps, bool]]) -> None:
    spent = greedy(budget, tried)
    assert budget.cost(spent) <= budget.limit
    assert budget.converted(spent) <= budget.epsilon
    assert budget.spent_fraction(spent) <= 1
    assert rdp.compute_epsilon([budget.order], [budget.cost(spent)], budget.delta)[0] <= budget.epsilon * (1 + 1e-12)


@settings(max_examples=12, deadline=None)
@given(BUDGETS, TRIED)
def test_nor_does_it_by_any_other_accountant(budget: BudgetFilter, tried: list[tuple[NoisySteps, bool]]) -> None:
    spent = greedy(budget, tried)
    # At whole orders only: dp-accounting's fractional ones are upper bounds of their own.
    assert epsilon_rdp(spent, delta=budget.delta, orders=[*range(2, 64), budget.order]) <= budget.epsilon * (1 + 1e-12)
    assert epsilon_pld(spent, delta=budget.delta, interval=1e-3) <= budget.epsilon * (1 + 1e-12)


def test_the_adversary_of_these_tests_overspends_where_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = [(ROUND, False)] * 20
    assert 0.9 < BUDGET.spent_fraction(greedy(BUDGET, tried)) <= 1
    monkeypatch.setattr(BudgetFilter, "allows", lambda self, spent, wanted: True)
    assert BUDGET.spent_fraction(greedy(BUDGET, tried)) > 1.5
    assert epsilon_pld(greedy(BUDGET, tried), delta=1e-5) > BUDGET.epsilon


def test_to_stop_when_the_tight_accountant_reaches_epsilon_would_admit_more() -> None:
    # This is the rule that has no theorem behind it. The two differ, so the tests above can tell them apart.
    fits = BUDGET.rounds_left([], [ROUND])
    assert fits is not None
    assert epsilon_pld([ROUND] * (fits + 1), delta=1e-5) < BUDGET.epsilon


@settings(max_examples=100, deadline=None)
@given(BUDGETS, EVENTS, st.lists(EVENTS, max_size=3))
def test_rounds_are_refused_at_exactly_the_right_one(
    budget: BudgetFilter, each: NoisySteps, before: list[NoisySteps]
) -> None:
    left = budget.rounds_left(before, [each])
    assert left is not None
    if left:
        budget.require(before, [each] * min(left, 3000))
    if left < 3000:
        with pytest.raises(BudgetExceededError):
            budget.require([*before, *[each] * left], [each])


def test_one_by_one_it_is_the_same_round() -> None:
    left = BUDGET.rounds_left([], [ROUND])
    assert left == 10
    spent: list[Event] = []
    while admitted(BUDGET, spent, [ROUND]):
        spent.append(ROUND)
        assert BUDGET.rounds_left(spent, [ROUND]) == left - len(spent)
    assert len(spent) == left


@settings(max_examples=60, deadline=None)
@given(BUDGETS, st.lists(EVENTS, max_size=6), EVENTS, st.randoms(use_true_random=False))
def test_a_restart_decides_the_same(
    budget: BudgetFilter, spent: list[NoisySteps], wanted: NoisySteps, chance: Random
) -> None:
    restored = [NoisySteps.from_facts(event.facts()) for event in spent]
    chance.shuffle(restored)
    again = BudgetFilter(epsilon=budget.epsilon, delta=budget.delta, order=budget.order)
    filters.order_for.cache_clear()
    assert again == BudgetFilter(epsilon=budget.epsilon, delta=budget.delta)
    assert again.cost(restored) == budget.cost(spent)
    assert again.allows(restored, [wanted]) == budget.allows(spent, [wanted])
    # Steps that were split differently over rounds are the same steps.
    halves = [NoisySteps(sampling=wanted.sampling, noise=wanted.noise, steps=1)] * wanted.steps
    assert again.allows(restored, halves) == budget.allows(spent, [wanted])


@settings(max_examples=80, deadline=None)
@given(BUDGETS, st.lists(EVENTS, max_size=4), EVENTS, EVENTS)
def test_laws(budget: BudgetFilter, spent: list[NoisySteps], wanted: NoisySteps, other: NoisySteps) -> None:
    # Whoever spent more is allowed no more.
    if budget.allows([*spent, other], [wanted]):
        assert budget.allows(spent, [wanted])
    # What is allowed together is allowed one after the other, and the order does not matter.
    assert budget.allows([*spent, other], [wanted]) == budget.allows([*spent, wanted], [other])
    # More noise for the same training is never refused where less was allowed.
    quieter = NoisySteps(sampling=wanted.sampling, noise=wanted.noise * 1.1, steps=wanted.steps)
    if budget.allows(spent, [wanted]):
        assert budget.allows(spent, [quieter])
    assert 0 < budget.cost([quieter]) <= budget.cost([wanted])


@settings(max_examples=100, deadline=None)
@given(BUDGETS, st.floats(1, 1.5), st.sampled_from([1, 1.1, 10]), EVENTS, EVENTS)
def test_whoever_allows_more_admits_all_that_somebody_with_less_admits(
    budget: BudgetFilter, more: float, larger: float, first: NoisySteps, each: NoisySteps
) -> None:
    left = budget.rounds_left([first], [each])
    wider = BudgetFilter(epsilon=budget.epsilon * more, delta=budget.delta * larger)
    if left:
        assert (wider.rounds_left([first], [each]) or 0) >= left


@pytest.mark.parametrize("epsilon", [0.01, 0.05, 0.3, 1.0, 3.0, 8.0, 20.0, 1000.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2])
def test_the_limit_is_the_librarys_conversion_solved_for_the_divergence(epsilon: float, delta: float) -> None:
    try:
        budget = BudgetFilter(epsilon=epsilon, delta=delta)
    except SettingsError:
        assert (epsilon, delta) == (0.01, 1e-10)  # too little for any order up to 1024
        return
    assert rdp.compute_epsilon([budget.order], [budget.limit], delta)[0] == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "order"), [(0.3, 49), (1.0, 18), (3.0, 8), (8.0, 4), (20.0, 3), (1e6, 2)])
def test_the_order_follows_from_the_policy_alone(epsilon: float, order: int) -> None:
    # A ledger's entries are kept at these: whoever changes the rule has to keep the order that a policy began with.
    assert order_for(epsilon, 1e-5) == BudgetFilter(epsilon=epsilon, delta=1e-5).order == order


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0, 8.0])
@pytest.mark.parametrize(("sampling", "steps"), [(1 / 9, 36), (0.01, 100), (1.0, 3)])
def test_no_other_order_would_admit_much_more(epsilon: float, sampling: float, steps: int) -> None:
    def fit(order: int) -> float:
        budget = BudgetFilter(epsilon=epsilon, delta=1e-5, order=order)
        return budget.limit / budget.cost([NoisySteps(sampling=sampling, noise=20 / epsilon, steps=steps)])

    best = 0.0
    for order in range(2, 100):
        try:
            best = max(best, fit(order))
        except SettingsError:
            continue  # an order that leaves nothing to spend
    assert fit(order_for(epsilon, 1e-5)) > 0.95 * best


def test_a_release_without_noise_ends_every_budget() -> None:
    spent: list[Event] = [ROUND, NonPrivate()]
    assert BUDGET.cost(spent) == BUDGET.converted(spent) == BUDGET.spent_fraction(spent) == math.inf
    assert BUDGET.rounds_left(spent, [ROUND]) == 0
    with pytest.raises(BudgetExceededError, match="without noise") as caught:
        BUDGET.require(spent, [ROUND])
    assert caught.value.remaining == 0
    with pytest.raises(BudgetExceededError, match="more than all"):
        BUDGET.require([], [NonPrivate()])


def test_nothing_more_costs_nothing() -> None:
    # The bytes of an earlier attempt, sent again.
    histories: list[list[Event]] = [[], [ROUND] * 10, [ROUND] * 11, [NonPrivate()]]
    for spent in histories:
        BUDGET.require(spent, [])
        assert BUDGET.rounds_left(spent, []) is None
    assert BUDGET.cost([]) == BUDGET.converted([]) == BUDGET.spent_fraction([]) == 0


@pytest.mark.parametrize("cost", [math.nan, math.inf])
def test_a_cost_that_is_no_number_is_refused(cost: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "rdp_at", lambda events, *, order: cost if tuple(events) else 0.0)
    with pytest.raises(BudgetExceededError):
        BUDGET.require([], [ROUND])
    assert BUDGET.rounds_left([], [ROUND]) == 0


def test_a_refusal_says_what_was_asked_what_is_left_and_what_to_do() -> None:
    with pytest.raises(BudgetExceededError) as caught:
        BUDGET.require([ROUND] * 10, [ROUND])
    error = caught.value
    assert isinstance(error, RefusedError)  # What a site says of it on the wire is what it says of any policy.
    assert error.requested == BUDGET.cost([ROUND])
    assert error.allowed == BUDGET.limit
    assert error.remaining == pytest.approx(BUDGET.limit - 10 * BUDGET.cost([ROUND]))
    assert 0 < error.remaining < error.requested < error.allowed
    assert error.message == (
        "this training needs 9.52 % of the data set's privacy budget (epsilon = 3, delta = 1e-05), and 4.82 % is left: "
        "everything together would come to epsilon 3.08391"
    )
    assert "[policy] epsilon" in error.hint


@given(st.one_of(st.floats(max_value=0), st.just(math.nan), st.just(math.inf)))
def test_an_epsilon_is_positive_and_finite(epsilon: float) -> None:
    with pytest.raises(SettingsError, match="epsilon"):
        BudgetFilter(epsilon=epsilon, delta=1e-5)


@pytest.mark.parametrize("delta", [0.0, -1.0, 1.0, 2.0, 1e-11, math.nan, math.inf])
def test_a_delta_is_one_that_can_be_computed_with(delta: float) -> None:
    with pytest.raises(SettingsError, match="delta") as caught:
        BudgetFilter(epsilon=1.0, delta=delta)
    assert "1e-10" in caught.value.hint


@pytest.mark.parametrize(("epsilon", "order"), [(0.003, 0), (1.0, 3), (1.0, 1), (1.0, -4), (1.0, 2000)])
def test_a_budget_that_no_order_can_keep_is_none(epsilon: float, order: int) -> None:
    with pytest.raises(SettingsError, match="leaves nothing to spend") as caught:
        BudgetFilter(epsilon=epsilon, delta=1e-5, order=order)
    assert caught.value.hint
