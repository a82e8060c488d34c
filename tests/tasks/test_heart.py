"""Four hospitals, many missing values, and nothing about one site's rows in another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks import create
from secure_fl.tasks.base import Source, Task
from secure_fl.tasks.heart import COLUMNS, HOSPITALS, INPUTS, prepare
from secure_fl.tasks.model_blocks import layout_of
from tests.tasks.learning import train
from tests.tasks.sources import real, share_of

CHOL = COLUMNS.index("chol")
NUMBERS = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak", "ca")
MARKS = INPUTS - len(COLUMNS)  # where the marks for "missing" begin


def patients(n: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Rows as in the published files; the diagnosis follows from two of the columns."""
    rng = np.random.default_rng(seed)
    columns = {
        "age": rng.integers(30, 75, n),
        "sex": rng.integers(0, 2, n),
        "cp": rng.integers(1, 5, n),
        "trestbps": rng.integers(95, 190, n),
        "chol": rng.integers(130, 400, n),
        "fbs": rng.integers(0, 2, n),
        "restecg": rng.integers(0, 3, n),
        "thalach": rng.integers(80, 200, n),
        "exang": rng.integers(0, 2, n),
        "oldpeak": rng.integers(0, 40, n) / 10,
        "slope": rng.integers(1, 4, n),
        "ca": rng.integers(0, 4, n),
        "thal": rng.choice([3, 6, 7], n),
    }
    disease = (columns["cp"] == 4) | (columns["oldpeak"] > 3)
    table = np.stack([*columns.values(), disease * rng.integers(1, 5, n)], axis=1).astype(np.float32)
    holes = rng.random((n, 13)) < 0.1
    holes[:, [COLUMNS.index("cp"), COLUMNS.index("oldpeak")]] = False
    table[:, :13][holes] = np.nan
    return table


def write(path: Path, table: npt.NDArray[np.float32]) -> Path:
    rows = [",".join("?" if np.isnan(value) else f"{value:g}" for value in row) for row in table]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def task() -> Task:
    return create("heart", {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, hospital in enumerate(HOSPITALS):
        write(tmp_path / f"processed.{hospital}.data", patients(40 + 10 * seed, seed))
    return tmp_path


def test_it_learns(task: Task, tmp_path: Path) -> None:
    data = task.load(Source(path=write(tmp_path / "own.csv", patients(800))))
    metrics = train(task, data, epochs=30, learning_rate=1e-2)
    assert metrics.accuracy is not None
    assert metrics.accuracy > 0.9


def test_blocks(task: Task) -> None:
    assert layout_of(task, task.model()).names == ("features", "head")


def test_natural_sites_are_the_hospitals(task: Task, folder: Path) -> None:
    parts = [task.load(share_of(folder, index, 4, kind="natural")) for index in range(4)]
    assert [len(part.train) + len(part.test) for part in parts] == [40, 50, 60, 70]
    assert all(part.train.inputs.shape[1] == INPUTS == 35 for part in parts)


def test_folder_and_npz_hold_the_same(task: Task, folder: Path) -> None:
    table = np.concatenate([patients(40 + 10 * seed, seed) for seed in range(4)])
    site = np.repeat(np.arange(4), [40, 50, 60, 70])
    arrays = {"x": table[:, :13], "y": (table[:, 13] > 0).astype(np.int8), "site": site, "sites": np.array(HOSPITALS)}
    np.savez(folder / "heart.npz", **arrays)  # type: ignore[arg-type]
    for index in range(4):
        one = task.load(share_of(folder, index, 4, kind="natural"))
        other = task.load(share_of(folder / "heart.npz", index, 4, kind="natural"))
        assert torch.equal(one.train.inputs, other.train.inputs)
        assert torch.equal(one.test.targets, other.test.targets)


def test_what_one_hospital_knows_does_not_change_anothers_inputs(task: Task, folder: Path) -> None:
    before = task.load(share_of(folder, 0, 4, kind="natural"))
    other = patients(50, 1)
    other[:, [0, CHOL]] += 50
    write(folder / "processed.hungarian.data", other)
    after = task.load(share_of(folder, 0, 4, kind="natural"))
    assert torch.equal(before.train.inputs, after.train.inputs)
    assert torch.equal(before.test.inputs, after.test.inputs)


def test_numbers_are_scaled_by_typical_values_and_ranges() -> None:
    row = np.array([[65, 1, 1, 110, 900, 0, 0, 20, 1, 3, 1, 2, 3]], np.float32)
    # Age one spread above, blood pressure one below; cholesterol and heart rate beyond what counts.
    expected = [1, 1, -1, (500 - 230) / 50, -1, (50 - 145) / 25, 1, 2, 1]
    assert prepare(row)[0, : len(NUMBERS)].tolist() == pytest.approx(expected)


def test_missing_values_become_typical_and_are_marked() -> None:
    x = patients(50)[:, :13]
    inputs = prepare(x)
    assert np.isfinite(inputs).all()
    assert np.array_equal(inputs[:, MARKS:].astype(bool), np.isnan(x))
    for position, name in enumerate(NUMBERS):
        assert (inputs[np.isnan(x[:, COLUMNS.index(name)]), position] == 0).all()
    # cp, restecg, slope and thal: one of each where known, none where not.
    codes = inputs[:, len(NUMBERS) : MARKS]
    known_codes = sum((~np.isnan(x[:, COLUMNS.index(name)])).astype(int) for name in ("cp", "restecg", "slope", "thal"))
    assert np.array_equal(codes.sum(axis=1), known_codes)


def test_a_column_that_a_hospital_never_measured_is_zero_and_marked() -> None:
    x = patients(50)[:, :13]
    x[:, CHOL] = 0  # How one of the hospitals wrote "not measured".
    x[:, COLUMNS.index("ca")] = np.nan
    inputs = prepare(x)
    for name in ("chol", "ca"):
        assert (inputs[:, NUMBERS.index(name)] == 0).all()
        assert (inputs[:, MARKS + COLUMNS.index(name)] == 1).all()


@pytest.mark.parametrize(
    "text",
    ["", "1,2,3\n", "a" + ",1" * 13 + "\n", "1," * 13 + "5\n1," * 13 + "0\n", "1," * 13 + "?\n" * 2],
)
def test_tables_that_do_not_fit_are_refused(task: Task, tmp_path: Path, text: str) -> None:
    (tmp_path / "own.data").write_text(text)
    with pytest.raises(DataError) as caught:
        task.load(Source(path=tmp_path / "own.data"))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"x": np.zeros((4, 12), np.float32)}, r"x is \[4, 12\]"),
        ({"y": np.array([0, 1, 2, 0])}, "other than 0 and 1"),
        ({"y": np.zeros(4)}, "not numeric"),
        ({"y": np.zeros(3, int)}, r"y is \[3\]"),
        ({"site": np.zeros(3, int)}, "expected"),
        ({"x": np.full((4, 13), 9, np.float32)}, "column cp has values other than"),
        ({"x": np.full((4, 13), np.inf, np.float32)}, "infinite"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(task: Task, tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    arrays = {"x": patients(4)[:, :13], "y": np.array([0, 1, 0, 1]), **change}
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=problem):
        task.load(Source(path=tmp_path / "own.npz"))


def test_no_files_say_what_is_expected_where(task: Task, folder: Path) -> None:
    (folder / "processed.va.data").unlink()
    for source, problem in (
        (Source(path=folder), r"no processed\.va\.data; expected a folder with processed\.cleveland\.data"),
        (Source(path=folder / "absent"), "absent: no such file or folder; expected a folder with"),
        (share_of(), "no data file; expected a folder with"),
    ):
        with pytest.raises(DataError, match=problem) as caught:
            task.load(source)
        assert "\n" not in caught.value.message


def test_records_cannot_be_rotated(task: Task, folder: Path) -> None:
    with pytest.raises(SettingsError, match="turns images and this task has none"):
        task.load(share_of(folder, kind="rotated"))


@pytest.mark.parametrize("file", ["heart_disease", "heart_disease/heart_disease_4hospitals.npz"])
def test_the_real_hospitals(task: Task, file: str) -> None:
    path = real(file)
    parts = [task.load(share_of(path, index, 4, kind="natural")) for index in range(4)]
    assert [len(part.train) + len(part.test) for part in parts] == [303, 294, 123, 200]
    assert all(torch.isfinite(split.inputs).all() for part in parts for split in (part.train, part.test))
    diseased = [float(torch.cat([part.train.targets, part.test.targets]).float().mean()) for part in parts]
    assert diseased == pytest.approx([0.459, 0.361, 0.935, 0.745], abs=1e-3)
    # Switzerland wrote 0 for every cholesterol.
    assert (parts[2].train.inputs[:, MARKS + CHOL] == 1).all()
    metrics = train(task, parts[0], epochs=12, learning_rate=1e-2)
    assert metrics.accuracy is not None
    assert metrics.accuracy > 0.7
