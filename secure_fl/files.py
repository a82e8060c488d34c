"""Files that are either whole or absent, and keys and folders that nobody else can read."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from secure_fl.errors import StorageError

log = logging.getLogger(__name__)


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write `content` so that a crash leaves the old file or the new one, never half of either.

    Raises `StorageError` when the disk is full or the folder is not writable; the old file is then intact.
    """
    write_pieces(path, (content,), mode=mode)


def write_pieces(path: Path, pieces: Iterable[bytes | memoryview], *, mode: int = 0o644) -> None:
    """The same for content that comes in pieces: they are never joined in memory."""
    if os.path.isdir(path):  # noqa: PTH112 - false, too, of what can be no path
        raise StorageError(f"{path}: is a folder, not a file", advice="name a file in it")
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        publish(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # Where nothing can be written, nothing can be removed either.
            temporary.unlink(missing_ok=True)
        raise StorageError(f"{path}: cannot be written ({error.strerror or type(error).__name__})") from error


def publish(temporary: Path, path: Path) -> None:
    """Give a complete file its final name, and make the name itself durable."""
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def make_folder(folder: Path) -> None:
    """Make a folder unless it is there. Raises `StorageError`, which names a file that is in the way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        blocking = next((one for one in (folder, *folder.parents) if one.is_file()), folder)
        raise StorageError(
            f"{blocking}: is a file, not a folder", advice="choose another folder, or move the file away"
        ) from None
    except OSError as error:
        raise StorageError(f"{folder}: cannot be created ({error.strerror})") from error


def private_folder(folder: Path) -> None:
    """Make a folder that this user alone can look into, whatever the umask. Raises `StorageError`.

    One that is there stays as it is: changing the mode of a folder that a file names by mistake could shut others out
    of something that is theirs.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StorageError(
            f"{folder}: cannot be created ({error.strerror})",
            advice=f"make {folder} and give it to the user this process runs as, or correct [state] folder",
        ) from error


def open_to_others(folder: Path) -> bool:
    """Whether anybody but its owner, the superuser aside, can look into a folder. Raises `OSError`."""
    return bool(stat.S_IMODE(folder.stat().st_mode) & 0o077)


def keep_files_private() -> None:
    """From now on this process, and those it starts, create files and folders that their own user alone can read."""
    os.umask(0o077)


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; `StorageError` if another one does. The lock ends with the process."""
    path = folder / ".lock"
    private_folder(folder)
    try:
        if open_to_others(folder):
            log.warning("%s: others on this machine can look into it; chmod 700 %s", folder, folder)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"{path}: cannot be opened ({error.strerror})") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise StorageError(
            f"{folder}: another process works here",
            advice="it may be the service, or a run, that is under way already: stop that one first, or let it end",
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Whether a process holds a folder with `only_process` now. Raises `OSError` where that cannot be known."""
    try:
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)  # and with it a lock that was free
    return False


def write_private(path: Path, content: bytes) -> None:
    """Write a private key: mode 0600 from its first byte on."""
    write_atomically(path, content, mode=0o600)


def sha256_of(path: Path) -> bytes:
    """The digest of a file's content, read in pieces. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
