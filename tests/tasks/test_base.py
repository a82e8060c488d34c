"""What a task gets for free."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import nn

from secure_fl.errors import DataError
from secure_fl.tasks.base import LocalData, Source, Split, Task, TaskSettings


class Line(Task):
    kind: ClassVar[Literal["classification", "regression"]] = "regression"

    def model(self) -> nn.Module:
        layers = OrderedDict(features=nn.Linear(2, 3), act=nn.ReLU(), drop=nn.Dropout(), head=nn.Linear(3, 1))
        return nn.Sequential(layers)

    def load(self, source: Source) -> LocalData:
        raise NotImplementedError


class Classes(Line):
    kind = "classification"


def rows(n: int, targets: torch.Tensor) -> Split:
    return Split(inputs=torch.randn(n, 2), targets=targets)


def test_blocks_are_the_children_with_state_and_the_last_is_the_head() -> None:
    task = Line(TaskSettings())
    names = tuple(task.blocks(task.model()))
    assert names == ("features", "head")
    assert task.head(names) == ("head",)
    assert task.head(()) == ()


def test_a_child_with_float_buffers_only_is_a_block() -> None:
    model = nn.Sequential(OrderedDict(norm=nn.BatchNorm1d(2, affine=False), flat=nn.Flatten()))
    assert tuple(Line(TaskSettings()).blocks(model)) == ("norm",)


@pytest.mark.parametrize("batch_size", [1, 7, 1024])
def test_metrics_are_means_over_samples_whatever_the_batches(batch_size: int) -> None:
    torch.manual_seed(0)
    task, split = Line(TaskSettings()), rows(20, torch.randn(20, 1))
    model = task.model()
    metrics = task.evaluate(model, split, batch_size)
    expected = float(((model.eval()(split.inputs) - split.targets) ** 2).mean().detach())
    assert metrics.loss == pytest.approx(expected, rel=1e-5)
    assert metrics.mse == pytest.approx(expected, rel=1e-5)
    assert metrics.accuracy is None
    assert metrics.samples == 20


def test_accuracy_counts_the_largest_output() -> None:
    split = Split(inputs=torch.eye(4), targets=torch.tensor([0, 1, 0, 0]))
    metrics = Classes(TaskSettings()).evaluate(nn.Identity(), split)
    assert metrics.accuracy == 0.5
    assert metrics.mse is None
    # Two of four rows give the target's logit 1 and the others 0: -log softmax by hand.
    normaliser = math.log(math.e + 3)
    assert metrics.loss == pytest.approx((2 * (normaliser - 1) + 2 * normaliser) / 4)


def test_evaluation_restores_each_module_mode() -> None:
    task = Line(TaskSettings())
    model = task.model().train()
    model.get_submodule("features").eval()
    before = [module.training for module in model.modules()]
    task.evaluate(model, rows(4, torch.zeros(4, 1)))
    assert [module.training for module in model.modules()] == before
    with pytest.raises(DataError):
        task.evaluate(model, rows(4, torch.zeros(4)))
    assert [module.training for module in model.modules()] == before


def test_an_empty_split_is_refused() -> None:
    task = Line(TaskSettings())
    with pytest.raises(DataError, match="no samples"):
        task.evaluate(task.model(), rows(0, torch.zeros(0, 1)))


def test_a_regression_never_broadcasts() -> None:
    with pytest.raises(DataError, match=r"\[4, 1\] for targets of shape \[4\]"):
        Line(TaskSettings()).loss(torch.zeros(4, 1), torch.zeros(4))


def test_a_split_has_as_many_targets_as_inputs_and_prints_none_of_them() -> None:
    with pytest.raises(DataError, match="3 inputs and 4 targets"):
        rows(3, torch.zeros(4))
    split = Split(inputs=torch.full((3, 2), 41.5), targets=torch.full((3,), 41.5))
    assert repr(split) == "Split(3 samples, inputs [2])"
    assert "41.5" not in repr(LocalData(train=split, test=split))


def test_cut_makes_reals_float32_and_leaves_integers() -> None:
    data = LocalData.cut(np.arange(8.0).reshape(4, 2), np.arange(4), np.array([0, 2, 3]), np.array([1]))
    assert data.train.inputs.dtype == torch.float32
    assert data.train.targets.tolist() == [0, 2, 3]
    assert data.test.inputs.tolist() == [[2.0, 3.0]]


def test_cut_makes_tensors_with_the_strides_of_their_shape() -> None:
    images = np.zeros((4, 5, 5), np.float32)[:, None]
    assert LocalData.cut(images, np.arange(4), np.arange(3), np.array([3])).train.inputs.stride() == (25, 25, 5, 1)
    turned = np.moveaxis(np.zeros((4, 5, 5, 3)), 3, 1)
    assert LocalData.cut(turned, np.arange(4), np.arange(3), np.array([3])).train.inputs.stride() == (75, 25, 5, 1)


def test_groups_are_cut_along_and_checked() -> None:
    groups = np.array(["a", "b", "a", "c"])
    data = LocalData.cut(np.zeros((4, 2)), np.arange(4), np.array([0, 2]), np.array([1, 3]), groups=groups)
    assert data.train.groups is not None
    assert data.train.groups.dtype == torch.int64
    assert len(set(data.train.groups.tolist())) == 1
    assert LocalData.cut(np.zeros((4, 2)), np.arange(4), np.array([0]), np.array([1])).train.groups is None
    for wrong in (torch.zeros(3, dtype=torch.int64), torch.zeros(4), torch.zeros(4, 1, dtype=torch.int64)):
        with pytest.raises(DataError, match="one int64 number for each row"):
            Split(inputs=torch.zeros(4, 2), targets=torch.zeros(4), groups=wrong)
