"""Arrays on disk: what we write is safetensors, and what is read is what was written."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save_file

from secure_fl.checkpoints import load_arrays, open_arrays, save_arrays
from secure_fl.errors import StorageError
from tests.protect.laws import law

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@law
@given(st.dictionaries(st.text("abc/.é", min_size=1, max_size=6), shapes, max_size=4))
def test_others_read_what_we_write(tmp_path_factory: pytest.TempPathFactory, given: dict[str, tuple[int, ...]]) -> None:
    path = tmp_path_factory.mktemp("arrays") / "x.safetensors"
    arrays = {name: np.arange(np.prod(shape), dtype="<f4").reshape(shape) for name, shape in given.items()}
    save_arrays(path, arrays)
    for found in (load(path.read_bytes()), load_arrays(path)):
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert found[name].shape == array.shape
            assert found[name].tobytes() == array.tobytes()


def test_we_read_what_others_write(tmp_path: Path) -> None:
    save_file({"b": np.ones((2, 3), "<f4"), "a": np.zeros(0, "<f4")}, tmp_path / "x")
    assert {name: array.shape for name, array in load_arrays(tmp_path / "x").items()} == {"a": (0,), "b": (2, 3)}


def test_arrays_are_read_one_at_a_time(tmp_path: Path) -> None:
    save_arrays(tmp_path / "x", {"a": np.ones(3, "<f4"), "b": np.arange(6, dtype="<f4")[::2]})
    with open_arrays(tmp_path / "x") as arrays:
        assert (sorted(arrays), len(arrays), "c" in arrays) == (["a", "b"], 2, False)
        assert arrays["b"].tolist() == [0, 2, 4]
        with pytest.raises(KeyError):
            arrays["c"]


def test_no_file_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        load_arrays(tmp_path / "x")


def test_a_file_that_is_not_there_is_called_that(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"absent\.safetensors: there is no such file") as caught:
        load_arrays(tmp_path / "absent.safetensors")
    assert caught.value.hint == "correct the path"


def written(path: Path, dtype: str, shape: list[int], size: int) -> Path:
    """A file of one tensor, by hand."""
    header = json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    return path


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [("BF16", [8], 16), ("F8_E4M3", [16], 16), ("C64", [2], 16), ("F32", [1] * 100 + [4], 16), ("F32", [0, 2**62], 0)],
    ids=["bfloat16", "float8", "complex", "many dimensions", "endless"],
)
def test_a_tensor_that_numpy_has_no_type_for_is_named(tmp_path: Path, dtype: str, shape: list[int], size: int) -> None:
    """A model that somebody brings may hold anything that torch has."""
    path = written(tmp_path / "model.safetensors", dtype, shape, size)
    with pytest.raises(StorageError, match="tensor 'a' is of a type"):
        load_arrays(path)
    assert load_arrays(written(path, "F16", [8], 16))["a"].dtype == "float32"
