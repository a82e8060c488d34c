"""Exported models as torch modules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from secure_fl import tasks
from secure_fl.errors import SettingsError
from secure_fl.hints import shown_hints
from secure_fl.tasks import in_process

if TYPE_CHECKING:
    from torch import nn

    from secure_fl.tasks.base import Task


@shown_hints()
def load_model(path: str | Path, task: str | type[Task] | Task, **settings: Any) -> nn.Module:
    """The model in a safetensors file of a run or of `secure-fl study export`, in evaluation mode.

    `task` is the task it was trained for: an id, a class or an object, with its `settings` where they are not the
    defaults (`model.json` beside the file has both). Raises `LayoutMismatchError` where the file holds another model,
    `StorageError` where it cannot be read, and `SettingsError` for a task that does not exist, or no model.
    """
    from secure_fl.tasks.state_dict import read_model

    return read_model(Path(path), make_task(task, settings))


def make_task(task: str | type[Task] | Task, settings: dict[str, Any]) -> Task:
    """The task itself, with its settings validated."""
    from secure_fl.tasks.base import Task

    if isinstance(task, Task):
        if settings:
            raise SettingsError("the task object has settings already", advice="pass its class to set them here")
        return task
    return tasks.create(task if isinstance(task, str) else in_process.add(task), settings)
