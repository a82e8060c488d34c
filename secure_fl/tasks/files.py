"""Tasks that lie in a single file at a site, without a package around it.

The site's own file says where (`[policy] tasks`). The file is read once, so that the bytes of which a digest is shown
and compared are the bytes that run: no compiled copy beside it counts, and neither does what lies on the disk later.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePath
from types import ModuleType

from secure_fl.errors import CodeChangedError, TaskUnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFile:
    """Where a task's code is and, once a site has agreed to it, its SHA-256 in hexadecimal digits."""

    path: Path
    sha256: str = ""

    def read(self) -> bytes:
        """The code. Raises `CodeChangedError` if it is another than was agreed to, `TaskUnavailableError`."""
        try:
            source = self.path.read_bytes()
        except OSError as error:
            raise TaskUnavailableError(
                f"{self.path}: the task's code cannot be read ({error.strerror})",
                advice="put the file there, or correct [policy] tasks in the node's file",
            ) from None
        found = hashlib.sha256(source).hexdigest()
        if self.sha256 not in ("", found):
            raise CodeChangedError(
                f"the task's code in {self.path.name} changed since the study was approved here "
                f"(now sha256:{found}, approved sha256:{self.sha256})"
            )
        return source


def parse_entry(entry: str) -> tuple[str, str] | None:
    """Of `FOLDER/FILE.py:Class`: the name in studies, `FILE:Class`, and the path. None for what names no file.

    Raises `ValueError` where file or class could not be written in Python.
    """
    path, _, attribute = entry.rpartition(":")
    if not path.endswith(".py"):
        return None
    if not (PurePath(path).stem.isidentifier() and attribute.isidentifier()):
        raise ValueError(f"{entry!r} is not FILE.py:Class")
    return f"{PurePath(path).stem}:{attribute}", path


_registered: dict[str, TaskFile] = {}  # by the name that studies use: `module:attribute`
_loaded: dict[str, bytes] = {}  # by module: the source that this process runs


def register(name: str, file: TaskFile) -> None:
    """From now on `name` is the task in this file, and nothing is imported for it from elsewhere."""
    _registered[name] = file


def is_registered(name: str) -> bool:
    """Whether a task's name stands for a file here."""
    return name in _registered


def source_of(module: str) -> bytes | None:
    """What a module that came from such a file was made of; None for any other module."""
    return _loaded.get(module)


def file_sha256(name: str) -> str:
    """The digest of the file that a loaded task came from, as `sha256sum` shows it; empty for any other task."""
    source = source_of(name.partition(":")[0]) if is_registered(name) else None
    return "" if source is None else hashlib.sha256(source).hexdigest()


def shown_sha256(name: str) -> str:
    """What `sha256sum` shows of the file of a loaded `module:attribute` task; empty for one in a package.

    For people who compare it over the telephone: a study lead has the file without a list that names it.
    """
    module = sys.modules.get(name.partition(":")[0])
    file = getattr(module, "__file__", None)
    if is_registered(name) or ":" not in name or file is None or getattr(module, "__package__", None):
        return file_sha256(name)
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""


def load_module(name: str) -> ModuleType:
    """The module that has the task `name`, which is registered.

    Raises `CodeChangedError`, and runs nothing, if the file is another than the site agreed to; `TaskUnavailableError`
    if it cannot be read or bears another module's name; and whatever the file raises as it runs.
    """
    file, module = _registered[name], name.partition(":")[0]
    if module in _loaded and file.sha256 in ("", hashlib.sha256(_loaded[module]).hexdigest()):
        return sys.modules[module]
    source = file.read()
    _require_own_name(name, module, file.path)
    return _run(module, file.path, source)


def _require_own_name(name: str, module: str, path: Path) -> None:
    """A file must not take the place of another module: something else here may import that one later."""
    if module in _loaded:
        return
    spec = None if module in sys.modules else find_spec(module)
    same = spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path.resolve()
    if module in sys.modules or (spec is not None and not same):
        raise TaskUnavailableError(
            f"task {name!r}: another module here is called {module!r}", advice=f"give {path.name} a name of its own"
        )


def _run(module: str, path: Path, source: bytes) -> ModuleType:
    made = ModuleType(module)
    made.__file__ = str(path)
    before = sys.modules.get(module)
    sys.modules[module] = made  # Classes look their module up while they are made.
    try:
        exec(compile(source, str(path), "exec"), made.__dict__)  # noqa: S102 - a file that the site itself listed
    except BaseException:
        if before is None:
            del sys.modules[module]
        else:
            sys.modules[module] = before
        raise
    _loaded[module] = source
    return made
