"""MNIST, Fashion-MNIST and CIFAR-10 from files as their publishers make them, and from .npz files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks import create
from secure_fl.tasks.base import Source, Task
from secure_fl.tasks.model_blocks import layout_of
from tests.tasks.learning import train
from tests.tasks.sources import real, share_of

SHAPES = {"mnist": (28, 28), "fashion": (28, 28), "cifar10": (32, 32, 3)}
TRAIN, TEST = 60, 20
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def images(shape: tuple[int, ...], n: int = TRAIN + TEST) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images that show their class: a bright row of pixels at a height of its own."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 60, (n, *shape), np.uint8), (np.arange(n) % 10).astype(np.uint8)
    x[np.arange(n), 2 * y] = 250
    return x, y


def write_idx(path: Path, array: npt.NDArray[np.uint8], *, packed: bool = False) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    raw = header + array.tobytes()
    if packed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(raw))
    else:
        path.write_bytes(raw)


def write_mnist(folder: Path, *, packed: bool = False, separator: str = "-") -> Path:
    x, y = images((28, 28))
    arrays = (x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:])
    for name, array in zip(IDX_FILES, arrays, strict=True):
        write_idx(folder / name.replace("-idx", f"{separator}idx"), array, packed=packed)
    return folder


def write_npz(folder: Path, name: str, **changes: Any) -> Path:
    x, y = images(SHAPES[name])
    arrays = {"x_train": x[:TRAIN], "y_train": y[:TRAIN], "x_test": x[TRAIN:], "y_test": y[TRAIN:], **changes}
    np.savez(folder / "images.npz", **arrays)
    return folder / "images.npz"


@pytest.fixture(params=sorted(SHAPES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def task(name: str) -> Task:
    return create(name, {})


def test_blocks_and_head(name: str) -> None:
    for network, blocks in (("cnn", ("conv1", "conv2", "hidden", "head")), ("mlp", ("input", "hidden", "head"))):
        task = create(name, {"network": network, "hidden": 8})
        assert layout_of(task, task.model()).names == blocks
        assert task.head(blocks) == ("head",)


@pytest.mark.parametrize("network", ["cnn", "mlp"])
def test_it_learns(name: str, network: str, tmp_path: Path) -> None:
    x, y = images(SHAPES[name], 200)
    np.savez(tmp_path / "own.npz", x=x, y=y)
    task = create(name, {"network": network, "hidden": 32})
    metrics = train(task, task.load(Source(path=tmp_path / "own.npz")), epochs=8, learning_rate=3e-3)
    assert metrics.accuracy is not None
    assert metrics.accuracy > 0.9


def test_a_sites_own_file_keeps_its_publishers_test_set(name: str, task: Task, tmp_path: Path) -> None:
    data = task.load(Source(path=write_npz(tmp_path, name)))
    x, y = images(SHAPES[name])
    assert data.test.targets.tolist() == y[TRAIN:].tolist()
    expected = torch.from_numpy(x[TRAIN:]).float() / 255
    expected = expected[:, None] if expected.ndim == 3 else expected.permute(0, 3, 1, 2)
    assert torch.allclose(data.test.inputs, expected)
    assert len(data.train) == TRAIN
    assert data.train.targets.dtype == torch.int64


def test_simulated_sites_share_all_images(name: str, task: Task, tmp_path: Path) -> None:
    path = write_npz(tmp_path, name)
    parts = [task.load(share_of(path, index, 4)) for index in range(4)]
    assert [len(part.train) + len(part.test) for part in parts] == [20] * 4
    assert all(len(part.train) > len(part.test) > 0 for part in parts)
    rows = torch.cat([split.inputs for part in parts for split in (part.train, part.test)])
    assert len(torch.unique(rows.flatten(1), dim=0)) == TRAIN + TEST


def test_turned_images_are_the_same_images_turned(name: str, task: Task, tmp_path: Path) -> None:
    path = write_npz(tmp_path, name)
    upright = task.load(share_of(path, 1, 4)).train
    turned = task.load(share_of(path, 1, 4, kind="rotated")).train
    assert torch.equal(turned.inputs, torch.rot90(upright.inputs, 1, (2, 3)))
    assert torch.equal(turned.targets, upright.targets)


def test_images_with_site_labels_are_divided_by_them(name: str, task: Task, tmp_path: Path) -> None:
    x, y = images(SHAPES[name])
    np.savez(tmp_path / "own.npz", x=x, y=y, sites=y % 2)
    data = task.load(share_of(tmp_path / "own.npz", 1, 2, kind="natural"))
    assert set(data.train.targets.tolist()) == {1, 3, 5, 7, 9}


def test_a_limit_takes_the_same_few_images_everywhere(name: str, tmp_path: Path) -> None:
    path = write_npz(tmp_path, name)
    task = create(name, {"limit": 40})
    parts = [task.load(share_of(path, index, 2)) for index in range(2)]
    rows = torch.cat([split.inputs for part in parts for split in (part.train, part.test)]).flatten(1)
    assert len(torch.unique(rows, dim=0)) == 40


def test_a_limit_is_refused_at_a_site_with_its_own_images(name: str, tmp_path: Path) -> None:
    """Which images are drawn depends on how many there are: one more or fewer would change the others."""
    path = write_npz(tmp_path, name)
    with pytest.raises(SettingsError, match="limit is for simulations"):
        create(name, {"limit": 40}).load(Source(path=path))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("separator", ["-", "."])
def test_idx_files_hold_what_the_npz_file_holds(tmp_path: Path, packed: bool, separator: str) -> None:
    folder = tmp_path / "idx"
    folder.mkdir()
    write_mnist(folder, packed=packed, separator=separator)
    for name in ("mnist", "fashion"):
        task = create(name, {})
        one, other = task.load(Source(path=folder)), task.load(Source(path=write_npz(tmp_path, name)))
        assert torch.equal(one.train.inputs, other.train.inputs)
        assert torch.equal(one.test.targets, other.test.targets)


@pytest.mark.parametrize("missing", IDX_FILES)
def test_a_missing_idx_file_is_named(tmp_path: Path, missing: str) -> None:
    write_mnist(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(DataError, match=f"no {missing} or {missing}.gz; expected a folder with") as caught:
        create("mnist", {}).load(Source(path=tmp_path))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (IDX_FILES[0], b"\0\0\x08\x03" + np.array([60, 28, 28], ">u4").tobytes(), "0 bytes after the header"),
        (IDX_FILES[0], b"\0\0\x08\x03" + np.array([2**31, 2**31, 4], ">u4").tobytes(), "0 bytes after the header"),
        (IDX_FILES[0], b"\0\0\x08\x01" + np.array([0], ">u4").tobytes(), "not an IDX file"),
        (IDX_FILES[1], b"\0\0\x08\x01" + np.array([3], ">u4").tobytes() + b"abc", "differ in number"),
        (IDX_FILES[1], b"\0\0\x08\x01" + np.array([60], ">u4").tobytes() + bytes([10] * 60), "classes outside"),
        (IDX_FILES[3], b"", "not an IDX file"),
    ],
)
def test_idx_files_that_do_not_fit_are_refused(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (write_mnist(tmp_path) / name).write_bytes(content)
    with pytest.raises(DataError, match=problem):
        create("mnist", {}).load(Source(path=tmp_path))


def test_a_damaged_gz_file_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, packed=True)
    file = tmp_path / f"{IDX_FILES[0]}.gz"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read"):
        create("mnist", {}).load(Source(path=tmp_path))


def write_cifar(folder: Path) -> Path:
    x, y = images((32, 32, 3))
    records = np.concatenate([y[:, None], np.moveaxis(x, 3, 1).reshape(len(x), -1)], axis=1)
    for number, part in enumerate(np.split(records[:TRAIN], 5), 1):
        (folder / f"data_batch_{number}.bin").write_bytes(part.tobytes())
    (folder / "test_batch.bin").write_bytes(records[TRAIN:].tobytes())
    return folder


def test_binary_batches_hold_what_the_npz_file_holds(tmp_path: Path) -> None:
    folder = tmp_path / "batches"
    folder.mkdir()
    task = create("cifar10", {})
    one = task.load(Source(path=write_cifar(folder)))
    other = task.load(Source(path=write_npz(tmp_path, "cifar10")))
    assert torch.equal(one.train.inputs, other.train.inputs)
    assert torch.equal(one.test.inputs, other.test.inputs)
    assert torch.equal(one.test.targets, other.test.targets)


def test_batches_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    task = create("cifar10", {})
    write_cifar(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(b"123")
    with pytest.raises(DataError, match="3 bytes are not records of 3073"):
        task.load(Source(path=tmp_path))
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"no data_batch_3\.bin; expected a folder with"):
        task.load(Source(path=tmp_path))


def test_no_files_say_what_is_expected_where(task: Task, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent: no such file or folder; expected a folder with") as caught:
        task.load(Source(path=tmp_path / "absent"))
    assert "\n" not in caught.value.message
    with pytest.raises(DataError, match="expected a folder with") as caught:
        task.load(share_of())
    assert "simulation.path" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"x_train": np.zeros((60, 5, 5), np.uint8)}, "another shape"),
        ({"x_train": np.zeros((60, 5, 5)), "x_test": np.zeros((20, 5, 5))}, "not bytes"),
        ({"x_train": np.zeros((60, 5, 5), np.uint8), "x_test": np.zeros((20, 5, 5), np.uint8)}, r"images are \[5, 5\]"),
        ({"y_train": np.zeros(60)}, "missing or has another shape"),
        ({"y_train": np.zeros(59, np.uint8)}, "differ in number"),
        ({"y_test": np.full(20, 10, np.uint8)}, "classes outside"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    name: str, task: Task, tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        task.load(Source(path=write_npz(tmp_path, name, **change)))


@pytest.mark.parametrize(
    ("name", "file", "rows"),
    [
        ("mnist", "mnist.npz", (60_000, 10_000)),
        ("fashion", "fashion_mnist.npz", (60_000, 10_000)),
        ("cifar10", "cifar10_subset.npz", (5_000, 1_000)),
    ],
)
def test_the_real_images(name: str, file: str, rows: tuple[int, int]) -> None:
    path = real(file)
    data = create(name, {}).load(Source(path=path))
    assert (len(data.train), len(data.test)) == rows
    assert set(data.train.targets.tolist()) == set(data.test.targets.tolist()) == set(range(10))
    assert data.train.inputs.min() == 0
    assert data.train.inputs.max() == 1
    few = create(name, {"limit": 1500})
    metrics = train(few, few.load(share_of(path)), epochs=2, learning_rate=2e-3)
    assert metrics.accuracy is not None
    # One look at 1,200 images: far above the 0.1 of guessing, which wrong labels would give.
    assert metrics.accuracy > (0.2 if name == "cifar10" else 0.7)
