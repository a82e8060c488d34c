"""A study's first model is drawn from its seed, or the study says that somebody brings it: this site looks for itself.

Weights that somebody chose can make what a site sends say more than weights drawn at random. So `node approve` draws
the model once more, and so does every node before it trains: also for a study whose hash was approved before anybody
here had seen it.
"""

from __future__ import annotations

from secure_fl import tasks
from secure_fl.errors import RefusedError
from secure_fl.study.settings import Study


def require_own_start(study: Study) -> None:
    """Raise `RefusedError` where a study says that its first model comes from its seed, and it does not."""
    from secure_fl.study.start import outline_of  # torch

    if study.study.start != "seed":
        return
    task = tasks.create(study.task.name, study.task.settings)
    if outline_of(task, study.make_strategy(), study.study.seed).digest.hex() != study.study.initial:
        raise RefusedError(
            f"the first model of study {study.study.name!r} is not the one that its seed makes here",
            advice="another version of torch or of the task may be installed where the study was written: use the "
            'same. A study that brings a model of its own says so: start = "given" in [study]',
        )
