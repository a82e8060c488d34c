"""The names of exceptions that a site's file may list."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_fl import strategies
from secure_fl.errors import UnknownNameError
from secure_fl.protect.encrypted.protection import HONEST_COORDINATOR
from secure_fl.protect.past import CHANGING_COHORTS
from secure_fl.protect.release.comparisons import MORE
from secure_fl.protect.sealed.protection import UNVERIFIED
from secure_fl.strategies.fedavg import FedAvg
from secure_fl.study.exceptions import KNOWN, require_exception
from secure_fl.study.settings import PLAIN_METRICS

DOCS = Path(__file__).parents[2] / "docs"


def test_every_exception_that_a_study_can_need_is_known_and_in_the_manual() -> None:
    (hidden,) = strategies.create("fedasa", {"membership": "hidden"}).exceptions
    assert set(KNOWN) == {CHANGING_COHORTS, HONEST_COORDINATOR, MORE, UNVERIFIED, PLAIN_METRICS, hidden}
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    assert [name for name in KNOWN if f'`"{name}"`' not in page] == []


def test_a_strategy_from_elsewhere_may_bring_exceptions_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError):
        require_exception("weather-reports")
    monkeypatch.setattr(strategies, "_HERE", {"theirs": FedAvg})
    require_exception("weather-reports")
    with pytest.raises(UnknownNameError, match="did you mean 'changing-cohorts'"):
        require_exception("changing-cohort")
