"""Which code a task's package is, found out without running any of it.

`code_digest` says which code a task that is loaded consists of. To compare that digest, the task has to be imported,
and an import runs the package. This digest is of the files alone, so that a package which changed since a site approved
it does not run at all. It covers the whole top-level package, every file in it that Python could import. It does not
cover other packages that this one imports, nor compiled copies in `__pycache__`, which Python uses while they bear the
time and size of their source.
"""

from __future__ import annotations

import hashlib
import sys
from importlib import invalidate_caches
from importlib.machinery import all_suffixes
from importlib.util import find_spec
from pathlib import Path

from secure_fl import tasks
from secure_fl.errors import CodeChangedError


def package_sha256(name: str) -> str:
    """Of the package that has the task called `name`, in hexadecimal digits.

    Empty where there are no files to read, and for secure-fl's own tasks: that package runs already.
    """
    top = tasks.module_of(name).partition(".")[0]
    if top == "secure_fl":
        return ""
    try:
        invalidate_caches()  # It may have been installed a moment ago.
        spec = find_spec(top)  # of a top-level name: nothing is imported for it
        if spec is None:
            return ""
        folders = spec.submodule_search_locations
        return _digest(_files(folders) if folders is not None else {top: Path(spec.origin or "").read_bytes()})
    except (OSError, ValueError):  # in an archive, or a module without a specification
        return ""


def require_package(name: str, sha256: str, *, study: str) -> None:
    """Raise `CodeChangedError`, and run nothing, if the package of a task is another than was approved.

    Of a task that this process has loaded nothing is asked: what lies on the disk is not what runs.
    """
    if sha256 and tasks.module_of(name) not in sys.modules and package_sha256(name) != sha256:
        raise CodeChangedError(f"the task's code in the package of {name!r} changed since {study!r} was approved here")


def _files(folders: list[str]) -> dict[str, bytes]:
    suffixes = tuple(all_suffixes())
    return {
        f"{place}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for place, folder in enumerate(folders)
        for path in Path(folder).rglob("*")
        if path.name.endswith(suffixes) and path.parent.name != "__pycache__" and path.is_file()
    }


def _digest(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        for part in (path.encode(), content):
            # With its length, so that no two lists of files give the same bytes.
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
