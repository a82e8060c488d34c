"""Bulk on disk, per study: objects to download, uploads of the round under way, checkpoints to keep.

Uploads rest in files until their round is committed: memory stays at one model however many nodes send at once,
a half-sent upload never touches a sum, and a restarted coordinator can replay a round.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from safetensors.numpy import save

from secure_fl.blocks import Blocks, Layout
from secure_fl.errors import MalformedMessageError, StorageError
from secure_fl.files import publish, write_atomically
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.wire import require

_KEPT_MODELS = 2  # the current one and its predecessor, which a slow node may still be fetching


@dataclass(frozen=True, slots=True)
class BulkFile:
    """Bulk of one accepted upload."""

    path: Path
    size: int
    sha256: bytes

    def read(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset`."""
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                return file.read(count)
        except OSError as error:
            raise StorageError(f"an accepted upload cannot be read ({error.strerror})") from error


class Depot:
    """One study's files."""

    def __init__(self, folder: Path) -> None:
        self._objects = folder / "objects"
        self._spool = folder / "spool"
        self._checkpoints = folder / "checkpoints"
        try:
            for part in (self._objects, self._spool, self._checkpoints):
                part.mkdir(parents=True, exist_ok=True)
            for leftover in folder.rglob("*.part"):  # of a coordinator that was killed while it wrote
                leftover.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{folder}: cannot be created ({error.strerror})") from error

    # --- objects ----------------------------------------------------------------------------------------------

    def put(self, content: bytes) -> bytes:
        """Keep an object for download; returns its SHA-256."""
        digest = hashlib.sha256(content).digest()
        path = self._objects / digest.hex()
        if not path.exists():
            write_atomically(path, content)
        return digest

    def object_path(self, digest: bytes) -> Path:
        """Where an object lies; `MalformedMessageError` when there is none."""
        path = self._objects / digest.hex()
        if not path.is_file():
            raise MalformedMessageError("there is no such object in this study")
        return path

    # --- models -----------------------------------------------------------------------------------------------

    def put_model(self, version: int, layout: Layout, blocks: Blocks) -> bytes:
        """Write a checkpoint (safetensors) and the object nodes download; returns the object's SHA-256.

        What a strategy ships beside the model is in the object alone.
        """
        write_atomically(self.checkpoint(version), save(layout.model.tensors(blocks)))
        return self.put(layout.flatten(blocks))

    def checkpoint(self, version: int) -> Path:
        """The safetensors file of a version."""
        return self._checkpoints / f"{version:06d}.safetensors"

    def prune(self, *, keep_from: int, keep_objects: set[bytes]) -> None:
        """Drop what no node can need any more: old objects, old checkpoints, the uploads of finished rounds."""
        names = {digest.hex() for digest in keep_objects}
        try:
            for path in self._objects.iterdir():
                if path.name not in names:
                    path.unlink(missing_ok=True)
            for path in self._checkpoints.glob("*.safetensors"):
                if int(path.stem) <= keep_from - _KEPT_MODELS:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"old models cannot be removed ({error.strerror})") from error

    # --- uploads ----------------------------------------------------------------------------------------------

    async def receive(self, reference: pb.ObjectRef, name: str, chunks: AsyncIterator[pb.Chunk]) -> BulkFile:
        """Stream an upload's bulk to disk; nothing remains of one that breaks off or does not match its digest."""
        path = self._spool / name
        temporary = path.with_name(f"{name}.{os.urandom(4).hex()}.part")
        digest = hashlib.sha256()
        position = 0
        try:
            with temporary.open("wb") as file:
                async for chunk in chunks:
                    require(chunk.offset == position, "a chunk is out of order")
                    position += len(chunk.data)
                    require(position <= reference.size, "an upload is longer than announced")
                    digest.update(chunk.data)
                    file.write(chunk.data)
                require(position == reference.size, "an upload is shorter than announced")
                require(digest.digest() == reference.sha256, "an upload does not match its digest")
                file.flush()
                os.fsync(file.fileno())
            publish(temporary, path)
        except OSError as error:
            raise StorageError(f"an upload cannot be stored ({error.strerror})") from error
        finally:
            temporary.unlink(missing_ok=True)
        return BulkFile(path, position, reference.sha256)

    def upload(self, name: str, sha256: bytes) -> BulkFile:
        """An upload received, and compared with its digest, earlier."""
        path = self._spool / name
        try:
            return BulkFile(path, path.stat().st_size, sha256)
        except OSError as error:
            raise StorageError("an accepted upload is missing from the spool") from error

    def discard(self, name: str) -> None:
        """Forget a refused upload."""
        (self._spool / name).unlink(missing_ok=True)

    def clear_spool(self) -> None:
        """Forget the uploads of a round that is over."""
        shutil.rmtree(self._spool, ignore_errors=True)
        try:
            self._spool.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self._spool}: cannot be created ({error.strerror})") from error
