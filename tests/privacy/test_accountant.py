"""Without a mechanism there is no ε: the ledger says that nothing bounds it, never that it is zero."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import Credential
from secure_fl.privacy.accountant import Accountant, Reservation, SiteAccountant
from secure_fl.privacy.ledger import Entry, Ledger, read_ledger

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
