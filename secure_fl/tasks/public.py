"""Public data sets: the folder in which simulations look for the files of tasks that cannot make data up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from secure_fl.tasks.base import Task

FOLDER = "SECURE_FL_DATA"  # the environment variable that names it


def public_path(task: type[Task]) -> str:
    """Where a task's data are in that folder; empty where there is none of them."""
    folder = os.environ.get(FOLDER)
    candidates = [Path(folder).resolve() / name for name in task.public_files] if folder else []
    return next((str(path) for path in candidates if path.exists()), "")
