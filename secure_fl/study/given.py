"""Studies that go on from a model somebody has: an exported one, or that of a run.

Such a study says so (`[study] start = "given"`) and names the digest of its first model as every study does. Whoever
submits or simulates it brings the model along. Blocks that a strategy keeps at the sites begin as the seed makes them:
they are part of no message.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from secure_fl import tasks
from secure_fl.errors import InitialModelError
from secure_fl.study.settings import Study
from secure_fl.study.start import Start, start_of


def start_from(study: Study, model: Path) -> Start:
    """The shared blocks of a study with the values in a file: a state dict, or a checkpoint.

    Raises `LayoutMismatchError` for a model of another task, `InitialModelError` for values that are not finite or not
    those that the study names, and `StorageError` where the file cannot be read.
    """
    from secure_fl.tasks.model_blocks import read_blocks
    from secure_fl.tasks.state_dict import read_model

    task = tasks.create(study.task.name, study.task.settings)
    made = start_of(task, study.make_strategy(), study.study.seed)
    values = read_blocks(task, read_model(model, task), only=made.layout.model.names)
    if not all(np.isfinite(vector).all() for vector in values.values()):
        raise InitialModelError(f"{model}: has values that are NaN or infinite", advice="start from another model")
    start = replace(made, blocks={**made.blocks, **values})
    if study.study.initial and start.layout.digest(start.blocks).hex() != study.study.initial:
        raise InitialModelError(
            f"{model}: is not the model that the study names",
            advice="use the file that `secure-fl study new --from` was given, or write the study anew",
        )
    return start


def continued(study: Study, model: Path) -> tuple[Study, Start]:
    """The study with this model as its first one, and the model."""
    begun = study.model_copy(update={"study": study.study.model_copy(update={"initial": "", "start": "given"})})
    start = start_from(begun, model)
    named = begun.study.model_copy(update={"initial": start.layout.digest(start.blocks).hex()})
    return begun.model_copy(update={"study": named}), start
