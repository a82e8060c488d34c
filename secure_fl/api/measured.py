"""The record of a deployed study, as whoever has the task's code can read it."""

from __future__ import annotations

from secure_fl import tasks
from secure_fl.errors import SecureFLError
from secure_fl.results.own_metrics import with_values
from secure_fl.results.record import StudyRecord
from secure_fl.study.settings import Study


def with_own_metrics(record: StudyRecord) -> StudyRecord:
    """The record with the metrics whose formula is in the task's code, if that is installed here under the task's id.

    A `module:attribute` is not imported: it is the coordinator that says which. A study that cannot be read here keeps
    its gaps.
    """
    if not any(entry.sums for entry in record.rounds):
        return record
    try:
        study = Study.from_canonical(record.settings.encode())
        if not tasks.is_installed_id(study.task.name):
            return record
        return with_values(record, study.metrics.own_formulas(tasks.create(study.task.name, study.task.settings)))
    except SecureFLError:
        return record
