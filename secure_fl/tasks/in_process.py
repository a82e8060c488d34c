"""Tasks that exist in this process alone, such as a class in a notebook's cell.

A simulation in threads (`secure_fl.simulate`) finds them here by name. No other process does: a site that takes part in
a deployed study has the task installed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

from secure_fl.errors import SettingsError

if TYPE_CHECKING:
    from secure_fl.tasks.base import Task

_here: dict[str, type[Task] | Task] = {}


def add(task: type[Task] | Task) -> str:
    """Make a task known by the name that this returns. One that is defined anew takes the place of the older one.

    Raises `SettingsError` for what is no task.
    """
    require_task(task)
    cls = task if isinstance(task, type) else type(task)
    name = f"{cls.__module__}:{cls.__qualname__}"
    missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
    if missing:
        raise SettingsError(f"task {cls.__qualname__} does not define {missing}", advice="see docs/tasks.md")
    _here[name] = task
    return name


def require_task(task: object) -> None:
    """Raise `SettingsError` unless this is a task's class, or an object of one."""
    from secure_fl.tasks.base import Task

    if not isinstance(task, Task) and not (isinstance(task, type) and issubclass(task, Task)):
        raise SettingsError(
            f"task is a name, a Task class or a Task object, not {task!r}",
            advice="see docs/tasks.md: a task is a class",
        )


def find(name: str) -> type[Task] | Task | None:
    """The class, or the object with data of its own, that was added under this name."""
    return _here.get(name)


def class_source(cls: type[Any]) -> bytes:
    """What stands for the source of a class that lies in no file: the code of its methods, as compiled."""
    content = hashlib.sha256()
    for name, value in sorted(vars(cls).items()):
        code = getattr(getattr(value, "__func__", value), "__code__", None)
        if isinstance(code, CodeType):
            content.update(name.encode() + b"\x00")
            for part in _code_parts(code):
                content.update(len(part).to_bytes(8, "little") + part)
    return content.digest()


def _code_parts(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_parts(constant)
        else:
            yield repr(constant).encode()
