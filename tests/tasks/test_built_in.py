"""The tasks that come with the product learn, and read a site's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks import create
from secure_fl.tasks.base import PartitionSettings, Share, Source, Task
from secure_fl.tasks.model_blocks import initial_blocks, read_blocks, write_blocks
from tests.tasks.learning import fit, train

SHAPES = {"digits": (8, 8), "breast-cancer": (30,)}


def simulated(index: int = 0, of: int = 1, **values: Any) -> Source:
    return Source(share=Share(index=index, of=of, seed=1, partition=PartitionSettings.parse(values)))


def saved(folder: Path, **arrays: Any) -> Source:
    np.savez(folder / "own.npz", **arrays)
    return Source(path=folder / "own.npz")


@pytest.fixture(params=sorted(SHAPES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def task(name: str) -> Task:
    return create(name, {})


@pytest.fixture
def arrays(name: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"x": rng.random((40, *SHAPES[name])), "y": np.arange(40) % 2}


def test_it_learns(task: Task) -> None:
    metrics = train(task, task.load(simulated()), epochs=12, learning_rate=3e-3)
    assert metrics.accuracy is not None
    assert metrics.accuracy > 0.94


def test_digits_learns_with_plain_averaging_over_ten_nodes() -> None:
    task = create("digits", {})
    data = [task.load(simulated(index, 10)) for index in range(10)]
    layout, blocks = initial_blocks(task, 0)
    torch.manual_seed(0)
    model = task.model()
    for _ in range(12):
        updates = []
        for site in data:
            write_blocks(task, model, blocks)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
            fit(task, model, site.train, optimiser, epochs=2, batch_size=16)
            updates.append(read_blocks(task, model))
        blocks = {name: np.mean([u[name] for u in updates], axis=0) for name in layout.names}
    write_blocks(task, model, blocks)
    scores = [task.evaluate(model, site.test).accuracy or 0 for site in data]
    assert np.mean(scores) > 0.95


def test_its_blocks_have_the_documented_names(name: str, task: Task) -> None:
    names = {"digits": ("features", "hidden", "head"), "breast-cancer": ("features", "head")}[name]
    assert tuple(task.blocks(task.model())) == names


def test_a_sites_own_file_is_read(task: Task, arrays: dict[str, Any], tmp_path: Path) -> None:
    data = task.load(saved(tmp_path, **arrays))
    assert len(data.train) + len(data.test) == 40
    assert task.evaluate(task.model(), data.test).samples == len(data.test) > 0


def test_a_file_with_site_labels_can_be_divided_by_them(task: Task, arrays: dict[str, Any], tmp_path: Path) -> None:
    sites = np.array([f"site-{i % 2}" for i in range(40)])
    path = saved(tmp_path, **arrays, sites=sites).path
    data = task.load(Source(path=path, share=simulated(1, 2, kind="natural").share))
    assert set(data.train.targets.tolist()) == {1}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"x": np.zeros((40, 3))}, r"x is \[40, 3\]"),
        ({"y": np.zeros((40, 1), int)}, r"y is \[40, 1\]"),
        ({"y": np.zeros(39, int)}, "differ in length"),
        ({"y": np.full(40, 10)}, "not classes"),
        ({"y": np.full(40, -1)}, "not classes"),
        ({"y": np.zeros(40)}, "not numeric"),
        ({"y": np.array(["a"] * 40)}, "not numeric"),
        ({"y": np.array([None] * 40)}, "cannot be read"),
        ({"sites": np.zeros(3)}, "differ in length"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_line(
    task: Task, arrays: dict[str, Any], tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DataError, match=problem) as caught:
        task.load(saved(tmp_path, **{**arrays, **change}))
    assert "expected a .npz file with arrays x (n, " in caught.value.message
    assert "\n" not in caught.value.message


def test_missing_values_are_refused(task: Task, arrays: dict[str, Any], tmp_path: Path) -> None:
    arrays["x"][3] = np.nan
    with pytest.raises(DataError, match="missing or infinite"):
        task.load(saved(tmp_path, **arrays))


def test_too_few_rows_are_refused(task: Task, arrays: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fewer than 2 rows"):
        task.load(saved(tmp_path, x=arrays["x"][:1], y=arrays["y"][:1]))


def test_a_missing_file_says_what_is_expected_where(task: Task, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.npz: no such file; expected a \.npz file with arrays x"):
        task.load(Source(path=tmp_path / "absent.npz"))
    with pytest.raises(DataError, match="no data file") as caught:
        task.load(Source())
    assert "[datasets.ID]" in caught.value.hint


def test_other_files_are_refused(task: Task, arrays: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="an array is missing"):
        task.load(saved(tmp_path, x=arrays["x"]))
    with pytest.raises(DataError, match="format 'csv' is not supported"):
        task.load(Source(path=tmp_path / "own.npz", format="csv"))
    (tmp_path / "text.npz").write_text("x,y\n1,2\n")
    np.save(tmp_path / "single.npy", arrays["x"])
    for file in (tmp_path / "text.npz", tmp_path / "single.npy", tmp_path):
        with pytest.raises(DataError, match="cannot be read"):
            task.load(Source(path=file))


def test_pixels_on_another_scale_are_refused(tmp_path: Path) -> None:
    source = saved(tmp_path, x=np.full((40, 8, 8), 16.0), y=np.arange(40) % 10)
    with pytest.raises(DataError, match=r"outside \[0, 1\]"):
        create("digits", {}).load(source)


def test_rotated_digits_are_the_same_digits_turned() -> None:
    task = create("digits", {})
    upright = task.load(simulated(1, 4)).train
    turned = task.load(simulated(1, 4, kind="rotated")).train
    assert torch.equal(turned.inputs, torch.rot90(upright.inputs, 1, (2, 3)))
    assert torch.equal(turned.targets, upright.targets)


@pytest.mark.parametrize("index", [0, 1])
def test_measurements_cannot_be_rotated(index: int) -> None:
    with pytest.raises(SettingsError, match="turns images and this task has none"):
        create("breast-cancer", {}).load(simulated(index, 2, kind="rotated"))


def test_measurements_are_scaled_by_the_published_numbers() -> None:
    data = create("breast-cancer", {}).load(simulated())
    rows = torch.cat([data.train.inputs, data.test.inputs])
    assert rows.mean(dim=0).tolist() == pytest.approx([0] * 30, abs=0.03)
    assert rows.std(dim=0).tolist() == pytest.approx([1] * 30, abs=0.01)
