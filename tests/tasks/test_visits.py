"""Patients with several visits: alike within a patient, whole on one side of the cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks import create
from secure_fl.tasks.base import LocalData, Source, Task
from secure_fl.tasks.model_blocks import layout_of
from secure_fl.tasks.visits import COLUMNS, MOST_VISITS
from tests.tasks.learning import train
from tests.tasks.sources import share_of


@pytest.fixture
def task() -> Task:
    return create("visits", {})


def hospital(task: Task, index: int = 0, **values: float) -> LocalData:
    return task.load(share_of(None, index, 4, kind="natural", **values))


def groups_of(data: LocalData) -> tuple[torch.Tensor, torch.Tensor]:
    assert data.train.groups is not None
    assert data.test.groups is not None
    return data.train.groups, data.test.groups


def test_it_learns(task: Task) -> None:
    data = hospital(task)
    metrics = train(task, data, epochs=20, learning_rate=1e-2)
    assert metrics.accuracy is not None
    assert metrics.accuracy > 0.75
    usual = data.test.targets.bincount().max() / len(data.test)
    assert metrics.accuracy > float(usual) + 0.1


def test_patients_have_one_to_eight_visits_on_one_side(task: Task) -> None:
    train_groups, test_groups = groups_of(hospital(task))
    assert not set(train_groups.tolist()) & set(test_groups.tolist())
    visits = torch.cat([train_groups, test_groups]).bincount()
    assert len(visits) == 200
    assert (int(visits.min()), int(visits.max())) == (1, MOST_VISITS)


def test_a_patients_visits_are_alike(task: Task) -> None:
    data = hospital(task)
    groups, _ = groups_of(data)
    within = torch.stack(
        [
            data.train.inputs[groups == one].std(dim=0).mean()
            for one in set(groups.tolist())
            if (groups == one).sum() > 4
        ]
    )
    assert float(within.mean()) < 0.6 * float(data.train.inputs.std(dim=0).mean())


def test_hospitals_and_seeds_differ_and_nothing_else(task: Task) -> None:
    one, again, other = hospital(task), hospital(task), hospital(task, 1)
    assert torch.equal(one.train.inputs, again.train.inputs)
    assert not torch.equal(one.train.inputs[:20], other.train.inputs[:20])


def test_a_hospital_with_more_patients_has_the_same_ones_first() -> None:
    few, many = (hospital(create("visits", {"patients": count})) for count in (50, 100))
    groups, _ = groups_of(many)
    assert torch.equal(few.train.inputs, many.train.inputs[groups < 50])


def test_blocks(task: Task) -> None:
    assert layout_of(task, task.model()).names == ("features", "head")


def test_a_site_may_have_a_file_of_its_own(task: Task, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((90, len(COLUMNS))) * 100, np.arange(90) % 2
    patients = np.array([f"patient {number // 3}" for number in range(90)])
    np.savez(tmp_path / "own.npz", x=x, y=y, groups=patients)
    data = task.load(Source(path=tmp_path / "own.npz"))
    train_groups, test_groups = groups_of(data)
    assert len({*train_groups.tolist(), *test_groups.tolist()}) == 30
    assert torch.cat([data.train.inputs, data.test.inputs]).abs().max() <= 5
    np.savez(tmp_path / "own.npz", x=x, y=y)
    with pytest.raises(DataError, match="no array groups"):
        task.load(Source(path=tmp_path / "own.npz"))
    np.savez(tmp_path / "own.npz", x=x, y=y, groups=patients[:5])
    with pytest.raises(DataError, match="differ in length"):
        task.load(Source(path=tmp_path / "own.npz"))


def test_only_natural_sites_are_generated(task: Task) -> None:
    with pytest.raises(SettingsError, match="has patients of its own") as caught:
        task.load(share_of())
    assert "natural" in caught.value.hint
