"""What a site's ledger counts as used, beside what was really computed there."""

from __future__ import annotations

from collections.abc import Sequence

from node.config import NodeFile
from node.privacy import plan_here
from node.training.jobs import Job, Result
from secure_fl.privacy.audit import Audit, examine
from secure_fl.privacy.events import NoisySteps
from secure_fl.privacy.filter import BudgetFilter
from secure_fl.privacy.ledger import Entry, read_site_ledger
from secure_fl.privacy.plan import PrivacyPlan
from secure_fl.privacy.spending import Plan, follow, spent
from secure_fl.rounds import RoundKind
from tests.support.federation import Federation
from tests.support.training import FakeTraining, Faults

DELTA = 1e-5
PRIVACY = {"mode": "dp-sgd", "epsilon": 3.0, "delta": DELTA}


class Counting(FakeTraining):
    """Notes every training that was begun, in whichever life of the node."""

    def __init__(self, trained: list[Job], faults: Faults | None = None) -> None:
        super().__init__(faults)
        self._trained = trained

    async def run(self, job: Job) -> Result:
        """Noted before it begins: from then on something may have been computed."""
        if job.kind is RoundKind.TRAIN:
            self._trained.append(job)
        return await super().run(job)


def entries_of(fed: Federation, name: str) -> tuple[Entry, ...]:
    """A site's ledger, verified."""
    authority = (fed.workspace.folder / "ca.pem").read_bytes()
    return read_site_ledger(fed.workspace.node_folder(name) / "ledger.jsonl", authority=authority, site=name)


def plans_of(fed: Federation, name: str) -> Sequence[Plan]:
    """What it planned; every entry follows from those before it."""
    found, bad = follow(entries_of(fed, name))
    assert bad is None, bad
    return found


def computed(trained: Sequence[Job], name: str) -> int:
    """Steps under noise that trainings of a site may have taken."""
    return sum(job.reserved_steps for job in trained if job.me == name)


def counted(fed: Federation, name: str) -> int:
    """Steps under noise that its ledger counts, over all studies on the data set."""
    events = spent(entries_of(fed, name), fed.study.task.dataset_id)
    return sum(event.steps for event in events if isinstance(event, NoisySteps))


def check_books(fed: Federation, name: str, trained: Sequence[Job]) -> Audit:
    """Whatever was computed is counted, the running node counts as its ledger does, and an auditor finds no fault."""
    entries, dataset = entries_of(fed, name), fed.study.task.dataset_id
    assert counted(fed, name) >= computed(trained, name)
    running = fed.nodes[name]._services.accountant
    assert vars(type(running))["spent"](running, dataset) == spent(entries, dataset)
    audit = examine(entries)
    assert audit.ok, audit.faults
    # A declaration is made of round 1's training and stands there as such: the round itself sends it again.
    sent = [(p.study, p.round, p.attempt, p.repeats) for p in plans_of(fed, name) if p.state == "sent"]
    assert len(sent) == len(set(sent))
    return audit


def plan_of(fed: Federation, name: str) -> PrivacyPlan:
    """What the study costs at a site."""
    plan = plan_here(NodeFile.read(fed.workspace.node_file(name)), fed.study)
    assert plan is not None
    return plan


def enough_for(plan: PrivacyPlan, rounds: int, *, delta: float = DELTA) -> BudgetFilter:
    """A limit that lets just so many rounds through, and not one more."""
    low, high = 1e-2, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _fits(plan, rounds, middle, delta) else (middle, high)
    found = BudgetFilter(epsilon=high, delta=delta)
    assert found.rounds_left((), plan.cost_per_round) == rounds
    return found


def _fits(plan: PrivacyPlan, rounds: int, epsilon: float, delta: float) -> bool:
    return BudgetFilter(epsilon=epsilon, delta=delta).allows((), plan.cost_per_round * rounds)
