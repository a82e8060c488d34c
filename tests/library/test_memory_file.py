"""Files that are on no disk: they hold what was written last, under a path that any library can open."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from secure_fl.errors import StorageError
from secure_fl.memory_file import MemoryFile


@pytest.fixture(params=["memory", "folder"])
def file(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MemoryFile:
    if request.param == "folder":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("this system has no files in memory")
    return MemoryFile()


def test_what_was_written_is_read_here_and_by_its_path(file: MemoryFile) -> None:
    with file:
        file.write(b"first and long", memoryview(b", in pieces"))
        assert file.read() == b"first and long, in pieces"
        file.write(b"short")
        assert file.read() == b"short"
        assert Path(file.path).read_bytes() == b"short"
        Path(file.path).write_bytes(b"from outside")
        assert file.read() == b"from outside"


def test_nothing_is_left(file: MemoryFile) -> None:
    with file:
        path, descriptor = Path(file.path), file._descriptor
        file.write(b"secret")
        assert path.exists()
    assert not path.exists() or path.read_bytes() != b"secret"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_folder_is_for_this_user_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with MemoryFile() as file:
        assert stat.S_IMODE(Path(file.path).stat().st_mode) == 0o600
        assert stat.S_IMODE(Path(file.path).parent.stat().st_mode) == 0o700


def test_programs_that_are_started_do_not_inherit_it(file: MemoryFile) -> None:
    with file:
        assert not os.get_inheritable(file._descriptor)


def test_a_write_that_fails_is_a_storage_error(file: MemoryFile, monkeypatch: pytest.MonkeyPatch) -> None:
    with file:
        monkeypatch.setattr(os, "pwrite", lambda descriptor, piece, offset: len(piece) - 1)
        with pytest.raises(StorageError):
            file.write(b"cut short")
