"""What a deployed study has reached so far, in words."""

from __future__ import annotations

import json

from secure_fl import tasks
from secure_fl.errors import SecureFLError
from secure_fl.results.own_metrics import with_values
from secure_fl.results.record import StudyRecord
from secure_fl.results.summary import DEPLOYED, summarise
from secure_fl.results.wording import sentences
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


def reached(record: bytes) -> tuple[str, ...]:
    """What the last round of a study measured, from the record that the coordinator sent; nothing before there is one.

    A round measures the model that it begins from.
    """
    if not record:
        return ()
    found = with_own_metrics(StudyRecord.from_json(json.loads(record)))
    return sentences(summarise(found, engine=DEPLOYED, seconds=0.0, report=""))
