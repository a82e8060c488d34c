"""Arrays on disk as safetensors, written and read without a second copy of them in memory.

The library's own `save` makes one run of bytes of everything first; a model of several gigabytes is then there three
times. The format is eight bytes of length, a JSON header, and the arrays end to end.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from secure_fl.errors import StorageError
from secure_fl.files import write_pieces

_ALIGNMENT = 8  # of the first array
_FLOAT32 = np.dtype("<f4")


def save_arrays(path: Path, arrays: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Write float32 arrays under their names, whole or not at all."""
    header: dict[str, Any] = {}
    end = 0
    for name in sorted(arrays):
        start, end = end, end + arrays[name].nbytes
        header[name] = {"dtype": "F32", "shape": list(arrays[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    whole = (np.ascontiguousarray(arrays[name], _FLOAT32) for name in header)
    contents = (array.reshape(-1).view(np.uint8).data for array in whole if array.size)
    write_pieces(path, (struct.pack("<Q", len(text)), text, *contents))


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
