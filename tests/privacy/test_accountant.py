"""Without a mechanism there is no ε: the ledger says that nothing bounds it, never that it is zero."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from secure_fl.errors import BudgetExceededError, RefusedError
from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import Credential
from secure_fl.privacy.accountant import Accountant, Reservation, SiteAccountant
from secure_fl.privacy.filter import BudgetFilter
from secure_fl.privacy.ledger import Entry, Ledger, read_ledger
from secure_fl.privacy.plan import PrivacyPlan

RESERVATION = Reservation(study_id="5a" * 32, round=3, attempt=2, dataset="ward-7")
FACTS = {"study": "5a" * 32, "round": 3, "attempt": 2, "dataset": "ward-7", "repeats": False, "privacy": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def accountant(path: Path, consortium: Authority, north: Credential) -> Accountant:
    ledger = Ledger(path, certificate=north.certificate, key=north.signing_key, authority=consortium.ca_pem)
    return SiteAccountant(ledger)


def last(path: Path) -> Entry:
    return list(read_ledger(path))[-1]


def test_a_reservation_is_recorded(accountant: Accountant, path: Path) -> None:
    accountant.reserve(RESERVATION)
    assert (last(path).kind, last(path).facts) == ("planned", FACTS)


def test_what_is_about_to_leave_is_recorded(accountant: Accountant, path: Path) -> None:
    accountant.commit(RESERVATION, release={"bytes": 7})
    assert (last(path).kind, last(path).facts) == ("sent", {**FACTS, "release": {"bytes": 7}})


def test_what_never_left_is_recorded(accountant: Accountant, path: Path) -> None:
    accountant.reserve(RESERVATION)
    accountant.release(RESERVATION, reason="Training")
    assert (last(path).kind, last(path).facts) == ("cancelled", {**FACTS, "reason": "Training"})


def test_epsilon_is_null_and_not_zero(accountant: Accountant, path: Path) -> None:
    accountant.reserve(RESERVATION)
    accountant.commit(RESERVATION, release={})
    accountant.release(RESERVATION, reason="")
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [line["facts"]["privacy"] for line in lines] == [None, None, None]


PLAN = PrivacyPlan(epsilon=3.0, delta=1e-5, rounds=3, epochs=2, batch_size=16, units=300, spare_attempts=1)
PRIVATE = {
    "unit": "record", "relation": "add-or-remove-one", "delta": PLAN.delta,
    "promise": {"epsilon": PLAN.epsilon, "delta": PLAN.delta}, "events": [e.facts() for e in PLAN.cost_per_round],
}  # fmt: skip


def test_a_study_costs_a_site_no_more_than_it_promises_also_without_a_limit_of_the_site(
    accountant: Accountant, path: Path
) -> None:
    """Three rounds and one spare training; the fifth training is refused, also after a restart."""
    for number in range(1, 5):
        accountant.reserve(replace(RESERVATION, round=number, privacy=PRIVATE))
    for books in (accountant, SiteAccountant(vars(accountant)["_ledger"], read_ledger(path))):
        with pytest.raises(BudgetExceededError, match="spare_attempts"):
            books.reserve(replace(RESERVATION, round=5, privacy=PRIVATE))
    accountant.reserve(replace(RESERVATION, round=5, repeats=True))  # The same integers again cost nothing.
    accountant.reserve(replace(RESERVATION, study_id="6b" * 32, privacy=PRIVATE))  # Another study is another promise.


def test_records_and_groups_do_not_share_a_budget(path: Path, consortium: Authority, north: Credential) -> None:
    ledger = Ledger(path, certificate=north.certificate, key=north.signing_key, authority=consortium.ca_pem)
    books = SiteAccountant(ledger, limit=BudgetFilter(epsilon=50.0, delta=1e-5))
    books.reserve(replace(RESERVATION, privacy=PRIVATE))
    with pytest.raises(RefusedError, match="do not add up"):
        books.reserve(replace(RESERVATION, round=4, privacy={**PRIVATE, "unit": "group"}))
