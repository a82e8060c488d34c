"""Files are whole or absent, and private ones private."""

from __future__ import annotations

import resource
import stat
from pathlib import Path

import pytest

from secure_fl.errors import StorageError
from secure_fl.files import write_atomically, write_private


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_replaces_another_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "file"
    for content in (b"one", b"two", b""):
        write_atomically(target, content)
        assert target.read_bytes() == content
    assert names(target.parent) == {"file"}


def test_a_private_key_is_for_its_owner_only(tmp_path: Path) -> None:
    write_private(tmp_path / "key", b"secret")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    (tmp_path / "key").chmod(0o644)
    write_private(tmp_path / "key", b"secret")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_full_disk_leaves_the_old_file_intact(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(StorageError, match="cannot be written"):
            write_atomically(tmp_path / "file", b"new" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == {"file"}


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for target, says in {
        tmp_path / "file" / "child": "file: is a file, not a folder",
        tmp_path / "file" / "below" / "child": "file: is a file, not a folder",
        tmp_path / ("n" * 300): "cannot be written",
        tmp_path / "folder": "folder: is a folder, not a file",
        Path("/"): "/: is a folder, not a file",
    }.items():
        with pytest.raises(StorageError, match=says):
            write_atomically(target, b"content")
    assert names(tmp_path) == {"file", "folder"}
