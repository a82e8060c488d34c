"""Which code a study may make the coordinator import: installed tasks, and what the coordinator's file lists."""

from __future__ import annotations

from collections.abc import Collection

from secure_fl import tasks
from secure_fl.errors import TaskNotAllowedError
from secure_fl.settings import require_known
from secure_fl.study.settings import Study


def require_allowed(study: Study, listed: Collection[str]) -> None:
    """Raise `TaskNotAllowedError` for a `module:attribute` that is not listed, `UnknownNameError` for an unknown id.

    Importing a module runs it. Whoever may submit studies could otherwise run any module that lies on this machine's
    path, with the coordinator's rights.
    """
    name = study.task.name
    if name in listed:
        return
    if ":" not in name:
        require_known("task", name, tasks.known())
    elif not tasks.is_installed_id(name):
        raise TaskNotAllowedError(f"task {name!r} is not allowed by [coordinator] tasks")
