"""What goes with a study to a coordinator: the model that it starts from, made where the task's code is."""

from __future__ import annotations

from secure_fl import tasks
from secure_fl.errors import InitialModelError
from secure_fl.study.settings import BRING, Study
from secure_fl.study.start import Start, start_of


def start_of_study(study: Study) -> Start:
    """Make the study's first model with the task that is installed here.

    Raises `InitialModelError` where that is another than the study names, and as `tasks.create` does.
    """
    if study.study.start == "given":
        raise InitialModelError("the study goes on from a model that did not come with it", advice=BRING)
    task = tasks.create(study.task.name, study.task.settings)
    start = start_of(task, study.make_strategy(), study.study.seed)
    if study.study.initial and start.layout.digest(start.blocks).hex() != study.study.initial:
        raise InitialModelError("study.initial is not the digest of the model that the study's seed makes here")
    return start
