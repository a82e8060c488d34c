"""Does a ledger hold, and what does it say left the site? Anybody can ask, with the ledger and the consortium's CA.

Nothing here reads a file or prints: `examine` takes entries that `read_site_ledger` has verified, and returns what it
found. What no audit of a ledger can show is that noise was really added: its sentence is "if the site ran the stated
code, ε ≤ …".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Protocol

from secure_fl.errors import SettingsError
from secure_fl.identity.certificates import Certificate
from secure_fl.identity.ledger_head import LedgerHead
from secure_fl.privacy.audit_faults import Fault, StudyTerms, other_terms, witnessed_faults
from secure_fl.privacy.events import NoisySteps
from secure_fl.privacy.ledger import APPROVED, OPENED, REFUSED, RENEWED, Entry
from secure_fl.privacy.spending import Plan, follow
from secure_fl.privacy.witness import WitnessNote

_MOST_POINTS = 24  # totals of a data set whose ε is computed; between them stands the next, which is not smaller


class Accounting(Protocol):
    """What is known about the cost of noisy steps."""

    def epsilon(self, events: Sequence[NoisySteps], *, delta: float) -> float:
        """The smallest ε that is known to hold at δ."""
        ...

    def allows(self, events: Sequence[NoisySteps], policy: Policy) -> bool:
        """Whether a site with this limit may go as far, by the rule that sites enforce."""
        ...

    def used(self, events: Sequence[NoisySteps], policy: Policy) -> float:
        """How much of a limit that takes, by the same rule: 1 is all of it."""
        ...


class LibraryAccounting:
    """By dp-accounting, which is loaded when it is first asked."""

    def epsilon(self, events: Sequence[NoisySteps], *, delta: float) -> float:
        """By privacy loss distributions."""
        from secure_fl.privacy.accounting import epsilon_pld

        return epsilon_pld(events, delta=delta) if events else 0.0

    def allows(self, events: Sequence[NoisySteps], policy: Policy) -> bool:
        """By the filter that refuses a round at the site."""
        from secure_fl.privacy.filter import BudgetFilter

        try:
            budget = BudgetFilter(epsilon=policy.epsilon, delta=policy.delta, order=policy.order)
        except SettingsError:
            return False  # What is no limit holds nothing.
        return budget.allows((), events)

    def used(self, events: Sequence[NoisySteps], policy: Policy) -> float:
        """By the same filter."""
        from secure_fl.privacy.filter import BudgetFilter

        try:
            return BudgetFilter(epsilon=policy.epsilon, delta=policy.delta, order=policy.order).spent_fraction(events)
        except SettingsError:
            return math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a site allows of one data set, over all studies."""

    epsilon: float
    delta: float
    order: int = 0  # of the divergence in which the site counts; 0: what follows from ε and δ


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One use of a data set that counts. `epsilon` is what all of them up to here come to; None: nothing bounds it."""

    plan: Plan
    epsilon: float | None
    exact: bool = True  # else it is the ε of a later use, which is not smaller

    @property
    def bytes(self) -> int:
        """How much left."""
        return int(self.plan.release.get("bytes", 0))

    @property
    def protection(self) -> str:
        """What hid it from the coordinator."""
        return str(self.plan.release.get("protection", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetAudit:
    """What left of one data set, over everything."""

    name: str
    uses: tuple[Use, ...]
    epsilon: float | None  # None: nothing bounds it
    unbounded: str  # why
    delta: float | None
    policy: Policy | None  # the last one
    exceeded: int | None  # the first entry that went further than the policy of its time
    events: tuple[NoisySteps, ...]
    privacy: Mapping[str, Any]  # the facts of the last use under noise; empty without any
    used: float | None = None  # of the limit, as the site counts: 1 is all of it; None without a limit or a bound
    planning: float | None = None  # in a simulation: the ε that secret noise of this size would have cost

    @property
    def bytes(self) -> int:
        """How much left."""
        return sum(use.bytes for use in self.uses)

    @property
    def sent(self) -> int:
        """How often something left."""
        return sum(use.plan.state == "sent" for use in self.uses)

    @property
    def sentence(self) -> str:
        """What the ledger proves about it."""
        if self.epsilon is None:
            said = f"Nothing limits how much the results can reveal about single records ({self.unbounded})."
            if self.planning is not None:
                said += f" With secret noise, the same would cost ε ≤ {self.planning:.4g}: for planning only."
            return said
        if not self.events:
            return "Nothing that was computed from it left the site."
        unit = "group of records" if self.privacy.get("unit") == "group" else "record"
        return f"If the site ran the stated code, ε ≤ {self.epsilon:.4g} at δ = {self.delta:.2g} for each {unit}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What a ledger says, and whether it holds."""

    site: str
    head: LedgerHead
    began: datetime
    ended: datetime
    certificates: tuple[Certificate, ...]
    datasets: tuple[DatasetAudit, ...]
    plans: tuple[Plan, ...]
    approvals: tuple[Entry, ...]
    refusals: tuple[Entry, ...]
    names: Mapping[str, str]  # of studies, by hash
    terms: tuple[StudyTerms, ...]
    witnessed: int  # heads of this site that others noted
    notes: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether everything holds."""
        return not self.faults

    @property
    def uses(self) -> tuple[Use, ...]:
        """Everything that counts, of all data sets, in order."""
        found = (use for dataset in self.datasets for use in dataset.uses)
        return tuple(sorted(found, key=lambda use: use.plan.entry.sequence))

    def study_name(self, study: str) -> str:
        """How people call a study; the beginning of its hash where nobody said."""
        return self.names.get(study, study[:12])


def examine(
    entries: Sequence[Entry],
    *,
    notes: Iterable[WitnessNote] = (),
    studies: Sequence[StudyTerms] = (),
    accounting: Accounting | None = None,
) -> Audit:
    """Everything that verified entries say, and everything about them that does not hold.

    1. Every plan is closed at most once, in the terms in which it was made; open ones count.
    2. The ledger has every line that its site once showed to others.
    3. No plan went beyond the limit that the site had at the time.
    4. What left was under the terms of its study, where that is at hand.
    """
    seen = list(notes)
    known, bad = follow(entries)
    certificates = [Certificate.from_pem(entry.facts["certificate"].encode()) for entry in entries if _owned(entry)]
    site = certificates[0].name
    datasets = tuple(_dataset(name, known, accounting or LibraryAccounting()) for name in _names(known))
    faults = [] if bad is None else [Fault(entry=bad.sequence, what=bad.what)]
    faults += witnessed_faults(entries, site, known, [note for note in seen if note.head.site == site])
    faults += [_excess(one, one.exceeded) for one in datasets if one.exceeded is not None]
    faults += other_terms(known, studies)
    approvals = tuple(entry for entry in entries if entry.kind == APPROVED)
    names = {str(entry.facts.get("study")): str(entry.facts.get("name", "")) for entry in approvals}
    return Audit(
        site=site,
        head=LedgerHead(site=site, length=len(entries), head=entries[-1].digest),
        began=entries[0].moment,
        ended=entries[-1].moment,
        certificates=tuple(certificates),
        datasets=datasets,
        plans=known,
        approvals=approvals,
        refusals=tuple(entry for entry in entries if entry.kind == REFUSED),
        names={key: name for key, name in names.items() if name} | {study.id: study.name for study in studies},
        terms=tuple(studies),
        witnessed=len({note.head for note in seen if note.head.site == site}),
        notes=tuple(_remarks(entries, certificates, known, studies)),
        faults=tuple(sorted(faults, key=lambda fault: fault.entry)),
    )


def _owned(entry: Entry) -> bool:
    return entry.kind in (OPENED, RENEWED)


def _names(known: Iterable[Plan]) -> list[str]:
    return sorted({plan.dataset for plan in known})


# --- one data set -----------------------------------------------------------------------------------------


def _dataset(name: str, known: Sequence[Plan], accounting: Accounting) -> DatasetAudit:
    mine = [plan for plan in known if plan.dataset == name]
    counted = [plan for plan in mine if plan.counts]
    noisy = [plan.privacy for plan in counted if plan.privacy is not None]
    policies = [policy for facts in noisy if (policy := _policy(facts)) is not None]
    policy = policies[-1] if policies else None
    # Without a limit of the site's own, the strictest δ that any study named.
    delta = policy.delta if policy else min((float(facts["delta"]) for facts in noisy), default=None)
    first, unbounded = _first_unbounded(counted)
    uses = _uses(counted, first, delta, accounting)
    if uses and uses[-1].epsilon is None and not unbounded:
        unbounded = "its cost is beyond what can be computed"
    events = _sorted(sum((_count(plan.events) for plan in counted), _Steps()))
    simulated = bool(noisy) and all(plan.privacy is not None and plan.seeded for plan in counted)
    return DatasetAudit(
        name=name,
        uses=uses,
        epsilon=uses[-1].epsilon if uses else 0.0,
        unbounded=unbounded,
        delta=delta,
        policy=policy,
        exceeded=_exceeded(mine, accounting),
        events=events,
        privacy=noisy[-1] if noisy else {},
        used=None if policy is None or unbounded else accounting.used(events, policy),
        planning=accounting.epsilon(events, delta=delta) if simulated and events and delta is not None else None,
    )


_Steps = Counter[tuple[float, float]]


def _count(events: Iterable[NoisySteps]) -> _Steps:
    steps = _Steps()
    for event in events:
        steps[event.sampling, event.noise] += event.steps
    return steps


def _sorted(steps: _Steps) -> tuple[NoisySteps, ...]:
    return tuple(NoisySteps(sampling=q, noise=sigma, steps=n) for (q, sigma), n in sorted(steps.items()) if n)


def _first_unbounded(counted: Sequence[Plan]) -> tuple[int, str]:
    """The place from which on no ε bounds the total, and why; beyond the end where one does."""
    units: set[str] = set()
    for place, plan in enumerate(counted):
        if plan.unbounded:
            return place, plan.unbounded
        if plan.privacy is not None:
            units.add(str(plan.privacy.get("unit")))
        # One record more in a group is another group: taking the old one out and putting the new one in costs more.
        if len(units) > 1:
            return (
                place,
                f"protected by {' in some studies and by '.join(sorted(units))} in others: no one ε adds them up",
            )
    return len(counted), ""


def _uses(counted: Sequence[Plan], first: int, delta: float | None, accounting: Accounting) -> tuple[Use, ...]:
    """Each with the ε of everything up to it, from `first` on without.

    Only so many are computed: ε never falls, so the next one bounds it.
    """
    totals: list[_Steps] = []
    steps = _Steps()
    for plan in counted:
        steps = steps + _count(plan.events)
        totals.append(steps)
    every = max(1, -(-first // _MOST_POINTS))
    last = {plan.study: place for place, plan in enumerate(counted)}  # of each study: what it came to is exact
    uses: list[Use] = []
    epsilon: float | None = None
    before: _Steps | None = None
    for place in range(len(counted) - 1, -1, -1):
        wanted = last[counted[place].study] == place or before is None or (first - 1 - place) % every == 0
        if place < first and totals[place] != before and wanted:
            before = totals[place]
            value = accounting.epsilon(_sorted(before), delta=delta) if before and delta is not None else 0.0
            epsilon = value if value < math.inf else None
        bounded = place < first
        exact = not bounded or totals[place] == before
        uses.append(Use(plan=counted[place], epsilon=epsilon if bounded else None, exact=exact))
    return tuple(reversed(uses))


def _policy(facts: Mapping[str, Any]) -> Policy | None:
    limit = facts.get("policy") or {}
    if limit.get("epsilon") is None or limit.get("delta") is None:
        return None
    return Policy(epsilon=float(limit["epsilon"]), delta=float(limit["delta"]), order=int(facts.get("order") or 0))


def _exceeded(mine: Sequence[Plan], accounting: Accounting) -> int | None:
    """The first plan that, with all that counted at the time, was beyond the site's limit."""
    taken_back = {plan.closing.sequence: plan for plan in mine if plan.closing is not None and not plan.counts}
    planned = {plan.entry.sequence: plan for plan in mine}
    # After a release without noise there is no limit that anything could keep.
    without = (plan.closing.sequence for plan in mine if plan.privacy is None and plan.closing and plan.counts)
    bare = min(without, default=float("inf"))
    steps = _Steps()
    for sequence in sorted((*planned, *taken_back)):
        if sequence in taken_back:
            steps.subtract(_count(taken_back[sequence].events))
            continue
        plan = planned[sequence]
        steps.update(_count(plan.events))
        policy = None if plan.privacy is None or not plan.events else _policy(plan.privacy)
        if policy is not None and (sequence > bare or not accounting.allows(_sorted(steps), policy)):
            return sequence
    return None


def _excess(dataset: DatasetAudit, entry: int) -> Fault:
    return Fault(entry=entry, what=f"goes beyond the limit that the site had set for data set {dataset.name!r}")


# --- beyond the ledger --------------------------------------------------------------------------------------


def _same_content(known: Sequence[Plan]) -> Iterable[str]:
    marks: dict[str, set[str]] = {}
    for plan in known:
        if plan.privacy is not None and plan.privacy.get("fingerprint") not in (None, "unknown"):
            marks.setdefault(str(plan.privacy["fingerprint"]), set()).add(plan.dataset)
    for names in marks.values():
        if len(names) > 1:
            yield f"{' and '.join(map(repr, sorted(names)))} have the same content: their ε have to be added up"


def _remarks(
    entries: Sequence[Entry], certificates: Sequence[Certificate], known: Sequence[Plan], studies: Sequence[StudyTerms]
) -> Iterable[str]:
    """What whoever reads the result should know, and what does not make it wrong."""
    still_open = sum(plan.state == "open" for plan in known)
    if still_open:
        rounds = "planned round was" if still_open == 1 else "planned rounds were"
        yield f"{still_open} {rounds} never closed (the node stopped in between), and counts as used"
    late, places = 0, iter(certificates)
    current = certificates[0]
    for entry in entries:
        current = next(places) if _owned(entry) else current
        late += entry.moment > current.not_after
    if late:
        yield f"written after the site's certificate of the time had expired: {late} of {len(entries)} entries"
    if any(later.moment < earlier.moment for earlier, later in pairwise(entries)):
        yield "the clock was set back while version 1 wrote; times before that are only roughly right"
    for dataset in _names(known):
        facts = [plan.privacy for plan in known if plan.dataset == dataset and plan.privacy is not None]
        for key, words in _CHANGES.items():
            told = dict.fromkeys(str(one.get(key)) for one in facts)
            if len(told) > 1:
                yield f"data set {dataset!r}: {words}: {' → '.join(told)}"
    yield from _same_content(known)
    taken = {plan.study for plan in known}
    for study in studies:
        if study.id not in taken:
            yield f"study {study.name!r} ({study.id[:12]}) is not in this ledger"


_CHANGES = {
    "code": "the task's code changed, and was approved anew",
    "policy": "the site changed its limit",
    "order": "the limit was counted in another order",
    "fingerprint": "its content changed; what was used before still counts",
    "units": "the declared number of units changed",
}
