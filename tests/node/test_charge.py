"""What an attempt sets aside, when it may give it back, and what the ledger says of a refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from node.charge import Charge
from node.config import NodeFile
from node.privacy import SitePrivacy, plan_here
from secure_fl.errors import BudgetExceededError, TrainingError
from secure_fl.privacy.accountant import SiteAccountant
from secure_fl.privacy.audit import examine
from secure_fl.privacy.events import NoisySteps
from secure_fl.privacy.filter import BudgetFilter
from secure_fl.privacy.ledger import Entry, Ledger, read_site_ledger
from secure_fl.privacy.spending import plans, spent
from secure_fl.simulation.workspace import Workspace, prepare
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.settings import Study
from tests.support.budgets import DELTA, PRIVACY, enough_for

FOUND = {"code": "cd" * 32, "preprocessing": "public", "split": "by unit", "fingerprint": "ab" * 32}
RELEASE = {"bytes": 7, "protection": "masked"}


class Site:
    """One site with a ledger, under a limit for so many rounds."""

    def __init__(self, folder: Path, *, rounds: int) -> None:
        study = Study.parse({"study": {"rounds": 3}, "privacy": PRIVACY, "simulation": {"nodes": 3}})
        self.made: Workspace = prepare(folder / "run", study, policy={})
        self.made.point_nodes_at(1)
        self.file = NodeFile.read(self.made.node_file("site-01"))
        self.privacy = SitePrivacy(self.file, ResolvedStudy.of(self.made.study))
        plan = plan_here(self.file, self.made.study)
        assert plan is not None
        self.each = plan.cost_per_round
        self.limit: BudgetFilter = enough_for(plan, rounds)
        self.restart()

    @property
    def path(self) -> Path:
        return self.file.state_folder / "ledger.jsonl"

    @property
    def entries(self) -> tuple[Entry, ...]:
        return read_site_ledger(self.path, authority=self.file.ca_pem(), site="site-01")

    def restart(self) -> None:
        credential = self.file.credential()
        ledger = Ledger(
            self.path, certificate=credential.certificate, key=credential.signing_key, authority=self.file.ca_pem()
        )
        self.accountant = SiteAccountant(ledger, self.entries, limit=self.limit, simulated=True)

    def charge(self, number: int, attempt: int = 1, *, trains: bool = True) -> Charge:
        return Charge(self.accountant, self.privacy, number=number, attempt=attempt, trains=trains)

    def train(self, number: int, attempt: int = 1) -> Charge:
        charge = self.charge(number, attempt)
        charge.reserve(FOUND, repeats=False)
        charge.computing()
        return charge

    @property
    def used(self) -> int:
        """Trainings that count; the same from the ledger alone, and to an auditor without fault."""
        events = spent(self.entries, "digits")
        assert self.accountant.spent("digits") == events
        assert examine(self.entries).ok
        return sum(event.steps for event in events if isinstance(event, NoisySteps)) // self.each[0].steps


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, rounds=2)


def test_what_was_never_computed_is_given_back(site: Site) -> None:
    charge = site.charge(1)
    charge.reserve(FOUND, repeats=False)
    assert site.used == 1
    charge.give_back(TrainingError("no"))
    assert site.used == 0
    assert [entry.kind for entry in site.entries] == ["opened", "planned", "cancelled"]
    site.train(1, 2)
    site.train(2)
    assert site.used == 2


@pytest.mark.parametrize("error", [TrainingError("after a while"), KeyboardInterrupt()])
def test_what_was_computed_stays_counted_whatever_became_of_it(site: Site, error: BaseException) -> None:
    site.train(1).give_back(error)
    assert site.used == 1
    site.restart()
    assert site.used == 1


def test_what_was_sent_is_not_given_back(site: Site) -> None:
    charge = site.train(1)
    charge.spend(RELEASE)
    charge.spend(RELEASE)
    charge.give_back(TrainingError("too late"))
    assert [entry.kind for entry in site.entries] == ["opened", "planned", "sent"]
    assert site.used == 1


def test_the_round_after_the_last_that_fits_is_refused_before_anything_is_computed(site: Site) -> None:
    site.train(1).spend(RELEASE)
    site.train(2).spend(RELEASE)
    again: list[Callable[[], None]] = [lambda: None, site.restart]
    for attempt, between in enumerate(again, 1):
        between()
        charge = site.charge(3, attempt)
        with pytest.raises(BudgetExceededError, match="is left"):
            charge.reserve(FOUND, repeats=False)
        charge.spend(RELEASE)  # Nothing was reserved, and nothing is sent.
        charge.give_back(TrainingError("no"))
    # Once, however often the round is attempted, and over a restart.
    told = [entry.facts for entry in site.entries if entry.kind == "refused"]
    assert told == [{"study": site.made.study.id, "round": 3, "reason": "BudgetExceeded"}]
    assert site.used == 2
    assert len(plans(site.entries)) == 2


def test_with_nothing_left_the_same_integers_and_the_last_measurement_still_go(site: Site) -> None:
    site.train(1).spend(RELEASE)
    site.train(2)
    again = site.charge(2, 2)
    again.reserve({}, repeats=True)
    again.spend(RELEASE)
    closing = site.charge(4, trains=False)
    closing.reserve(FOUND, repeats=False)
    closing.spend(RELEASE)
    assert site.used == 2
    facts = [entry.facts for entry in site.entries if entry.kind == "sent"]
    assert [(fact["round"], fact["repeats"]) for fact in facts] == [(1, False), (2, True), (4, False)]
    assert facts[1]["privacy"] is None
    assert facts[2]["privacy"]["events"] == []


def test_the_ledger_has_all_that_recomputes_the_cost(site: Site) -> None:
    site.train(1)
    (plan,) = plans(site.entries)
    privacy = plan.privacy
    assert privacy is not None
    assert plan.events == site.each
    assert privacy["delta"] == DELTA
    assert privacy["randomness"] == "seeded"  # It is a simulation, and nobody is protected.
    assert {name: privacy[name] for name in FOUND} == FOUND
    assert set(privacy["libraries"]) == {"dp-accounting", "opacus", "secure-fl", "torch"}
    assert "unknown" not in privacy["libraries"].values()
    assert any("measurements" in line for line in privacy["not_covered"])
