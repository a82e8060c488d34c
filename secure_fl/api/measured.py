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


def with_own_metrics(record: StudyRecord, study: Study | None) -> StudyRecord:
    """The record with the metrics whose formula is in the task's code, if that is installed here under the task's id.

    A `module:attribute` is not imported: it is the coordinator that says which.
    """
    if study is None or not study.metrics.need_code or not tasks.is_installed_id(study.task.name):
        return record
    return with_values(record, study.metrics.own_formulas(tasks.create(study.task.name, study.task.settings)))


def reached(record: bytes) -> tuple[str, ...]:
    """What the last round of a study measured, from the record that the coordinator sent.

    A round measures the model that it begins from. Nothing is said of a record that cannot be read here, such as that
    of a newer version: whoever asks how far a study is wants to hear that much.
    """
    try:
        found = StudyRecord.from_json(json.loads(record))
        if any(entry.sums for entry in found.rounds):
            found = with_own_metrics(found, Study.from_canonical(found.settings.encode()))
        return sentences(summarise(found, engine=DEPLOYED, seconds=0.0, report=""))
    except (SecureFLError, KeyError, TypeError, ValueError):
        return ()
