"""Where the model that a study starts from comes from, and where it is kept.

Whoever submits a study sends its first model along, so that nothing of the study's task is needed here. Studies of the
coordinator's own file come without one: for those alone the task is imported and makes it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from coordinator.bulk_files import BulkFiles
from secure_fl import tasks
from secure_fl.errors import (
    InitialModelError,
    ModelTooLargeError,
    StorageError,
    TaskNotAllowedError,
    TaskUnavailableError,
)
from secure_fl.files import write_atomically
from secure_fl.study.first_model import FirstModel
from secure_fl.study.settings import Study

_SUBMIT = "submit the study instead (`secure-fl study submit`): it then brings its model, and no task is needed here"


def load(files: BulkFiles) -> FirstModel | None:
    """What is known of a study's first model; None where nothing is. Raises `StorageError`."""
    try:
        return FirstModel.from_json(files.first.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{files.first}: cannot be read ({type(error).__name__})") from error


def keep(files: BulkFiles, first: FirstModel, content: Path) -> None:
    """Keep a model that was received whole, and what is known of it. Raises `InitialModelError` for one with NaN."""
    values = np.memmap(content, np.float32, mode="r") if first.size else np.zeros(0, np.float32)
    if not np.isfinite(values).all():
        raise InitialModelError(
            "the study's first model has values that are NaN or infinite", advice="correct the task's `model`"
        )
    files.adopt(content, first.sha256)
    write_atomically(files.first, first.to_json())


def make_here(files: BulkFiles, study: Study, listed: Collection[str]) -> FirstModel:
    """Import the study's task and let it make the model. Raises `SettingsError`, and imports nothing it may not."""
    require_allowed(study, listed)
    from secure_fl.study.submission import start_of_study  # torch, which a coordinator needs for nothing else

    start = start_of_study(study)
    first = start.first_model()
    files.put_pieces(first.sha256, start.layout.pieces(start.blocks))
    write_atomically(files.first, first.to_json())
    return first


def require_fit(study: Study, first: FirstModel, *, model_bytes: int) -> None:
    """Raise `SettingsError` unless a coordinator with room for so much can run the study, starting from `first`."""
    study.check_parts()
    first.require(initial=study.study.initial, shipped=study.make_strategy().shipped)
    if first.size > model_bytes:
        raise ModelTooLargeError(
            f"the study's model has {first.size} bytes, more than the {model_bytes} allowed here",
            advice="whoever runs the coordinator may raise [limits] model_bytes in the coordinator's file",
        )


def require_allowed(study: Study, listed: Collection[str]) -> None:
    """Raise unless the study's task is installed here or, as `module:attribute`, listed in the coordinator's file.

    Importing a module runs it, with the coordinator's rights.
    """
    name = study.task.name
    if name in listed or tasks.is_installed_id(name):
        return
    if ":" in name:
        raise TaskNotAllowedError(f"task {name!r} is not allowed by [coordinator] tasks")
    raise TaskUnavailableError(
        f"task {name!r} of study {study.study.name!r} is not installed at this coordinator", advice=_SUBMIT
    )
