"""Reserve before training, commit before anything leaves, release only what was never computed.

The round calls these three and nothing else. A reservation that is neither committed nor released (the node was
killed) counts as spent: the node cannot know whether its upload arrived.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from secure_fl.errors import BudgetExceededError, RefusedError
from secure_fl.privacy.decisions import refusal
from secure_fl.privacy.events import Event, NoisySteps, NonPrivate
from secure_fl.privacy.ledger import APPROVED, CANCELLED, PLANNED, REFUSED, SENT, Entry, Ledger
from secure_fl.privacy.spending import cost, plans, total

if TYPE_CHECKING:
    from secure_fl.privacy.filter import BudgetFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One training's claim on a data set's budget.

    `privacy` has everything from which the ledger's reader recomputes ε, its cost included; None where nothing bounds
    what is learnt about a record. What `repeats` sends integers that an earlier attempt computed: nothing new is, and
    it costs nothing.
    """

    study_id: str
    round: int
    attempt: int
    dataset: str
    repeats: bool = False
    privacy: Mapping[str, Any] | None = None
    trained: int | None = None  # of what `repeats`: the earlier round that computed it, where that is another one

    @property
    def events(self) -> tuple[Event, ...]:
        """What it costs."""
        if self.repeats:
            return ()
        if self.privacy is None:
            return (NonPrivate(),)
        return tuple(NoisySteps.from_facts(event) for event in self.privacy["events"])

    def facts(self) -> dict[str, Any]:
        """For the ledger."""
        return {
            "study": self.study_id,
            "round": self.round,
            "attempt": self.attempt,
            "dataset": self.dataset,
            "repeats": self.repeats,
            "privacy": None if self.privacy is None else dict(self.privacy),
            **({} if self.trained is None else {"trained": self.trained}),
        }


class Accountant(Protocol):
    """A site's privacy accounting, as the round sees it."""

    def reserve(self, reservation: Reservation) -> None:
        """Set budget aside. Raises `BudgetExceededError` when the site does not have it; nothing was computed yet."""
        ...

    def commit(self, reservation: Reservation, *, release: Mapping[str, Any]) -> None:
        """Charge it, durably, before the first byte leaves. `release` says what is about to."""
        ...

    def release(self, reservation: Reservation, *, reason: str) -> None:
        """Give it back: nothing was computed from the data, so nothing is kept of them and nothing can leave."""
        ...

    def approved(self, study_id: str, facts: Mapping[str, Any]) -> None:
        """Note, once, that this site agreed to a study and to the code that it runs."""
        ...

    def refused(self, study_id: str, number: int, reason: str) -> None:
        """Note, once, that this site would not take part in a round. `reason` is an error's code."""
        ...


class SiteAccountant:
    """One for all studies of a site: it counts by data set, from what the ledger says, and writes there first."""

    def __init__(
        self,
        ledger: Ledger,
        entries: Iterable[Entry] = (),
        *,
        limit: BudgetFilter | None = None,
        simulated: bool = False,
    ) -> None:
        """`entries` are those of `ledger`; `limit` is what the site allows for each data set, over everything."""
        self._ledger = ledger
        self._limit = limit
        self._lock = threading.Lock()  # Studies run side by side: each is judged with all that the others reserved.
        read = list(entries)
        self._approved = {_agreed(entry.facts) for entry in read if entry.kind == APPROVED}
        self._refused = [dict(entry.facts) for entry in read if entry.kind == REFUSED]
        self._uses: dict[str, list[tuple[str, tuple[Event, ...]]]] = {}  # by data set: the study, and what it cost
        self._units: dict[str, str] = {}  # by data set: whom noise has protected so far
        for plan in plans(read):
            # What an audit calls unbounded is so here. In a simulation all noise is seeded, and counts for planning.
            plain = bool(plan.unbounded) and not (simulated and plan.seeded)
            self._use(plan.dataset, plan.study, (NonPrivate(),) if plain else cost(plan))
            if plan.privacy is not None and plan.counts:
                self._units[plan.dataset] = str(plan.privacy["unit"])

    @property
    def limit(self) -> BudgetFilter | None:
        """What the site allows for each data set."""
        return self._limit

    def spent(self, dataset: str) -> tuple[Event, ...]:
        """What is spent of a data set, or set aside, over all studies."""
        with self._lock:
            return self._spent(dataset)

    def used(self, dataset: str) -> float:
        """How much of a data set's limit is spent or set aside: 1 is all of it; 0 where there is no limit."""
        return 0.0 if self._limit is None else self._limit.spent_fraction(self.spent(dataset))

    def reserve(self, reservation: Reservation) -> None:
        """Judge and note it in one step."""
        with self._lock:
            wanted = reservation.events
            self._require_promise(reservation)
            if self._limit is not None:
                self._require_unit(reservation)
                self._limit.require(self._spent(reservation.dataset), wanted)
            self._ledger.append(PLANNED, reservation.facts())
            self._use(reservation.dataset, reservation.study_id, wanted)
            if reservation.privacy is not None:
                self._units[reservation.dataset] = str(reservation.privacy["unit"])

    def _require_promise(self, reservation: Reservation) -> None:
        """A study costs a site no more than it promises, however many of its attempts have to be trained anew."""
        promise = (reservation.privacy or {}).get("promise")
        if promise is None or not reservation.events:
            return
        from secure_fl.privacy.filter import BudgetFilter

        limit = BudgetFilter(epsilon=promise["epsilon"], delta=promise["delta"])
        before = [
            event
            for study, events in self._uses.get(reservation.dataset, ())
            for event in events
            if study == reservation.study_id
        ]
        if not limit.allows(before, reservation.events):
            raise BudgetExceededError(
                f"this study promises epsilon {limit.epsilon:g}, which is used up here: more trainings were lost than "
                "privacy.spare_attempts allows for",
                requested=limit.cost(reservation.events),
                allowed=limit.limit,
                remaining=max(0.0, limit.limit - limit.cost(before)),
            )

    def _require_unit(self, reservation: Reservation) -> None:
        """What protects records and what protects groups of them do not add up to one ε."""
        if reservation.privacy is None:
            return
        unit = str(reservation.privacy["unit"])
        before = self._units.get(reservation.dataset, unit)
        if before != unit:
            raise RefusedError(
                f"noise has protected each {before} of data set {reservation.dataset!r} so far, this study protects "
                f"each {unit}: the two do not add up to one budget",
                advice=f'agree on privacy.unit = "{before}", or give the data another id and a budget of their own',
            )

    def commit(self, reservation: Reservation, *, release: Mapping[str, Any]) -> None:
        """What was reserved has been counted already."""
        self._ledger.append(SENT, {**reservation.facts(), "release": dict(release)})

    def release(self, reservation: Reservation, *, reason: str) -> None:
        """From now on it does not count."""
        with self._lock:
            self._ledger.append(CANCELLED, {**reservation.facts(), "reason": reason})
            if reservation.events:
                self._uses[reservation.dataset].remove((reservation.study_id, reservation.events))

    def approved(self, study_id: str, facts: Mapping[str, Any]) -> None:
        """Once for each study and what was agreed to; a changed code is another thing to agree to."""
        agreed = _agreed({**facts, "study": study_id})
        with self._lock:
            if agreed not in self._approved:
                self._ledger.append(APPROVED, facts)
                self._approved.add(agreed)

    def refused(self, study_id: str, number: int, reason: str) -> None:
        """However often a round is attempted: a coordinator must not be able to fill the site's disk."""
        facts = refusal(study_id=study_id, round=number, reason=reason)
        with self._lock:
            if facts not in self._refused:
                self._ledger.append(REFUSED, facts)
                self._refused.append(facts)

    def _use(self, dataset: str, study_id: str, events: tuple[Event, ...]) -> None:
        if events:
            self._uses.setdefault(dataset, []).append((study_id, events))

    def _spent(self, dataset: str) -> tuple[Event, ...]:
        return total(event for _, events in self._uses.get(dataset, ()) for event in events)


def _agreed(facts: Mapping[str, Any]) -> tuple[str, str | None]:
    """What an approval is of: a study, and the code that its task is here."""
    code = facts.get("code")
    return str(facts["study"]), None if code is None else str(code)
