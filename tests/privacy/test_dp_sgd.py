"""DP-SGD in a site: gradients per unit as Opacus has them, one clip per unit, noise on everything, no step too many."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn import functional

from secure_fl import strategies, tasks
from secure_fl.blocks import Blocks
from secure_fl.errors import DataError, ModelNotPrivateError, UnaccountedTrainingError
from secure_fl.privacy import dp_sgd, noise, per_unit
from secure_fl.privacy.mechanism import Mechanism
from secure_fl.privacy.per_unit import PerUnitGradients, Rows, opacus_gradients, row_losses
from secure_fl.privacy.quick import NotQuickError, quick_gradients
from secure_fl.strategies.base import LocalTraining
from secure_fl.strategies.site import Site
from secure_fl.tasks.base import LocalData, Source, Split, Task, TaskSettings
from secure_fl.tasks.model_blocks import initial_blocks
from tests.privacy.test_noise import require_gaussian
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


def require_as_opacus(model: nn.Module, rows: Rows, losses: per_unit.RowLosses) -> None:
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
    with pytest.raises(ModelNotPrivateError):
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
    with pytest.raises(ModelNotPrivateError, match="buffer"):
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
        with pytest.raises(ModelNotPrivateError, match="other rows"):
            PerUnitGradients(mixing).try_out(rows_of(x, CLASSES, unit), _cross_entropies)
        usual = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 2))
        PerUnitGradients(usual).try_out(rows_of(x, CLASSES, unit), _cross_entropies)
        assert usual[1].training
    words = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])
    with pytest.raises(ModelNotPrivateError, match="no gradient per row"):
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


# --- a site under noise -----------------------------------------------------------------------------------------

MECHANISM = Mechanism(unit="record", units=20, sampling=0.2, noise=1.5, clip=0.4, epoch_steps=5)
PLAIN = LocalTraining(epochs=1, learning_rate=1.0, momentum=0.0)


class Wide(Given):
    """Many parameters, so that one step shows much noise."""

    size = (10_000, 2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Grouped(Split):
    """Rows that belong to groups."""

    groups: Tensor | None = None


def rows(count: int, task: Given, *, scale: float = 1.0, groups: list[int] | None = None) -> Split:
    x = scale * torch.randn(count, task.size[0], generator=torch.Generator().manual_seed(3))
    targets = torch.arange(count) % 2
    return Grouped(inputs=x, targets=targets, groups=None if groups is None else torch.tensor(groups))


def site(
    split: Split,
    task: Given,
    mechanism: Mechanism | None = MECHANISM,
    *,
    seed: bytes | None = b"seed",
    training: LocalTraining = PLAIN,
    reserved: int = 1000,
) -> Site:
    initial = initial_blocks(task, 0)[1]
    here = Site(
        task=task, data=LocalData(train=split, test=split), training=training, initial=initial, received=initial,
        personal={}, combination={}, seed=0, privacy=mechanism, privacy_seed=seed, reserved_steps=reserved,
    )  # fmt: skip
    here.load(initial)
    return here


GIVEN, WIDE = Given(TaskSettings()), Wide(TaskSettings())


def flat(blocks: Blocks) -> npt.NDArray[np.float64]:
    return np.concatenate([blocks[name] for name in sorted(blocks)]).astype(np.float64)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models of this size take far longer with two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def noise_of_a_run() -> npt.NDArray[np.float64]:
    """What four steps of a real run add to a model that its data do not move: every record's gradient is zero."""
    here = site(rows(20, WIDE, scale=0.0), WIDE, replace(MECHANISM, epoch_steps=4))
    here.train(loss=lambda outputs, _: outputs.mean() * 0)
    return flat(here.change(here.layout.names)) * (MECHANISM.sampling * MECHANISM.units)


def test_a_run_adds_gaussian_noise_of_the_stated_size() -> None:
    require_gaussian(noise_of_a_run(), deviation=1.5 * 0.4 * math.sqrt(4))


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.9, 1.1])
def test_a_run_with_less_or_more_noise_is_found_out(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = noise.gaussians
    monkeypatch.setattr(noise, "gaussians", lambda stream, count: factor * honest(stream, count))
    with pytest.raises(AssertionError):
        require_gaussian(noise_of_a_run(), deviation=1.5 * 0.4 * math.sqrt(4))


@pytest.mark.parametrize("count", [0, 1, 19, 20, 400])
def test_neither_steps_nor_divisor_tell_how_many_units_there_are(count: int) -> None:
    here = site(rows(count, GIVEN), GIVEN)
    here.train(epochs=3)
    assert here.noised_steps == 15
    mean = {"head": here.blocks()["head"] - here.initial["head"]}
    assert np.isfinite(flat(mean)).all()
    assert flat(mean).any()  # noise, if nothing else


def test_the_step_is_the_clipped_sum_over_the_expected_batch() -> None:
    quiet = replace(MECHANISM, noise=1e-9, sampling=1.0, epoch_steps=1)
    split = rows(7, GIVEN)
    here = site(split, GIVEN, quiet)
    sums = PerUnitGradients(here.model).clipped_sum(rows_of(split.inputs, split.targets), row_losses(GIVEN), 0.4)
    here.train()
    expected = -np.concatenate([total.numpy().ravel() for _, total in sums]) / 20
    assert here.change(("head",))["head"] == pytest.approx(expected, abs=1e-6)


def test_groups_are_sampled_whole_and_count_once() -> None:
    groups = [5, 5, 5, 9, 9, 2]
    quiet = replace(MECHANISM, noise=1e-9, sampling=1.0, epoch_steps=1, unit="group", group_rows=3)
    split = rows(6, GIVEN, groups=groups)
    here = site(split, GIVEN, quiet)
    by_unit = rows_of(split.inputs, split.targets, [1, 1, 1, 2, 2, 0])
    sums = PerUnitGradients(here.model).clipped_sum(by_unit, row_losses(GIVEN), 0.4)
    here.train()
    expected = -np.concatenate([total.numpy().ravel() for _, total in sums]) / 20
    assert here.change(("head",))["head"] == pytest.approx(expected, abs=1e-6)


def test_of_a_large_group_a_few_rows_count_chosen_among_its_own() -> None:
    few = replace(MECHANISM, sampling=0.5, unit="group", group_rows=3)
    for owners in ([0] * 9 + [1] * 2 + [2] * 5, [2, 0, 1, 0, 0, 2, 0, 1, 0, 0, 2, 0, 2, 0, 2, 0]):
        split = rows(16, GIVEN, groups=owners)
        training = dp_sgd.NoisyTraining(
            few, model=GIVEN.model(), split=split, reserved_steps=0, randomness=noise.PrivateRandomness(b"few")
        )
        seen = np.zeros(16)
        for sample in training.samples(400):
            sizes = np.bincount(sample.unit, minlength=sample.units)
            assert len(sizes) == sample.units
            assert sample.units == 0 or sizes.min() >= 1
            for unit in range(sample.units):
                mine = sample.rows[sample.unit == unit]
                whole = np.flatnonzero(np.array(owners) == owners[mine[0]])
                assert set(mine) <= set(whole)
                assert len(set(mine)) == min(3, len(whole))
                seen[mine] += 1
        # 2000 steps, each group in half of them: a row of the group of nine counts in a sixth.
        for owner, size in ((0, 9), (1, 2), (2, 5)):
            expected = 1000 * min(3, size) / size
            assert np.abs(seen[np.array(owners) == owner] - expected).max() < 5 * math.sqrt(expected)


def test_groups_need_a_task_that_has_them() -> None:
    with pytest.raises(DataError, match="group"):
        site(rows(4, GIVEN), GIVEN, replace(MECHANISM, unit="group"))


@pytest.mark.parametrize("extra", [{"momentum": 0.9}, {"weight_decay": 0.1}, {"optimizer": "adam"}])
def test_the_optimizer_acts_on_the_noised_gradient(extra: dict[str, Any]) -> None:
    training = LocalTraining.model_validate({**PLAIN.model_dump(), **extra})
    here = site(rows(20, GIVEN), GIVEN, training=training)
    reference = site(rows(20, GIVEN), GIVEN)
    optimizer = here.optimizer()
    copy = nn.Parameter(torch.tensor(flat(here.initial), dtype=torch.float32))
    decay = training.weight_decay
    theirs: torch.optim.Optimizer = torch.optim.SGD([copy], lr=1.0, momentum=training.momentum, weight_decay=decay)
    if training.optimizer == "adam":
        theirs = torch.optim.Adam([copy], lr=1.0, weight_decay=decay)
    for step, same in zip(here.batches(), reference.batches(), strict=True):
        reference.load(here.blocks())
        reference.backward(same)  # the same sample, the same noise, the same weights
        copy.grad = torch.cat([p.grad.flatten() for p in reference.parameters() if p.grad is not None])
        here.descend(optimizer, step)
        theirs.step()
        assert flat(here.blocks()) == pytest.approx(copy.detach().numpy().astype(float), abs=1e-6)


def test_a_penalty_is_added_after_clipping_and_noise() -> None:
    """With nothing in the data, a step is −η·(noise + ∇penalty): the penalty whole, however small the clip."""
    tiny = replace(MECHANISM, clip=1e-9, epoch_steps=1)
    here = site(rows(0, GIVEN), GIVEN, tiny, training=LocalTraining(epochs=1, learning_rate=0.25, momentum=0.0))
    anchor = [p + 1.0 for p in here.snapshot()]
    here.train(penalty=here.pull(anchor, 0.5))
    assert here.change(("head",))["head"] == pytest.approx(0.25, abs=1e-6)


# --- what is refused --------------------------------------------------------------------------------------------


def test_a_step_beyond_the_reservation_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = site(rows(20, GIVEN), GIVEN, reserved=7)
    computed: list[int] = []
    honest = PerUnitGradients.clipped_sum

    def counted(self: PerUnitGradients, *args: Any) -> Any:
        computed.append(1)
        return honest(self, *args)

    monkeypatch.setattr(PerUnitGradients, "clipped_sum", counted)
    with pytest.raises(UnaccountedTrainingError, match="7 that were reserved"):
        here.train(epochs=2)
    assert len(computed) == here.noised_steps == 7


def test_nothing_is_reserved_unless_somebody_says_so() -> None:
    split, initial = rows(4, GIVEN), initial_blocks(GIVEN, 0)[1]
    here = Site(
        task=GIVEN, data=LocalData(train=split, test=split), training=PLAIN, initial=initial, received=initial,
        personal={}, combination={}, seed=0, privacy=MECHANISM,
    )  # fmt: skip
    with pytest.raises(UnaccountedTrainingError):
        here.train()


def test_a_sample_is_good_for_one_step() -> None:
    here = site(rows(20, GIVEN), GIVEN)
    sample = next(iter(here.batches()))
    here.descend(here.optimizer(), sample)
    with pytest.raises(UnaccountedTrainingError, match="same sample"):
        here.descend(here.optimizer(), sample)


def test_a_site_tries_its_model_out_without_a_trace() -> None:
    groups = [0, 0, 0, 1, 1, 2]
    for mechanism in (MECHANISM, replace(MECHANISM, unit="group", group_rows=2)):
        here = site(rows(6, GIVEN, groups=groups), GIVEN, mechanism, reserved=0)
        here.try_noise()
        assert here.noised_steps == 0
        assert not here.change(("head",))["head"].any()


def test_rows_that_were_not_sampled_are_refused() -> None:
    here, plain = site(rows(20, GIVEN), GIVEN), site(rows(20, GIVEN), GIVEN, None)
    with pytest.raises(UnaccountedTrainingError, match="not sampled"):
        here.descend(here.optimizer(), next(iter(plain.batches())))
    with pytest.raises(UnaccountedTrainingError, match="all rows"):
        next(iter(here.batches(rows=torch.arange(3))))
    with pytest.raises(UnaccountedTrainingError):
        plain.descend(plain.optimizer(), next(iter(here.batches())))


def test_after_a_free_part_nothing_trains_under_noise_and_nothing_is_taken() -> None:
    here = site(rows(20, GIVEN), GIVEN)
    here.train(free=True)
    assert here.noised_steps == 0
    with pytest.raises(UnaccountedTrainingError, match="without noise"):
        here.train()
    with pytest.raises(UnaccountedTrainingError, match="without noise"):
        here.change(("head",))


def test_a_free_part_aside_leaves_no_trace() -> None:
    here, other = site(rows(20, GIVEN), GIVEN), site(rows(20, GIVEN), GIVEN)
    with here.aside():
        here.train(free=True)
        assert not np.array_equal(here.blocks()["head"], here.initial["head"])
    here.train()
    other.train()
    assert np.array_equal(here.change(("head",))["head"], other.change(("head",))["head"])


def test_noise_is_never_drawn_twice_even_aside() -> None:
    here = site(rows(0, GIVEN), GIVEN, replace(MECHANISM, epoch_steps=1))
    with here.aside():
        here.train()
        first = here.change(("head",))["head"]
    here.train()
    assert not (here.change(("head",))["head"] == first).any()
    assert here.noised_steps == 2


def test_a_free_part_that_fails_does_not_end_the_round(caplog: pytest.LogCaptureFixture) -> None:
    here, plain = site(rows(20, GIVEN), GIVEN), site(rows(20, GIVEN), GIVEN, None)
    with here.free(), here.free():
        raise ArithmeticError
    assert "without noise failed" in caplog.text
    with pytest.raises(ArithmeticError), plain.free():
        raise ArithmeticError


def test_the_public_seed_decides_neither_samples_nor_noise() -> None:
    here, same, other = (site(rows(20, GIVEN), GIVEN, seed=seed) for seed in (None, None, b"a"))
    changes = []
    for one in (here, same, other):
        one.train()
        changes.append(one.change(("head",))["head"])
    assert not (changes[0] == changes[1]).any()
    assert not (changes[0] == changes[2]).any()


def test_dropout_does_not_follow_the_public_seed() -> None:
    draws = []
    for seed in (b"a", b"a", b"b"):
        site(rows(4, GIVEN), GIVEN, seed=seed)
        draws.append(float(torch.rand(())))
    assert draws[0] == draws[1] != draws[2]


def test_the_loss_is_not_told() -> None:
    here = site(rows(20, GIVEN), GIVEN)
    assert math.isnan(here.backward(next(iter(here.batches()))))


def test_whoever_trains_in_a_way_of_its_own_says_what_it_costs() -> None:
    fedavg = type(strategies.create("fedavg", {}))

    class Own(fedavg):  # type: ignore[misc, valid-type]
        def fit(self, site: Site) -> Blocks:
            return {}

    class Same(fedavg):  # type: ignore[misc, valid-type]
        pass

    assert Own(LocalTraining()).charged_epochs() is None
    assert Same(LocalTraining()).charged_epochs() == LocalTraining().epochs


def test_values_have_a_task_too() -> None:
    task = tasks.create("printers", {"family": "gaussian"})
    sums = PerUnitGradients(task.model()).clipped_sum(rows_of(VALUES, VALUES), row_losses(task), 1.0)
    assert norm(sums) > 0
