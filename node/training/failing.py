"""How a failure of a task's own code is told to somebody who may see the data."""

from __future__ import annotations

from secure_fl.errors import DataError
from secure_fl.study.settings import Study


def task_fails(study: Study, cause: BaseException) -> DataError:
    """For `doctor` and `node try`, at the site alone: what the code says may quote a row."""
    return DataError(
        f"the task {study.task.name!r} fails on these data ({type(cause).__name__}: {cause})",
        advice="compare the shapes and types of the data with what the task expects (docs/tasks.md)",
    )
