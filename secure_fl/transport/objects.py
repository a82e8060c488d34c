"""One object on its way into a file: chunks in order, its digest at the end, and a way to go on after a broken link.

Both processes receive objects like this. Nothing here is asynchronous: callers do each step in a thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from secure_fl.errors import StorageError
from secure_fl.files import publish
from secure_fl.messages import require
from secure_fl.rpc import federation_pb2 as pb


class IncomingObject:
    """What has arrived of an object. It appears under `path` when it is whole, and never before."""

    def __init__(self, path: Path, reference: pb.ObjectRef) -> None:
        self.path = path
        self.reference = reference
        self.position = 0  # how much is here: where a sender goes on
        self._temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}.part")
        self._digest = hashlib.sha256()
        self._file: BinaryIO | None = None

    def write(self, chunk: pb.Chunk) -> None:
        """The next chunk, or the first one again: then the object starts over.

        Raises `MalformedMessageError` for any other, `StorageError` where it cannot be written.
        """
        if chunk.offset == 0 and self.position > 0:
            self.discard()
        require(len(chunk.data) > 0, "a chunk is empty")
        require(chunk.offset == self.position, "a chunk is out of order")
        require(self.position + len(chunk.data) <= self.reference.size, "an object is longer than announced")
        try:
            if self._file is None:
                self._file = self._temporary.open("wb")
            self._file.write(chunk.data)
        except OSError as error:
            raise StorageError(f"an object cannot be stored ({error.strerror})") from error
        self._digest.update(chunk.data)
        self.position += len(chunk.data)

    def finish(self, *, durable: bool) -> None:
        """Give it its name. Raises, and leaves nothing, unless it is exactly what was announced."""
        try:
            require(self.position == self.reference.size, "an object is shorter than announced")
            require(self._digest.digest() == self.reference.sha256, "an object does not match its digest")
            if self._file is None:
                self._file = self._temporary.open("wb")  # of an object without content
            self._file.flush()
            if durable:
                os.fsync(self._file.fileno())
                publish(self._temporary, self.path)
            else:
                self._temporary.replace(self.path)
        except OSError as error:
            raise StorageError(f"an object cannot be stored ({error.strerror})") from error
        finally:
            self.discard()

    def discard(self) -> None:
        """Forget what is here; a finished object stays."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # A full disk fails here again, and nobody wants it now.
                self._file.close()
        self._temporary.unlink(missing_ok=True)
        self._file, self.position, self._digest = None, 0, hashlib.sha256()
