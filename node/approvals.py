"""The studies that somebody at this site approved by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from secure_fl.errors import StorageError
from secure_fl.files import private_folder, write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """By whom, and of which code; an approval from before there were digests has neither."""

    by: str = ""
    code: str | None = None
    file: str = ""  # SHA-256 of the file that has the task, where it is no package
    package: str = ""  # and of the package's files, where it is one (`secure_fl/tasks/package_digest.py`)


class Approvals:
    """Those given by hand, in one file of the node's state folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "approvals.json"

    def read(self) -> dict[str, Approval]:
        """By study hash. Raises `StorageError`."""
        try:
            listed = json.loads(self._path.read_text(encoding="utf-8"))
            if isinstance(listed, list):  # as versions before wrote it
                listed = {study_id: {} for study_id in listed}
            return {_text(study_id): Approval(**facts) for study_id, facts in listed.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise StorageError(
                f"{self._path}: the list of approvals cannot be read ({type(error).__name__})",
                advice="correct [state] folder, let the node's user read the file, or approve again without it",
            ) from error

    def add(self, study_id: str, given: Approval) -> None:
        """A running node sees it within a second."""
        private_folder(self._path.parent)  # before the node's first start, it may be this that makes it
        listed = {**self.read(), study_id: given}
        content = {study: asdict(listed[study]) for study in sorted(listed)}
        write_private(self._path, json.dumps(content, indent=1).encode())


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
