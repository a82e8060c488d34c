"""What a ledger's entries say was used of each data set: the one way in which enforcement and audits count it.

Every `planned` counts until a `cancelled` says that nothing came of it. One that has neither a `sent` nor a `cancelled`
counts as well: the node stopped in between and cannot know. A restart may plan the same attempt again; a `sent` or
`cancelled` then closes the later plan, and the earlier one goes on counting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from secure_fl.errors import LedgerError
from secure_fl.privacy.events import Event, NoisySteps, NonPrivate, merged
from secure_fl.privacy.ledger import CANCELLED, PLANNED, SENT, Entry

RELATION = "add-or-remove-one"
_Key = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One use of a data set, and what came of it."""

    entry: Entry
    study: str
    round: int
    attempt: int
    dataset: str
    repeats: int | None  # the entry that planned what is sent again: nothing new is computed, and nothing is charged
    privacy: Mapping[str, Any] | None  # of what is repeated, where this repeats
    events: tuple[NoisySteps, ...]  # what it cost; nothing where it repeats, or without differential privacy
    state: Literal["open", "sent", "cancelled"] = "open"
    closing: Entry | None = None

    @property
    def counts(self) -> bool:
        """Whether it is counted as used."""
        return self.state != "cancelled"

    @property
    def release(self) -> Mapping[str, Any]:
        """What left, as the site wrote it down; empty where nothing did."""
        return {} if self.closing is None else self.closing.facts.get("release") or {}

    @property
    def seeded(self) -> bool:
        """Whether its noise came from a seed, as in a simulation: others can know it."""
        return self.privacy is not None and self.privacy.get("randomness") == "seeded"

    @property
    def unbounded(self) -> str:
        """Why no ε bounds what this says about single records; empty where one does, or nothing left."""
        if not self.counts:
            return ""
        if self.privacy is None:
            return f"a {'release' if self.state == 'sent' else 'use'} without differential privacy"
        if self.seeded:
            return "noise from a seed that others can know"
        if self.privacy.get("randomness") != "system":
            return "noise whose origin is not said"
        if self.privacy.get("preprocessing") not in ("none", "public"):
            return "preprocessing that depends on the data, or of which nothing is said"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadEntry:
    """An entry that does not follow from those before it."""

    sequence: int
    what: str


def plans(entries: Iterable[Entry]) -> tuple[Plan, ...]:
    """Every `planned` in order, each with what closed it. Raises `LedgerError` that names the first bad entry."""
    found, bad = follow(entries)
    if bad is not None:
        raise LedgerError(f"entry {bad.sequence} {bad.what}")
    return found


def follow(entries: Iterable[Entry]) -> tuple[tuple[Plan, ...], BadEntry | None]:
    """The same as far as the entries make sense, and the first that does not."""
    found: list[Plan] = []
    latest: dict[_Key, int] = {}  # where in `found`
    for entry in entries:
        if entry.kind not in (PLANNED, SENT, CANCELLED):
            continue
        try:
            key = (str(entry.facts["study"]), int(entry.facts["round"]), int(entry.facts["attempt"]))
            if entry.kind == PLANNED:
                latest[key] = len(found)
                found.append(_planned(entry, key, found))
            else:
                place = latest.get(key)
                if place is None:
                    raise ValueError("closes what was never planned")
                found[place] = _closed(found[place], entry, found)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            return tuple(found), BadEntry(sequence=entry.sequence, what=f"({entry.kind}) {what}")
    return tuple(found), None


def cost(plan: Plan) -> tuple[Event, ...]:
    """What a use costs: nothing where it is taken back or repeats another, and without noise more than any budget."""
    if not plan.counts or plan.repeats is not None:
        return ()
    return (NonPrivate(),) if plan.privacy is None else plan.events


def total(costs: Iterable[Event]) -> tuple[Event, ...]:
    """The same cost, written shortest."""
    noisy: list[NoisySteps] = []
    plain: tuple[Event, ...] = ()
    for event in costs:
        if isinstance(event, NoisySteps):
            noisy.append(event)
        else:
            plain = (event,)
    return (*merged(noisy), *plain)


def spent(entries: Iterable[Entry], dataset: str) -> tuple[Event, ...]:
    """What is counted as used of a data set: what the budget of the next round adds to."""
    return total(event for plan in plans(entries) if plan.dataset == dataset for event in cost(plan))


def _planned(entry: Entry, key: _Key, before: Sequence[Plan]) -> Plan:
    facts = entry.facts
    dataset, privacy, repeats = facts["dataset"], facts.get("privacy"), facts.get("repeats", False)
    if not isinstance(dataset, str) or not isinstance(repeats, bool) or not isinstance(privacy, Mapping | None):
        raise ValueError("its facts are not those of a plan")
    events: tuple[NoisySteps, ...] = ()
    basis: Plan | None = None
    if repeats:
        basis = _repeated((key[0], _trained(facts, key[1]), key[2]), dataset, before)
        privacy = basis.privacy
    elif privacy is not None:
        events = _events(privacy)
    study, number, attempt = key
    return Plan(
        entry=entry,
        study=study,
        round=number,
        attempt=attempt,
        dataset=dataset,
        repeats=None if basis is None else basis.entry.sequence,
        privacy=privacy,
        events=events,
    )


def _trained(facts: Mapping[str, Any], number: int) -> int:
    """The round that computed what is sent: an earlier one where sites join at their own pace."""
    trained = facts.get("trained", number)
    if not isinstance(trained, int) or isinstance(trained, bool) or not 1 <= trained <= max(1, number):
        raise ValueError("does not say which round computed what it repeats")
    return trained


def _repeated(key: _Key, dataset: str, before: Sequence[Plan]) -> Plan:
    """The plan whose result is sent again: it must be one that counts."""
    for plan in reversed(before):
        if (plan.study, plan.round, plan.dataset) == (*key[:2], dataset) and plan.counts and plan.repeats is None:
            return plan
    raise ValueError("repeats what no earlier attempt that counts has computed")


def _basis(plan: Plan) -> int:
    """The entry that planned what is sent: its own, or the one that it repeats."""
    return plan.entry.sequence if plan.repeats is None else plan.repeats


def _events(privacy: Mapping[str, Any]) -> tuple[NoisySteps, ...]:
    if privacy["relation"] != RELATION:
        raise ValueError(f"neighbours are {privacy['relation']!r}, which this version cannot account for")
    if not 0 < float(privacy["delta"]) < 1:
        raise ValueError("its δ is no probability")
    policy = privacy.get("policy") or {}
    if not all(_is_number(one) for one in (policy.get("epsilon"), policy.get("delta"), privacy.get("order"))):
        raise ValueError("its limit is none")
    return tuple(NoisySteps.from_facts(event) for event in privacy["events"])


def _is_number(value: object) -> bool:
    """Or nothing at all."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))


def _closed(plan: Plan, entry: Entry, known: Sequence[Plan]) -> Plan:
    if plan.state != "open":
        raise ValueError(f"comes after {plan.state!r} of the same attempt")
    facts = entry.facts
    planned = plan.entry.facts
    if any(facts.get(name) != planned.get(name) for name in ("dataset", "repeats", "privacy", "trained")):
        raise ValueError("closes a plan in other terms than it was made in")
    if entry.kind == CANCELLED and any(one.repeats == plan.entry.sequence and one.counts for one in known):
        raise ValueError("takes back what a later attempt has sent again")
    if entry.kind == SENT:
        if any(_basis(one) == _basis(plan) and one.state == "sent" and one.round != plan.round for one in known):
            raise ValueError("sends what was sent in another round before")
        size = facts["release"].get("bytes", 0)
        if not isinstance(size, int) or size < 0:
            raise ValueError("does not say how much left")
    return replace(plan, state="sent" if entry.kind == SENT else "cancelled", closing=entry)
