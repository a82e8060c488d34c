"""A file that is on no disk, for libraries that read and write files and nothing else.

On Linux it is memory of this process with a path below /proc. Elsewhere it is a file in a folder for this user alone,
which is removed when the file is closed: what is written may then touch a disk.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from secure_fl.errors import StorageError

Piece: TypeAlias = bytes | bytearray | memoryview


class MemoryFile:
    """Open from the beginning; use it in a `with` statement.

    Make one for each piece of work and let it go: two threads, or a process and its fork, must not share one, since
    each would read what the other wrote.
    """

    __slots__ = ("_descriptor", "_folder", "path")

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        try:
            self._descriptor, self.path = self._in_memory() or self._in_folder()
        except OSError as error:
            raise StorageError(f"no memory or temporary folder for a file ({error.strerror})") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)
        if self._folder is not None:
            self._folder.cleanup()

    def write(self, *pieces: Piece) -> None:
        """Replace what it holds by `pieces`, one after the other. Raises `StorageError`."""
        end = 0
        try:
            for piece in pieces:
                end += os.pwrite(self._descriptor, piece, end)
            os.ftruncate(self._descriptor, end)
        except OSError as error:
            raise StorageError(f"a file in memory cannot be written ({error.strerror})") from error
        if end != sum(len(piece) for piece in pieces):
            raise StorageError("a file in memory was cut short")

    def read(self) -> bytes:
        """What it holds."""
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def _in_memory(self) -> tuple[int, str] | None:
        if not hasattr(os, "memfd_create"):
            return None
        descriptor = os.memfd_create("secure-fl")  # closed in programs that this process starts
        path = Path(f"/proc/self/fd/{descriptor}")
        if path.exists():
            return descriptor, str(path)
        os.close(descriptor)  # There are containers without /proc.
        return None

    def _in_folder(self) -> tuple[int, str]:
        self._folder = tempfile.TemporaryDirectory(prefix="secure-fl-")  # for this user alone
        path = Path(self._folder.name) / "file"
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), str(path)
