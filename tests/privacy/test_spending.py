"""What counts as used: every plan that nobody took back, exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secure_fl.errors import LedgerError
from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import Credential
from secure_fl.privacy.events import NoisySteps
from secure_fl.privacy.ledger import read_ledger
from secure_fl.privacy.spending import Plan, plans, spent
from tests.support.ledgers import HEART, LUNG, Story, noisy


@pytest.fixture
def story(tmp_path: Path, consortium: Authority, north: Credential) -> Story:
    return Story(tmp_path / "ledger.jsonl", consortium, north)


def told(story: Story) -> tuple[Plan, ...]:
    return plans(read_ledger(story.path))


def steps(story: Story, dataset: str = "ward-7") -> int:
    events = spent(read_ledger(story.path), dataset)
    return sum(event.steps for event in events if isinstance(event, NoisySteps))


def test_sent_and_open_plans_count_and_cancelled_ones_do_not(story: Story) -> None:
    story.rounds(HEART, (1, 2), privacy=noisy(steps=10))
    story.cancel(story.plan(HEART, 3, privacy=noisy(steps=100)))
    story.plan(HEART, 4, privacy=noisy(steps=1000))  # The node stopped here.
    assert [plan.state for plan in told(story)] == ["sent", "sent", "cancelled", "open"]
    assert steps(story) == 1020
    assert spent(read_ledger(story.path), "ward-7") == (NoisySteps(sampling=1 / 9, noise=3.08, steps=1020),)


def test_data_sets_are_counted_apart_and_studies_together(story: Story) -> None:
    story.rounds(HEART, (1,), privacy=noisy(steps=10))
    story.rounds(LUNG, (1,), privacy=noisy(steps=7))
    story.rounds(LUNG, (2,), privacy=noisy(steps=5), dataset="clinic")
    assert (steps(story), steps(story, "clinic"), steps(story, "elsewhere")) == (17, 5, 0)


def test_an_attempt_that_was_planned_again_after_a_crash_counts_twice(story: Story) -> None:
    story.plan(HEART, 1, privacy=noisy(steps=10))
    again = story.plan(HEART, 1, privacy=noisy(steps=10))
    assert steps(story) == 20
    story.cancel(again)  # Nothing came of the second; of the first nobody knows.
    assert [plan.state for plan in told(story)] == ["open", "cancelled"]
    assert steps(story) == 10


def test_sending_the_same_again_costs_nothing(story: Story) -> None:
    story.rounds(HEART, (1,), privacy=noisy(steps=10))
    story.send(story.plan(HEART, 1, attempt=2, privacy=noisy(steps=10), repeats=True))
    first, second = told(story)
    assert (first.repeats, second.repeats) == (None, first.entry.sequence)
    assert steps(story) == 10


def test_sending_again_what_had_no_noise_is_a_release_without(story: Story) -> None:
    story.plan(HEART, 1)
    story.send(story.plan(HEART, 1, attempt=2, privacy=noisy(), repeats=True))
    assert told(story)[1].unbounded == "a release without differential privacy"


def bad(story: Story) -> str:
    with pytest.raises(LedgerError) as caught:
        told(story)
    return caught.value.message


def test_nothing_is_repeated_that_was_not_computed(story: Story) -> None:
    story.send(story.plan(HEART, 1, privacy=noisy(), repeats=True))
    assert bad(story) == "entry 1 (planned) repeats what no earlier attempt that counts has computed"


def test_nothing_is_repeated_that_was_taken_back(story: Story) -> None:
    story.cancel(story.plan(HEART, 1, privacy=noisy()))
    story.plan(HEART, 1, attempt=2, privacy=noisy(), repeats=True)
    assert bad(story).startswith("entry 3 (planned) repeats")


def test_nothing_is_taken_back_that_was_sent_again(story: Story) -> None:
    first = story.plan(HEART, 1, privacy=noisy())
    story.send(story.plan(HEART, 1, attempt=2, privacy=noisy(), repeats=True))
    assert steps(story) == 36
    story.cancel(first)
    assert bad(story) == "entry 4 (cancelled) takes back what a later attempt has sent again"


def test_what_is_sent_was_planned(story: Story) -> None:
    facts = story.plan(HEART, 1)
    story.send({**facts, "attempt": 2})
    assert bad(story) == "entry 2 (sent) closes what was never planned"


@pytest.mark.parametrize("first", ["send", "cancel"])
@pytest.mark.parametrize("second", ["send", "cancel"])
def test_a_plan_is_closed_once(story: Story, first: str, second: str) -> None:
    facts = story.plan(HEART, 1)
    getattr(story, first)(facts)
    getattr(story, second)(facts)
    assert "entry 3" in bad(story)


@pytest.mark.parametrize(
    "change", [{"dataset": "clinic"}, {"privacy": noisy(steps=1)}, {"privacy": None}, {"repeats": True}], ids=str
)
def test_a_plan_is_closed_in_the_terms_in_which_it_was_made(story: Story, change: dict[str, Any]) -> None:
    story.send({**story.plan(HEART, 1, privacy=noisy()), **change})
    assert bad(story) == "entry 2 (sent) closes a plan in other terms than it was made in"


@pytest.mark.parametrize(
    "privacy",
    [
        noisy(relation="replace-one"),
        noisy(delta=0.0),
        noisy(delta=2.0),
        noisy(events=[{"sampling": 0.1, "noise": 0.0, "steps": 5}]),
        noisy(events=[{"sampling": 0.1, "noise": 1.0, "steps": -5}]),
        noisy(events=None),
        {"mode": "dp-sgd"},
    ],
)
def test_a_cost_that_cannot_be_is_not_counted_as_nothing(story: Story, privacy: dict[str, Any]) -> None:
    story.plan(HEART, 1, privacy=privacy)
    assert bad(story).startswith("entry 1 (planned)")


def test_facts_of_the_first_version_are_releases_without_noise(story: Story) -> None:
    facts = {"study": HEART, "round": 1, "attempt": 1, "dataset": "ward-7", "epsilon": None, "delta": None}
    story.ledger.append("planned", facts)
    story.ledger.append("sent", {**facts, "release": {"bytes": 7}})
    (plan,) = told(story)
    assert (plan.repeats, plan.privacy, plan.unbounded) == (None, None, "a release without differential privacy")


def test_noise_from_a_known_seed_bounds_nothing(story: Story) -> None:
    story.rounds(HEART, (1,), privacy=noisy(randomness="seeded"))
    story.rounds(HEART, (2,), privacy=noisy(preprocessing="data-dependent"))
    assert (told(story)[0].seeded, told(story)[1].seeded) == (True, False)
    assert ["seed" in told(story)[0].unbounded, "preprocessing" in told(story)[1].unbounded] == [True, True]


@pytest.mark.parametrize("size", ["7", -1, 1.5, None])
def test_what_left_has_a_size(story: Story, size: object) -> None:
    story.send(story.plan(HEART, 1), size=size)  # type: ignore[arg-type]
    assert bad(story) == "entry 2 (sent) does not say how much left"


@pytest.mark.parametrize("limit", [{"policy": {"epsilon": "3"}}, {"order": True}, {"policy": [3]}])
def test_a_limit_is_made_of_numbers(story: Story, limit: dict[str, Any]) -> None:
    story.plan(HEART, 1, privacy=noisy(**limit))
    assert bad(story).startswith("entry 1 (planned)")


# --- work that enters a later round -----------------------------------------------------------------------------------


def test_what_an_earlier_round_computed_is_counted_there_and_sent_once(story: Story) -> None:
    story.plan(HEART, 2, privacy=noisy(steps=10))  # trained, while round 2 went on without this site
    story.send(story.plan(HEART, 5, privacy=noisy(steps=10), repeats=True, trained=2))
    story.send(story.plan(HEART, 5, attempt=2, privacy=noisy(steps=10), repeats=True, trained=2))
    assert steps(story) == 10
    first, *later = told(story)
    assert [plan.repeats for plan in later] == [first.entry.sequence] * 2
    story.send(story.plan(HEART, 6, privacy=noisy(steps=10), repeats=True, trained=2))
    assert bad(story).endswith("(sent) sends what was sent in another round before")


@pytest.mark.parametrize("trained", [3, 6, 0, True, "2"], ids=str)
def test_what_computed_it_is_an_earlier_round_that_counts(story: Story, trained: Any) -> None:
    story.plan(HEART, 2, privacy=noisy(steps=10))
    story.plan(HEART, 5, privacy=noisy(steps=10), repeats=True, trained=trained)
    assert "repeats" in bad(story)


def test_work_is_sent_as_it_was_planned(story: Story) -> None:
    story.plan(HEART, 2, privacy=noisy(steps=10))
    planned = story.plan(HEART, 5, privacy=noisy(steps=10), repeats=True, trained=2)
    story.send({**planned, "trained": 1})
    assert "in other terms" in bad(story)
