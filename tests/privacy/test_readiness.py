"""What is refused before noise is added, each with a model or task that would get past the other checks."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn import functional

from secure_fl.errors import DataError, NotPrivateError
from secure_fl.privacy.readiness import require_groups, require_layers, require_preprocessing, require_ready
from secure_fl.tasks import BUILT_IN, create
from secure_fl.tasks.base import LocalData, Preprocessing, Source, Split, Task, TaskSettings
from tests.tasks.sources import share_of
from tests.tasks.test_preprocessing import SITES


class Plain(Task):
    """Two classes of six numbers; the model is given to it."""

    kind: ClassVar[Literal["classification", "regression"]] = "classification"
    preprocessing: ClassVar[Preprocessing] = "none"

    def model(self) -> nn.Module:
        return nn.Sequential(OrderedDict(features=nn.Linear(6, 5), act=nn.ReLU(), head=nn.Linear(5, 2)))

    def load(self, source: Source) -> LocalData:
        raise NotImplementedError


def rows(inputs: Tensor | None = None, groups: Tensor | None = None) -> LocalData:
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0)) if inputs is None else inputs
    split = Split(inputs=x, targets=torch.arange(len(x)) % 2, groups=groups)
    return LocalData(train=split, test=split)


def ready(middle: nn.Module | None = None, task: type[Task] = Plain, data: LocalData | None = None) -> None:
    made = task(TaskSettings())
    torch.manual_seed(0)
    model = made.model()
    if middle is not None:
        model = nn.Sequential(OrderedDict(features=nn.Linear(6, 5), middle=middle, head=nn.Linear(5, 2)))
    require_ready(made, model, data or rows(), unit="record")


def passes_opacus(module: nn.Module) -> bool:
    return not ModuleValidator.validate(module.train())


# --- what is fine -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_task_is_ready(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {}
    path: Path | None = None
    if name in SITES:
        settings, table, write = SITES[name]
        path = write(tmp_path, table)
    task = create(name, settings)
    data = task.load(Source(path=path) if path else share_of(None, 0, 4, kind="natural"))
    require_ready(task, task.model(), data, unit="group" if name == "visits" else "record")


@pytest.mark.parametrize(
    ("name", "settings", "inputs"),
    [
        ("mnist", {"network": "mlp"}, torch.rand(8, 1, 28, 28)),
        ("bearings", {"network": "cells"}, torch.rand(8, 512)),
        ("agnews", {"bigrams": True, "buckets": 50}, torch.randint(0, 50, (8, 64))),
    ],
)
def test_so_are_their_other_networks(name: str, settings: dict[str, Any], inputs: Tensor) -> None:
    task = create(name, settings)
    require_ready(task, task.model(), rows(inputs), unit="record")


@pytest.mark.parametrize("family", ["sigmoid", "gaussian", "network"])
def test_so_are_the_families_of_printers(family: str) -> None:
    task, x = create("printers", {"family": family}), torch.linspace(0, 2, 20)[:, None]
    split = Split(inputs=x, targets=2 * x)
    require_ready(task, task.model(), LocalData(train=split, test=split), unit="record")


@pytest.mark.parametrize(
    "middle",
    [nn.GroupNorm(1, 5), nn.LayerNorm(5), nn.Dropout(0.5), nn.Sequential(nn.Linear(5, 5), nn.AlphaDropout(0.3))],
)
def test_layers_in_which_no_rows_meet_are_fine(middle: nn.Module) -> None:
    ready(middle)


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([1.0, 1, 0, 1, 1]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.get_buffer("mask")


def test_a_buffer_that_never_changes_is_fine() -> None:
    ready(Constant())


def test_parameters_that_are_frozen_or_unused_are_fine() -> None:
    task = Plain(TaskSettings())
    model = task.model()
    model.get_submodule("features").requires_grad_(False)
    require_ready(task, model, rows(), unit="record")
    unused = nn.Linear(5, 5)
    middle = nn.Identity()
    middle.spare = unused
    ready(middle)


def test_nothing_is_left_behind() -> None:
    task = Plain(TaskSettings())
    model = task.model()
    before, mode = deepcopy(model.state_dict()), model.eval().training
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    require_ready(task, model, rows(), unit="record")
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training is mode
    assert not any(hasattr(parameter, "grad_sample") or parameter.grad is not None for parameter in model.parameters())


# --- preprocessing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", ["data-dependent", "unknown"])
def test_rows_that_are_not_prepared_one_by_one_are_refused(declared: Preprocessing) -> None:
    class Other(Plain):
        preprocessing = declared

    with pytest.raises(NotPrivateError, match="prepares") as caught:
        ready(task=Other)
    assert 'preprocessing = "' in caught.value.hint
    with pytest.raises(NotPrivateError):
        require_preprocessing(Other(TaskSettings()))


# --- groups -----------------------------------------------------------------------------------------------


def test_groups_that_nobody_named_are_refused() -> None:
    with pytest.raises(NotPrivateError, match="which rows belong to one patient") as caught:
        require_groups(rows(), unit="group")
    assert "record" in caught.value.hint
    require_groups(rows(), unit="record")


def test_a_group_on_both_sides_is_refused() -> None:
    with pytest.raises(NotPrivateError, match="rows to train on and rows to test on"):
        require_groups(rows(groups=torch.arange(20)), unit="group")


# --- layers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("middle", [nn.BatchNorm1d(5), nn.BatchNorm1d(5, track_running_stats=False)])
def test_batch_normalisation_is_refused(middle: nn.Module) -> None:
    with pytest.raises(NotPrivateError, match="BatchNorm") as caught:
        require_layers(nn.Sequential(nn.Linear(6, 5), middle))
    assert "GroupNorm" in caught.value.hint
    with pytest.raises(NotPrivateError):
        ready(middle)


@pytest.mark.parametrize("layer", [nn.LSTM(5, 5), nn.GRU(5, 5), nn.MultiheadAttention(5, 1)])
def test_layers_that_opacus_has_its_own_of_are_refused(layer: nn.Module) -> None:
    with pytest.raises(NotPrivateError, match="without a gradient of its own") as caught:
        require_layers(layer)
    assert "DPLSTM" in caught.value.hint


class OwnNorm(nn.BatchNorm1d):
    """Opacus looks at a layer's exact type."""


class RunningMean(nn.Module):
    """Moved by every batch, and no layer that anybody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        mean = self.get_buffer("mean")
        if self.training:
            mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x - mean


@pytest.mark.parametrize("middle", [nn.BatchNorm1d(5, affine=False), OwnNorm(5), RunningMean()])
def test_a_buffer_that_training_changes_is_refused(middle: nn.Module) -> None:
    assert passes_opacus(deepcopy(middle))
    with pytest.raises(NotPrivateError, match=r"training changes the model's middle\.(running_)?mean"):
        ready(middle)


class Memory(nn.Module):
    """The same in an attribute, which is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(5)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
        return x - self.seen


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


@pytest.mark.parametrize("middle", [Memory(), Noise()])
def test_a_model_that_remembers_rows_is_refused(middle: nn.Module) -> None:
    assert passes_opacus(deepcopy(middle))
    with pytest.raises(NotPrivateError, match="remembers rows, or draws at random"):
        ready(middle)


class Centred(nn.Module):
    """Rows meet, and nothing is kept."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, x: Tensor) -> Tensor:
        return x - self.strength * x.mean(0)


@pytest.mark.parametrize("middle", [Centred(1), Centred(0.01)])
def test_a_layer_in_which_rows_meet_is_refused(middle: nn.Module) -> None:
    assert passes_opacus(deepcopy(middle))
    with pytest.raises(NotPrivateError, match="not the one it has alone"):
        ready(middle)


def test_batch_normalisation_that_opacus_does_not_see_is_refused() -> None:
    middle = nn.BatchNorm1d(5, affine=False, track_running_stats=False)
    assert passes_opacus(deepcopy(middle))
    with pytest.raises(NotPrivateError, match="cannot be trained on a single row"):
        ready(middle)


class Pictures(Plain):
    def model(self) -> nn.Module:
        layers = OrderedDict(one=nn.Conv2d(3, 4, 3), two=nn.Conv2d(4, 4, 3), flat=nn.Flatten(), head=nn.Linear(64, 2))
        return nn.Sequential(layers)


def test_images_whose_gradients_opacus_gets_wrong_are_refused() -> None:
    """Opacus 1.6 reads images as if they were stored channel by channel, however they are."""
    images = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    ready(task=Pictures, data=rows(images))
    with pytest.raises(NotPrivateError, match="not the one it has alone") as caught:
        ready(task=Pictures, data=rows(images.contiguous(memory_format=torch.channels_last)))
    assert "channels_last" in caught.value.hint


class Weighted(Plain):
    """torch divides by the sum of the batch's weights: each row's part depends on who else is there."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, weight=torch.tensor([0.2, 0.8]))


class Summed(Plain):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="sum")


@pytest.mark.parametrize("task", [Weighted, Summed])
def test_a_loss_that_is_no_plain_mean_over_rows_is_refused(task: type[Task]) -> None:
    with pytest.raises(NotPrivateError, match="not the one it has alone") as caught:
        ready(task=task)
    assert "plain mean" in caught.value.hint


class Words(Plain):
    def model(self) -> nn.Module:
        return nn.Sequential(OrderedDict(words=nn.EmbeddingBag(50, 5), head=nn.Linear(5, 2)))


def test_an_embedding_bag_passes_opacus_and_is_refused() -> None:
    tokens = rows(torch.randint(0, 50, (20, 7), generator=torch.Generator().manual_seed(0)))
    assert passes_opacus(Words(TaskSettings()).model())
    with pytest.raises(NotPrivateError, match="cannot be computed") as caught:
        ready(task=Words, data=tokens)
    assert "nn.Embedding" in caught.value.hint


# --- data -------------------------------------------------------------------------------------------------


def test_data_without_a_gradient_are_a_matter_of_the_data() -> None:
    with pytest.raises(DataError, match="fewer than 2 rows"):
        ready(data=rows(torch.zeros(1, 6)))
    with pytest.raises(DataError, match="rows of the local data have no finite gradient"):
        ready(data=rows(torch.full((4, 6), float("inf"))))


def test_opacus_is_imported_only_when_it_is_used() -> None:
    program = "import sys, secure_fl.privacy.readiness; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert {"opacus", "torch"}.isdisjoint(run.stdout.split())
