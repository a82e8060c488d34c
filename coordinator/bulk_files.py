"""Bulk on disk, per study: objects to download, uploads of open attempts, checkpoints to keep.

Uploads rest in files until their round is committed: memory stays at one model however many nodes send at once,
a half-sent upload never touches a sum, and a restarted coordinator can replay a round. Everything here blocks; the
runners call it in threads.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from secure_fl.blocks import Blocks, Layout
from secure_fl.checkpoints import load_arrays, save_arrays
from secure_fl.errors import MalformedMessageError, StorageError
from secure_fl.files import publish, write_pieces
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.objects import IncomingObject
from secure_fl.transport.wire import reference

_STATE = ".state.safetensors"  # what a strategy remembers, beside the version of the same number
EMPTY = hashlib.sha256().digest()  # of bulk that is not there; it has no file


@dataclass(frozen=True, slots=True)
class BulkFile:
    """Bulk of one accepted upload."""

    path: Path
    size: int
    sha256: bytes

    def read(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset`. Bulk that is empty has no file."""
        if not self.size:
            return b""
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                return file.read(count)
        except OSError as error:
            raise StorageError(f"an accepted upload cannot be read ({error.strerror})") from error


class BulkFiles:
    """One study's files."""

    def __init__(self, folder: Path) -> None:
        self._objects = folder / "objects"
        self._spool = folder / "spool"
        self._checkpoints = folder / "checkpoints"
        self.first = folder / "first.json"  # what is known of the model that the study starts from
        # By attempt: what its sites download beside the model. Other circles' attempts announce while old objects go.
        self._announced: dict[str, set[bytes]] = {}
        self._lock = threading.Lock()
        try:
            for part in (self._objects, self._spool, self._checkpoints):
                part.mkdir(parents=True, exist_ok=True)
            for leftover in folder.rglob("*.part"):  # of a coordinator that was killed while it wrote
                leftover.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{folder}: cannot be created ({error.strerror})") from error

    # --- objects ----------------------------------------------------------------------------------------------

    def put(self, content: bytes | memoryview, *, attempt: str) -> pb.ObjectRef:
        """Keep an object for download, for as long as the attempt that announces it is under way."""
        known = reference(content)
        path = self._objects / known.sha256.hex()
        with self._lock:  # Noted before it is looked for, so that `prune` cannot remove it in between.
            self._announced.setdefault(attempt, set()).add(known.sha256)
            there = path.exists()
        if not there:
            write_pieces(path, (memoryview(content),))
        return known

    def put_pieces(self, digest: bytes, pieces: Iterable[memoryview]) -> None:
        """Keep an object that comes in pieces, and whose SHA-256 is known."""
        path = self._objects / digest.hex()
        if not path.exists():
            write_pieces(path, pieces)

    def adopt(self, path: Path, digest: bytes) -> None:
        """Take over a file, which was compared with its SHA-256, as an object."""
        try:
            publish(path, self._objects / digest.hex())
        except OSError as error:
            raise StorageError(f"an object cannot be stored ({error.strerror})") from error

    def object_path(self, digest: bytes) -> Path:
        """Where an object lies; `MalformedMessageError` when there is none."""
        path = self._objects / digest.hex()
        if not path.is_file():
            raise MalformedMessageError("there is no such object in this study")
        return path

    def has(self, digest: bytes) -> bool:
        """Whether an object is here."""
        return (self._objects / digest.hex()).is_file()

    # --- models -----------------------------------------------------------------------------------------------

    def put_model(self, version: int, layout: Layout, blocks: Blocks) -> bytes:
        """Write a checkpoint (safetensors) and the object nodes download; returns the object's SHA-256.

        What a strategy ships beside the model is in the object alone.
        """
        save_arrays(self.checkpoint(version), layout.model.tensors(blocks))
        content = hashlib.sha256()
        for piece in layout.pieces(blocks):
            content.update(piece)
        self.put_pieces(content.digest(), layout.pieces(blocks))
        return content.digest()

    def model(self, layout: Layout, digest: bytes) -> Blocks:
        """A model's blocks as they rest on disk: mapped, so that they cost memory only while they are read."""
        path = self.object_path(digest)
        try:
            if path.stat().st_size == 0:
                return layout.unflatten(b"")
            return layout.unflatten(np.memmap(path, np.uint8, mode="r"))
        except (OSError, ValueError) as error:
            raise StorageError(f"{path}: cannot be read ({type(error).__name__})") from error

    def checkpoint(self, version: int) -> Path:
        """The safetensors file of a version."""
        return self._checkpoints / f"{version:06d}.safetensors"

    def put_state(self, version: int, vectors: Blocks) -> None:
        """Keep what a strategy remembers in vectors beside a version."""
        if vectors:
            save_arrays(self._state(version), vectors)

    def state(self, version: int) -> Blocks:
        """What was kept; nothing where nothing was."""
        path = self._state(version)
        return load_arrays(path) if path.exists() else {}

    def _state(self, version: int) -> Path:
        return self._checkpoints / f"{version:06d}{_STATE}"

    def prune(self, *, newest: int, versions: Collection[int], objects: Iterable[bytes]) -> None:
        """Drop what nobody can need any more: all models but those of `versions`, all objects but `objects`.

        What attempts under way announce stays, and so does what is being written. What a strategy remembers stays
        beside the newest version and its predecessor: it may be many models large.
        """
        try:
            with self._lock:
                needed = {digest.hex() for digest in set[bytes]().union(objects, *self._announced.values())}
                for path in self._objects.iterdir():
                    if path.name not in needed and not path.name.startswith("."):
                        path.unlink(missing_ok=True)
            for path in self._checkpoints.glob("*.safetensors"):
                version = int(path.name.partition(".")[0])
                remembered = path.name.endswith(_STATE)
                if version < newest - 1 if remembered else version not in versions:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"old models cannot be removed ({error.strerror})") from error

    # --- uploads ----------------------------------------------------------------------------------------------

    def open_uploads(self, attempt: str) -> None:
        """Make the folder `attempt`, for everything that sites upload in one; it goes with the attempt."""
        folder = self._spool / attempt
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob("*.part"):  # of a runner that this one takes the place of
                leftover.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{folder}: cannot be created ({error.strerror})") from error

    def incoming(self, attempt: str, name: str, reference: pb.ObjectRef) -> IncomingObject:
        """A place for an upload's bulk."""
        return IncomingObject(self._upload(attempt, name), reference)

    def upload(self, attempt: str, name: str, reference: pb.ObjectRef) -> BulkFile:
        """An upload's bulk, received and compared with its digest before."""
        path = self._upload(attempt, name)
        if reference.size == 0:
            return BulkFile(path, 0, reference.sha256)
        try:
            return BulkFile(path, path.stat().st_size, reference.sha256)
        except OSError as error:
            raise StorageError("an accepted upload is missing from the spool") from error

    def discard(self, attempt: str, name: str) -> None:
        """Forget a refused upload."""
        self._upload(attempt, name).unlink(missing_ok=True)

    def clear_uploads(self, attempt: str) -> None:
        """Forget the uploads of an attempt that is over, and what was announced in it."""
        with self._lock:
            self._announced.pop(attempt, None)
        shutil.rmtree(self._spool / attempt, ignore_errors=True)

    def clear_uploads_but(self, attempts: Collection[str]) -> None:
        """The same for every attempt there was, except `attempts`."""
        for path in self._spool.iterdir():
            if path.name in attempts:
                continue
            if path.is_dir():
                self.clear_uploads(path.name)
            else:
                path.unlink(missing_ok=True)  # of a build that had one folder for all attempts

    def _upload(self, attempt: str, name: str) -> Path:
        return self._spool / attempt / name
