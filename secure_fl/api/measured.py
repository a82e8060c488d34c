"""The record of a deployed study, as whoever has the task's code can read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secure_fl import tasks
from secure_fl.errors import SecureFLError
from secure_fl.results.own_metrics import with_values
from secure_fl.results.record import StudyRecord
from secure_fl.study.settings import Study

if TYPE_CHECKING:
    from secure_fl.tasks.base import Task


def with_own_metrics(record: StudyRecord, code: type[Task] | None = None) -> StudyRecord:
    """The record with the metrics whose formula is in the task's code, if that is installed here under the task's id.

    A `module:attribute` is not imported: it is the coordinator that says which. `code` is a task that somebody here
    named instead. A study that cannot be read here keeps its gaps.
    """
    if not any(entry.sums for entry in record.rounds):
        return record
    try:
        study = Study.from_canonical(record.settings.encode())
        task = task_of(study, code)
        return record if task is None else with_values(record, study.metrics.own_formulas(task))
    except SecureFLError:
        return record


def task_of(study: Study, code: type[Task] | None) -> Task | None:
    """The task of a study that a coordinator sent: `code` where somebody here named it, else an installed id's.

    None for any other: no study makes this machine import a module of its choosing.
    """
    if code is not None:
        return code(code.Settings.parse(study.task.settings, where="task"))
    return tasks.create(study.task.name, study.task.settings) if tasks.is_installed_id(study.task.name) else None
