"""Gradients per unit: as Opacus has them, one clip each, and no unit touches another."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn import functional

from secure_fl import tasks
from secure_fl.errors import DataError, NotPrivateError
from secure_fl.privacy import per_unit
from secure_fl.privacy.per_unit import PerUnitGradients, opacus_gradients, row_losses
from secure_fl.privacy.quick import NotQuickError, quick_gradients
from secure_fl.privacy.rows import RowLosses, Rows
from secure_fl.tasks.base import LocalData, Source, Task, TaskSettings
from tests.tasks.test_per_sample_gradients import CLASSES, MODELS, VALUES

# --- the gradients ----------------------------------------------------------------------------------------------

# What the quick path leaves to Opacus, of the built-in models: parameters that no common layer has.
FOR_OPACUS = {("printers", "gaussian")}


def rows_of(inputs: Tensor, targets: Tensor, unit: list[int] | None = None) -> Rows:
    owner = torch.arange(len(inputs)) if unit is None else torch.tensor(unit)
    units = int(owner.max()) + 1 if len(owner) else 0
    return Rows(inputs=inputs, targets=targets, unit=owner, units=units, single=unit is None)


def written_out(found: Any, units: int) -> list[Tensor]:
    """The gradient of each unit, parameter by parameter; zeros where the loss does not depend on one."""
    picked = torch.eye(units)
    return [
        torch.stack([torch.zeros_like(p) if g is None else g.weighted_sum(weights) for weights in picked])
        for p, g in found
    ]


def require_as_opacus(model: nn.Module, rows: Rows, losses: RowLosses) -> None:
    quick, opacus = quick_gradients(model, rows, losses), opacus_gradients(model, rows, losses)
    assert [id(parameter) for parameter, _ in quick] == [id(parameter) for parameter, _ in opacus]
    for ours, theirs in zip(written_out(quick, rows.units), written_out(opacus, rows.units), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    for (_, mine), (_, other) in zip(quick, opacus, strict=True):
        if mine is not None and other is not None:
            assert torch.allclose(mine.squared_norms(rows.units), other.squared_norms(rows.units), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("unit", [None, [0, 1, 0, 2], [0, 0, 0, 0]])
@pytest.mark.parametrize(("name", "settings", "inputs", "targets"), MODELS)
def test_the_quick_path_finds_opacus_gradients(
    name: str, settings: dict[str, Any], inputs: Tensor, targets: Tensor, unit: list[int] | None
) -> None:
    task = tasks.create(name, settings)
    torch.manual_seed(0)
    model, rows = task.model(), rows_of(inputs, targets, unit)
    if (name, settings.get("family")) in FOR_OPACUS:
        with pytest.raises(NotQuickError):
            quick_gradients(model, rows, row_losses(task))
        return
    require_as_opacus(model, rows, row_losses(task))


class Places(nn.Module):
    """A linear layer at every place of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.out = nn.Embedding(9, 6), nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.places(self.words(x))).mean(dim=1))  # type: ignore[no-any-return]


ZOO = [
    (nn.Sequential(nn.Conv1d(2, 3, 3, stride=2, padding=2, dilation=2), nn.Flatten(), nn.LazyLinear(2)), (2, 11)),
    (nn.Sequential(nn.Conv2d(2, 3, (3, 2), stride=(1, 2), bias=False), nn.Flatten(), nn.LazyLinear(2)), (2, 7, 6)),
    (nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)), (2, 5, 5)),
    (nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 2, bias=False)), (6,)),
    (nn.Sequential(nn.Unflatten(1, (2, 3)), nn.LayerNorm((2, 3)), nn.Flatten(), nn.Linear(6, 2)), (6,)),
    (nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 2)), (6,)),  # changes what came out
]


@pytest.mark.parametrize("unit", [None, [0, 1, 1, 1]])
@pytest.mark.parametrize(("model", "shape"), ZOO)
def test_the_quick_path_knows_the_options_of_its_layers(
    model: nn.Module, shape: tuple[int, ...], unit: list[int] | None
) -> None:
    inputs = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    model(inputs)  # Lazy layers find their sizes.
    if any(type(module) is nn.ReLU and module.inplace for module in model.modules()):
        # Opacus' hooks cannot stand it, so row by row.
        rows = rows_of(inputs, CLASSES, unit)
        found = written_out(quick_gradients(model, rows, _cross_entropies), rows.units)
        for u in range(rows.units):
            mine = rows.unit == u
            loss = functional.cross_entropy(model(inputs[mine]), CLASSES[mine])
            for ours, theirs in zip(found, torch.autograd.grad(loss, list(model.parameters())), strict=True):
                assert torch.allclose(ours[u], theirs, rtol=1e-4, atol=1e-6)
        return
    require_as_opacus(model, rows_of(inputs, CLASSES, unit), _cross_entropies)


def test_words_that_a_unit_has_twice_and_layers_at_many_places() -> None:
    torch.manual_seed(0)
    words = torch.tensor([[1, 1, 1], [2, 3, 2], [1, 0, 8], [0, 0, 0]])
    for unit in (None, [0, 1, 0, 1]):
        require_as_opacus(Places(), rows_of(words, CLASSES, unit), _cross_entropies)


def test_frozen_layers_have_no_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    rows = rows_of(torch.randn(4, 3), CLASSES)
    require_as_opacus(model, rows, _cross_entropies)
    assert len(quick_gradients(model, rows, _cross_entropies)) == 2


class Twice(nn.Module):
    """One layer that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))  # type: ignore[no-any-return]


class Changed(nn.Linear):
    """A subclass may compute anything."""


@pytest.mark.parametrize(
    "model",
    [
        Twice(),
        Changed(2, 2),
        nn.Sequential(nn.Unflatten(1, (2, 1)), nn.Conv1d(2, 2, 1, groups=2), nn.Flatten()),
        nn.Sequential(nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 1, 1, padding=1, padding_mode="circular"), nn.Flatten()),
    ],
)
def test_whatever_is_not_known_goes_through_opacus(model: nn.Module) -> None:
    rows, outputs = rows_of(torch.randn(4, 2), CLASSES), model(torch.zeros(1, 2)).shape[1]
    with pytest.raises(NotQuickError):
        quick_gradients(model, rows, _cross_entropies)
    sums = PerUnitGradients(model).clipped_sum(rows, _cross_entropies, clip=1e6)
    loss = functional.cross_entropy(model(rows.inputs), rows.targets, reduction="sum")
    assert outputs >= 2
    for (_, total), expected in zip(sums, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        assert torch.allclose(total, expected, rtol=1e-4, atol=1e-5)


def _cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


# --- clipping ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "settings", "inputs", "targets"), MODELS)
def test_clipped_sums_are_those_of_opacus_optimizer(
    name: str, settings: dict[str, Any], inputs: Tensor, targets: Tensor
) -> None:
    task = tasks.create(name, settings)
    torch.manual_seed(0)
    model, clip = task.model(), 0.1
    sums = PerUnitGradients(model).clipped_sum(rows_of(inputs, targets), row_losses(task), clip)
    wrapped = GradSampleModule(model, loss_reduction="mean")
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), noise_multiplier=0.0, max_grad_norm=clip, expected_batch_size=4
    )
    task.loss(wrapped(inputs), targets).backward()  # type: ignore[no-untyped-call]
    optimizer.clip_and_accumulate()
    for parameter, total in sums:
        assert torch.allclose(total, parameter.summed_grad, rtol=1e-3, atol=1e-6)  # type: ignore[attr-defined]


def norm(sums: list[tuple[nn.Parameter, Tensor]]) -> float:
    return math.sqrt(sum(float(total.double().square().sum()) for _, total in sums))


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6, 1e18, 1e30])
@pytest.mark.parametrize("quick", [True, False])
def test_no_unit_exceeds_the_clip(size: float, quick: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 40), nn.Tanh(), nn.Linear(40, 1))
    gradients = PerUnitGradients(model)
    gradients._quick = quick
    for seed in range(20):
        x = size * torch.randn(3, 50, generator=torch.Generator().manual_seed(seed))
        rows = rows_of(x, torch.zeros(3, 1), [0, 0, 0])  # three rows of one group
        sums = gradients.clipped_sum(rows, lambda out, _: size * out[:, 0], clip=0.7)
        assert norm(sums) <= 0.7
        assert size < 1 or norm(sums) > 0.69 or gradients.left_out


def bad(kind: float) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(4, 1, 6, 6)
    x[1, 0, 2, 2] = kind
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 2)), x


@pytest.mark.parametrize("kind", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("unit", [None, [0, 1, 2, 1]])
def test_a_unit_that_is_no_number_counts_as_zero_and_touches_no_other(
    kind: float, quick: bool, unit: list[int] | None
) -> None:
    model, x = bad(kind)
    gradients = PerUnitGradients(model)
    gradients._quick = quick
    sums = gradients.clipped_sum(rows_of(x, CLASSES, unit), _cross_entropies, 0.5)
    good = [0, 2, 3] if unit is None else [0, 2]
    expected = PerUnitGradients(model).clipped_sum(rows_of(x[good], CLASSES[good]), _cross_entropies, 0.5)
    for (_, total), (_, other) in zip(sums, expected, strict=True):
        assert torch.allclose(total, other, atol=1e-6)
    assert gradients.left_out == 1  # also of ±∞: tanh(∞) is 1, but the first layer's gradient is 0·∞


def test_a_unit_on_which_the_model_fails_counts_as_zero_and_touches_no_other() -> None:
    torch.manual_seed(0)
    model, words = Places(), torch.tensor([[1, 2, 3], [4, 99, 1], [5, 6, 7]])  # 99 is no word of nine
    gradients = PerUnitGradients(model)
    sums = gradients.clipped_sum(rows_of(words, CLASSES[:3]), _cross_entropies, 0.5)
    assert gradients.left_out == 1
    kept = [0, 2]
    for (_, total), (_, other) in zip(
        sums, gradients.clipped_sum(rows_of(words[kept], CLASSES[kept]), _cross_entropies, 0.5), strict=True
    ):
        assert torch.allclose(total, other, atol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm1d(3), nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3, affine=False, track_running_stats=False)],
)
def test_layers_that_mix_rows_are_refused(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(3, 3), layer, nn.Linear(3, 2))
    with pytest.raises(NotPrivateError):
        PerUnitGradients(model).clipped_sum(rows_of(torch.randn(4, 3), CLASSES), _cross_entropies, 1.0)


class Counting(nn.Module):
    """A buffer that remembers what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.mean += x.detach().mean(dim=0)  # type: ignore[operator]
        return x


def test_a_buffer_that_training_changes_is_refused() -> None:
    model = nn.Sequential(Counting(), nn.Linear(3, 2))
    with pytest.raises(NotPrivateError, match="buffer"):
        PerUnitGradients(model).clipped_sum(rows_of(torch.randn(4, 3), CLASSES), _cross_entropies, 1.0)


class Centred(nn.Module):
    """Subtracts the mean of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


class Bag(nn.Module):
    """What Opacus accepts, and computes nothing for."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(9, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bag(x))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore")
def test_before_a_study_models_are_found_that_cannot_be_trained_like_this() -> None:
    torch.manual_seed(0)
    mixing, x = nn.Sequential(nn.Linear(3, 3), Centred(), nn.Linear(3, 2)), torch.randn(4, 3)
    for unit in (None, [0, 1, 0, 1]):
        with pytest.raises(NotPrivateError, match="other rows"):
            PerUnitGradients(mixing).try_out(rows_of(x, CLASSES, unit), _cross_entropies)
        usual = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 2))
        PerUnitGradients(usual).try_out(rows_of(x, CLASSES, unit), _cross_entropies)
        assert usual[1].training
    words = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])
    with pytest.raises(NotPrivateError, match="no gradient per row"):
        PerUnitGradients(Bag()).try_out(rows_of(words, CLASSES), _cross_entropies)


@pytest.mark.parametrize(("name", "settings", "inputs", "targets"), MODELS)
def test_every_built_in_model_passes(name: str, settings: dict[str, Any], inputs: Tensor, targets: Tensor) -> None:
    task = tasks.create(name, settings)
    for unit in (None, [0, 1, 1, 0]):
        PerUnitGradients(task.model()).try_out(rows_of(inputs, targets, unit), row_losses(task))


@pytest.mark.parametrize("quick", [True, False])
def test_a_large_sample_is_taken_in_parts(quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(7, 3)
    targets = torch.tensor([0, 1, 0, 1, 0, 1, 0])
    for unit in (None, [0, 0, 1, 2, 2, 3, 4]):
        sums = []
        for most in (1 << 26, 60):  # of a model with 26 parameters, two units at a time
            monkeypatch.setattr(per_unit, "_AT_ONCE", most)
            gradients = PerUnitGradients(model)
            gradients._quick = quick
            sums.append(gradients.clipped_sum(rows_of(x, targets, unit), _cross_entropies, 0.3))
        for (_, whole), (_, parts) in zip(*sums, strict=True):
            assert torch.allclose(whole, parts, atol=1e-6)


# --- losses -----------------------------------------------------------------------------------------------------


class Given(Task):
    """A linear model that is given its data."""

    kind = "classification"
    size = (3, 2)

    def model(self) -> nn.Module:
        return nn.Sequential(OrderedDict(head=nn.Linear(*self.size)))

    def load(self, source: Source) -> LocalData:
        raise DataError("this task is given its data")


class ByLargest(Given):
    """A loss that is no mean over rows: each is measured by the largest."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        return (losses / losses.max().detach()).mean()


class Branching(Given):
    """Code that cannot run for all rows at once."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found = functional.cross_entropy(outputs, targets)
        return found * 2 if float(found.detach()) > 1 else found


@pytest.mark.parametrize("task", [Given, ByLargest, Branching])
def test_a_rows_loss_is_the_one_it_has_alone(task: type[Task]) -> None:
    here = task(TaskSettings())
    torch.manual_seed(0)
    outputs, targets = torch.randn(6, 2), torch.tensor([0, 1, -100, 0, 1, 1])  # −100: a row to be ignored
    if task is not Given:
        targets[2] = 0
    losses = row_losses(here)(outputs, targets)
    for row in range(6):
        alone = here.loss(outputs[row : row + 1], targets[row : row + 1])
        assert float(losses[row]) == pytest.approx(0.0 if targets[row] == -100 else float(alone), abs=1e-6)


def test_values_have_a_task_too() -> None:
    task = tasks.create("printers", {"family": "gaussian"})
    sums = PerUnitGradients(task.model()).clipped_sum(rows_of(VALUES, VALUES), row_losses(task), 1.0)
    assert norm(sums) > 0
