"""Files that are either whole or absent, and private keys nobody else can read."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from secure_fl.errors import StorageError


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write `content` so that a crash leaves the old file or the new one, never half of either.

    Raises `StorageError` when the disk is full or the folder is not writable; the old file is then intact.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
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


def write_private(path: Path, content: bytes) -> None:
    """Write a private key: mode 0600 from its first byte on."""
    write_atomically(path, content, mode=0o600)
