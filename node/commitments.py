"""What other studies may still spend of a data set: approved here, and not finished.

A budget is charged round by round, so two studies that each fit may together be more than there is. The one that comes
too late stops early. Whoever approves should know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from node.config import NodeFile
from node.privacy import plan_here
from node.store import NodeStore, read_cursor
from secure_fl.errors import SecureFLError, StorageError
from secure_fl.files import private_folder, write_private
from secure_fl.privacy.events import Event
from secure_fl.privacy.ledger import Entry
from secure_fl.privacy.spending import plans
from secure_fl.study.settings import Study

_TERMS = "approved"  # a folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """One approved study, and what its remaining rounds would cost."""

    name: str
    rounds: int  # that are left
    events: tuple[Event, ...]


def keep_terms(store: NodeStore, study: Study) -> None:
    """What an approved study says, for the next approval: it may not have been offered yet. Raises `StorageError`."""
    private_folder(store.folder / _TERMS)
    write_private(store.folder / _TERMS / f"{study.id}.json", study.canonical())


def _terms(store: NodeStore, study_id: str) -> bytes | None:
    kept = store.folder / _TERMS / f"{study_id}.json"
    try:
        return kept.read_bytes() if kept.exists() else store.offered(study_id)
    except OSError as error:
        raise StorageError(f"{kept}: cannot be read ({error.strerror})") from error


def commitments(file: NodeFile, store: NodeStore, entries: Sequence[Entry], study: Study) -> tuple[Commitment, ...]:
    """The other approved studies on the data set of `study` that have rounds left.

    A study that its lead stopped looks here like one that goes on: it is named, and whoever approves knows better.
    """
    agreed = {*file.policy.approved, *(store.approvals() if file.policy.approve == "ask" else ())}
    found = (_commitment(file, store, entries, other, study) for other in sorted(agreed - {study.id}))
    return tuple(one for one in found if one is not None)


def _commitment(
    file: NodeFile, store: NodeStore, entries: Sequence[Entry], study_id: str, beside: Study
) -> Commitment | None:
    settings = _terms(store, study_id)
    if settings is None:
        return None  # approved by its hash alone, and not seen yet: nobody knows what it costs
    try:
        study = Study.from_canonical(settings)
        plan = plan_here(file, study)
    except SecureFLError:
        return None  # of another version, or it cannot be planned here: it will not run either
    if plan is None or study.task.dataset_id != beside.task.dataset_id:
        return None
    if read_cursor(store.folder / "studies" / study_id / "cursor.json")[0] > study.study.rounds:
        return None  # its closing round has come
    trained = {one.round for one in plans(entries) if one.study == study_id and one.counts}
    left = max(0, plan.rounds - len({number for number in trained if number <= study.study.rounds}))
    events = tuple(plan.cost_per_round * left)
    return Commitment(name=study.study.name, rounds=left, events=events) if events else None
