"""Arrays on disk as safetensors, written and read without a second copy of them in memory.

The library's own `save` makes one run of bytes of everything first; a model of several gigabytes is then there three
times. The format is eight bytes of length, a JSON header, and the arrays end to end.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from secure_fl.errors import StorageError
from secure_fl.files import write_pieces

_ALIGNMENT = 8  # of the first array
_FLOAT32 = np.dtype("<f4")
_NAMES = {_FLOAT32: "F32", np.dtype("<i2"): "I16", np.dtype("<i4"): "I32"}


def save_arrays(path: Path, arrays: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Write float32 arrays under their names, whole or not at all."""
    _save(path, arrays, _FLOAT32)


def save_integers(
    path: Path, arrays: Mapping[str, npt.NDArray[np.int32]], *, bits: int, notes: Mapping[str, str]
) -> None:
    """Write integers of so many bits as narrow as they are, with notes; for this user alone, whole or not at all."""
    _save(path, arrays, np.dtype("<i2" if bits <= 16 else "<i4"), notes=notes, mode=0o600)


def _save(
    path: Path,
    arrays: Mapping[str, npt.NDArray[Any]],
    dtype: np.dtype[Any],
    *,
    notes: Mapping[str, str] | None = None,
    mode: int = 0o644,
) -> None:
    header: dict[str, Any] = {"__metadata__": dict(notes)} if notes else {}
    end = 0
    for name in sorted(arrays):
        start, end = end, end + arrays[name].size * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(arrays[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    whole = (np.ascontiguousarray(arrays[name], dtype) for name in sorted(arrays))
    contents = (array.reshape(-1).view(np.uint8).data for array in whole if array.size)
    write_pieces(path, chain((struct.pack("<Q", len(text)), text), contents), mode=mode)


@contextmanager
def open_arrays(path: Path) -> Iterator[Mapping[str, npt.NDArray[np.float32]]]:
    """The same arrays, each read when it is asked for. Raises `StorageError`."""
    with _readable(path), safe_open(path, framework="numpy") as file:
        yield _Arrays(file)


class _Arrays(Mapping[str, npt.NDArray[np.float32]]):
    def __init__(self, file: Any) -> None:
        self._file = file
        self._names = tuple(file.keys())

    def __getitem__(self, name: str) -> npt.NDArray[np.float32]:
        if name not in self._names:
            raise KeyError(name)
        return np.asarray(self._file.get_tensor(name), _FLOAT32)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load_integers(path: Path) -> tuple[dict[str, npt.NDArray[np.int32]], dict[str, str]]:
    """What `save_integers` wrote: the integers, and the notes. Raises `StorageError`."""
    with _readable(path), safe_open(path, framework="numpy") as file:
        return {name: np.asarray(file.get_tensor(name), np.int32) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def load_arrays(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """What `save_arrays` wrote. Raises `StorageError`."""
    with open_arrays(path) as arrays:
        return dict(arrays)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{path}: cannot be read ({type(error).__name__})") from error
