"""What does not hold of a ledger, beside what peers saw of it and what its studies say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from secure_fl.privacy.events import NoisySteps
from secure_fl.privacy.ledger import Entry
from secure_fl.privacy.spending import Plan
from secure_fl.privacy.witness import WitnessNote, missing_from, two_stories


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that does not hold, and the first entry where it shows."""

    entry: int
    what: str
    error: Literal["Ledger", "RewrittenLedger"] = "Ledger"  # the code of the error that names it


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTerms:
    """What a study's own text says, where whoever audits has it."""

    id: str
    name: str
    rationale: str = ""
    privacy: Mapping[str, Any] | None = None  # of its [privacy]; None where it says nothing
    # What a round costs a site that declares so many units, by the study's plan; None where nobody can say.
    cost: Callable[[int, int], Sequence[NoisySteps]] | None = None  # of units, and the round's number


def witnessed_faults(
    entries: Sequence[Entry], site: str, known: Sequence[Plan], notes: Sequence[WitnessNote]
) -> list[Fault]:
    """`notes` are those about this site: what others are caught at is no fault of its ledger.

    A cut, or a change of history, has one cause and shows in every note from there on: the cause comes first, and what
    follows from it as one more fault.
    """
    missing, unplanned = missing_from(entries, site, notes), list(_unplanned(entries, known, notes))
    found: list[tuple[int, str]] = missing[:1]
    if missing:
        first = missing[0][0]
        followed = [one for one in unplanned if one.length > first]
        unplanned = [one for one in unplanned if one.length <= first]
        found += [(first, what) for what in _consequences(more=len(missing) - 1, unplanned=len(followed))]
    found += [(one.entry, one.what) for one in unplanned]
    faults = [Fault(entry=entry, what=what, error="RewrittenLedger") for entry, what in found]
    for one, other in two_stories(notes):
        what = f"two stories: {one}; and {other}"
        faults.append(Fault(entry=min(one.head.length - 1, len(entries)), what=what, error="RewrittenLedger"))
    return faults


def _consequences(*, more: int, unplanned: int) -> Iterable[str]:
    """What a cut or a change of history leads to besides, in one line."""
    parts = []
    if more:
        parts.append(f"{_count(more, 'more note')} of other sites {'does' if more == 1 else 'do'} not fit")
    if unplanned:
        verb = "is" if unplanned == 1 else "are"
        parts.append(f"{_count(unplanned, 'attempt')} that the site took part in {verb} not planned in it")
    if parts:
        yield f"because of that, {', and '.join(parts)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unplanned:
    """An attempt that a note shows and no plan in the ledger does."""

    entry: int
    what: str
    length: int  # of the ledger, as the note has it


def _unplanned(entries: Sequence[Entry], known: Sequence[Plan], notes: Sequence[WitnessNote]) -> Iterable[_Unplanned]:
    """A site shows its ledger in attempts it takes part in, after it has planned them: so the plan is in there.

    What was computed then is never taken back, but for an attempt that would have sent the same again.
    """
    planned: dict[tuple[str, int, int], int] = {}
    for plan in known:
        if plan.counts or plan.repeats is not None:
            planned.setdefault((plan.study, plan.round, plan.attempt), plan.entry.sequence)
    for note in notes:
        key = (note.study, max(1, note.round), note.attempt)
        if key not in planned or planned[key] >= note.head.length:
            yield _Unplanned(
                entry=min(note.head.length, len(entries)) - 1,
                what=f"the site took part and had not planned it; {note}",
                length=note.head.length,
            )


_TERMS_OF_RECORDS = ("unit", "clip", "delta")  # A study's group_rows says nothing about records.
_TERMS = (*_TERMS_OF_RECORDS, "group_rows")


def other_terms(known: Sequence[Plan], studies: Sequence[StudyTerms]) -> list[Fault]:
    """Releases in other terms than their study's text has."""
    agreed = {study.id: study.privacy for study in studies if study.privacy is not None}
    costs = {study.id: study.cost for study in studies}
    faults = []
    for plan in known:
        terms = agreed.get(plan.study)
        if terms is None or not plan.counts or plan.repeats is not None:
            continue
        noisy = terms.get("mode", "none") != "none"
        if noisy and plan.privacy is None and plan.state == "sent":
            faults.append(Fault(entry=plan.entry.sequence, what="leaves without the noise that its study asks for"))
        elif plan.privacy is not None:
            counted = _TERMS if terms.get("unit") == "group" else _TERMS_OF_RECORDS
            other = [term for term in counted if terms.get(term, plan.privacy.get(term)) != plan.privacy.get(term)]
            if other:
                what = f"is under another {', '.join(other)} than its study says"
                faults.append(Fault(entry=plan.entry.sequence, what=what))
            elif _cheaper(plan, costs.get(plan.study)):
                what = "has other noise, samples or steps than its study's plan for so many units"
                faults.append(Fault(entry=plan.entry.sequence, what=what))
    return faults


def _cheaper(plan: Plan, cost: Callable[[int, int], Sequence[NoisySteps]] | None) -> bool:
    """Whether a use claims another cost than its study's plan has for the units that the site declares."""
    if cost is None or plan.privacy is None:
        return False
    return tuple(plan.events) != tuple(cost(int(plan.privacy["units"]), plan.round))
