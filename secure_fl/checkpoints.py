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
_NAMES = {
    _FLOAT32: "F32", np.dtype("<f2"): "F16", np.dtype("<f8"): "F64", np.dtype("i1"): "I8", np.dtype("<i2"): "I16",
    np.dtype("<i4"): "I32", np.dtype("<i8"): "I64", np.dtype("u1"): "U8", np.dtype("?"): "BOOL",
}  # fmt: skip


def save_arrays(path: Path, arrays: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Write float32 arrays under their names, whole or not at all."""
    _save(path, arrays, _FLOAT32)


def save_tensors(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a model's state dict, each tensor in its own type, whole or not at all. Raises `StorageError`."""
    if odd := sorted(name for name, array in arrays.items() if array.dtype.newbyteorder("<") not in _NAMES):
        raise StorageError(f"{path}: tensor {odd[0]!r} is of type {arrays[odd[0]].dtype}, which cannot be written")
    _save(path, arrays, None, notes={"format": "pt"})  # what other readers of safetensors look for


def save_integers(
    path: Path, arrays: Mapping[str, npt.NDArray[np.int32]], *, bits: int, notes: Mapping[str, str]
) -> None:
    """Write integers of so many bits as narrow as they are, with notes; for this user alone, whole or not at all."""
    _save(path, arrays, np.dtype("<i2" if bits <= 16 else "<i4"), notes=notes, mode=0o600)


def _save(
    path: Path,
    arrays: Mapping[str, npt.NDArray[Any]],
    dtype: np.dtype[Any] | None,
    *,
    notes: Mapping[str, str] | None = None,
    mode: int = 0o644,
) -> None:
    header: dict[str, Any] = {"__metadata__": dict(notes)} if notes else {}
    # Wide types first, so that every array begins at a multiple of its own width.
    kinds = {name: dtype or arrays[name].dtype.newbyteorder("<") for name in arrays}
    order = sorted(arrays, key=lambda name: (-kinds[name].itemsize, name))
    end = 0
    for name in order:
        start, end = end, end + arrays[name].size * kinds[name].itemsize
        header[name] = {"dtype": _NAMES[kinds[name]], "shape": list(arrays[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    whole = (np.ascontiguousarray(arrays[name], kinds[name]) for name in order)
    contents = (array.reshape(-1).view(np.uint8).data for array in whole if array.size)
    write_pieces(path, chain((struct.pack("<Q", len(text)), text), contents), mode=mode)


@contextmanager
def open_arrays(path: Path) -> Iterator[Mapping[str, npt.NDArray[np.float32]]]:
    """The same arrays, each read when it is asked for. Raises `StorageError`."""
    with _readable(path), safe_open(path, framework="numpy") as file:
        yield _Arrays(file)


@contextmanager
def open_tensors(path: Path) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
    """What `save_tensors` wrote, each tensor in its own type and read when it is asked for. Raises `StorageError`."""
    with _readable(path), safe_open(path, framework="numpy") as file:
        yield _Arrays(file, None)


_ODD = "tensor {!r} is of a type, or a shape, that is not read here"
_PLAIN_TYPES = "give a model whose tensors are float16, float32, float64 or whole numbers"


class _Arrays(Mapping[str, npt.NDArray[Any]]):
    def __init__(self, file: Any, dtype: np.dtype[Any] | None = _FLOAT32) -> None:
        self._file = file
        self._dtype = dtype
        self._names = tuple(file.keys())

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        try:
            found = np.asarray(self._file.get_tensor(name))
        except (TypeError, AttributeError, ValueError, OverflowError) as error:  # as NumPy says of types it has not
            raise StorageError(_ODD.format(name), advice=_PLAIN_TYPES) from error
        if found.dtype.kind not in "fiub":
            raise StorageError(_ODD.format(name), advice=_PLAIN_TYPES)
        return found if self._dtype is None else np.asarray(found, self._dtype)

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
    except FileNotFoundError:
        raise StorageError(f"{path}: there is no such file", advice="correct the path") from None
    except SafetensorError as error:
        raise StorageError(
            f"{path}: is no model file, or not a whole one ({error})",
            advice="give a .safetensors file as runs and `secure-fl study export` write it; this may be cut short",
        ) from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({type(error).__name__})") from error
