"""Which code a task is: a digest of its source files, so that sites can tell whether they run the same.

What counts as a task's code is one rule for all tasks: every .py file of the package that the task's class is defined
in, and of the packages that define the task classes it inherits from, which includes secure-fl's own. A package is the
folder of the module, with what lies below it; a module outside any package is its own file. The packages' full names
and the files' paths within them are part of the digest, where they lie on the machine is not.

Not part of it are other modules and libraries that the task imports, and the study's settings, which have their own
hash. A strategy that comes with another package than secure-fl counts as the task does. Of a class that was typed into
a notebook there is no file: its compiled methods stand for it.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secure_fl import __version__
from secure_fl.errors import TaskUnavailableError
from secure_fl.tasks.files import source_of
from secure_fl.tasks.in_process import class_source

if TYPE_CHECKING:
    from secure_fl.tasks.base import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCode:
    """The package that a task comes from, and the SHA-256 of its source."""

    name: str
    version: str  # empty where the module belongs to no installed package
    digest: str

    @property
    def text(self) -> str:
        """In one line, for people who compare it with what another site has."""
        return f"{self.name} {self.version or '(not installed as a package)'}, source sha256:{self.digest}"


def task_code(task: type[Task], strategy: type[Any] | None = None) -> TaskCode:
    """The code of `task`, as it lies on this machine, and of a strategy that is not built in.

    Raises `TaskUnavailableError` where there is no source.
    """
    from secure_fl.tasks.base import Task

    digest = hashlib.sha256()
    # In the order of inheritance, which is the same wherever the class is; each package once.
    classes: list[type[Any]] = [cls for cls in task.__mro__ if issubclass(cls, Task)]
    classes += [cls for cls in (strategy.__mro__ if strategy else ()) if _is_foreign(cls)]
    for package, files in dict(_sources(cls) for cls in classes).items():
        _update(digest, package.encode())
        for path, content in files.items():
            _update(digest, path.encode())
            _update(digest, content)
    name, version = _distribution(task.__module__.partition(".")[0])
    return TaskCode(name=name, version=version, digest=digest.hexdigest())


def own_code(task: type[Task], strategy: type[Any]) -> str:
    """The digest of code that is not built in; empty where all of it is."""
    return task_code(task, strategy).digest if _is_foreign(task) or _is_foreign(strategy) else ""


def _is_foreign(cls: type[Any]) -> bool:
    return cls.__module__.partition(".")[0] not in {"secure_fl", "abc", "builtins", "typing"}


def _sources(cls: type[Any]) -> tuple[str, dict[str, bytes]]:
    """The name of what a class's module belongs to, and its .py files: path within it → content, sorted by path."""
    module = cls.__module__
    loaded = sys.modules.get(module)
    if module == "__main__" and not getattr(loaded, "__file__", None):
        return f"{module}:{cls.__qualname__}", {"": class_source(cls)}
    file = Path(getattr(loaded, "__file__", None) or "")
    package = getattr(loaded, "__package__", None)
    if (source := source_of(module)) is not None:  # what runs, whatever lies there by now
        return module, {file.name: source}
    try:
        if not package:
            return module, {file.name: file.read_bytes()}
        found = {path.relative_to(file.parent).as_posix(): path.read_bytes() for path in file.parent.rglob("*.py")}
        if file.name not in found:  # compiled, or in an archive
            raise FileNotFoundError
    except OSError:
        raise TaskUnavailableError(
            f"module {module!r}: its source files cannot be read", advice="install the task's package with its source"
        ) from None
    return package, dict(sorted(found.items()))


def _update(digest: hashlib._Hash, part: bytes) -> None:
    # With its length, so that no two lists of files give the same bytes.
    digest.update(len(part).to_bytes(8, "little") + part)


def _distribution(top: str) -> tuple[str, str]:
    """Name and version of the installed package that has the top-level module `top`."""
    if top == "secure_fl":
        return "secure-fl", __version__
    # An editable installation lists no files; by custom its name is the module's.
    names = [*metadata.packages_distributions().get(top, []), top]
    for name in names:
        try:
            return metadata.metadata(name)["Name"], metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return top, ""
