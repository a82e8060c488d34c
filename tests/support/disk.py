"""A disk that is full for a while, as the operating system says it: ENOSPC when a file is made durable."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class FullDisk:
    """Folders on which nothing can be written at the moment."""

    folders: set[Path] = field(default_factory=set)
    refusals: int = 0

    def holds(self, path: Path) -> bool:
        """Whether a path lies on a full disk; counts as a refusal if so."""
        full = any(path.is_relative_to(folder) for folder in self.folders)
        self.refusals += full
        return full

    @contextmanager
    def mounted(self) -> Iterator[FullDisk]:
        """Every fsync of this process goes through here."""
        real = os.fsync

        def fsync(descriptor: int) -> None:
            if self.folders and self.holds(Path(f"/proc/self/fd/{descriptor}").readlink()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(descriptor)

        vars(os)["fsync"] = fsync
        try:
            yield self
        finally:
            vars(os)["fsync"] = real
