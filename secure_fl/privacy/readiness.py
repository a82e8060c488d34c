"""What must be true before noise means anything: checked before a study under differential privacy trains.

Clipping and noise bound what one unit's gradient can do. They bound nothing of what a unit does in other ways: through
the preparation of other rows, through statistics that a layer keeps, or through a loss or layer in which rows of a
batch meet. Every check here closes one such way, and raises `NotPrivateError` with what to change.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Literal, TypeAlias

from secure_fl.errors import DataError, NotPrivateError, SecureFLError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from secure_fl.tasks.base import LocalData, Split, Task

    Batch: TypeAlias = tuple[Tensor, Tensor]

_ROWS = 4  # are tried
_LAYERS = "use GroupNorm or LayerNorm instead of batch statistics, and Opacus' DPLSTM, DPGRU and DPMultiheadAttention"
_TOLERANCE = 1e-4  # of the largest norm of the rows' gradients: float32 is a hundred times as exact


def require_ready(task: Task, model: nn.Module, data: LocalData, *, unit: Literal["record", "group"]) -> None:
    """Everything a study under differential privacy needs of a site's task, model and data.

    The model is left as it was found, and so is torch's randomness. All of the model is looked at, whichever blocks
    leave the site: what stays has influence on what leaves. Raises `NotPrivateError`, or `DataError` for data that no
    gradient can be computed from.
    """
    require_preprocessing(task)
    require_groups(data, unit=unit)
    require_layers(model)
    with _trial():
        _require_no_memory(task, model, data.train)
        _require_own_gradients(task, model, data.train)


def require_preprocessing(task: Task) -> None:
    """The task says that it prepares each row by itself. Needs no data, so a study's author can ask, too."""
    if task.preprocessing in ("none", "public"):
        return
    name = type(task).__name__
    if task.preprocessing == "data-dependent":
        raise NotPrivateError(
            f"task {name} prepares rows with numbers from the site's other rows: one record changes all others",
            advice='use constants known without the data, and declare preprocessing = "public" (docs/tasks.md)',
        )
    raise NotPrivateError(
        f"task {name} does not say how it prepares a site's rows",
        advice='if it prepares each row by itself, declare preprocessing = "none" or "public" in it (docs/tasks.md)',
    )


def require_groups(data: LocalData, *, unit: Literal["record", "group"]) -> None:
    """Where groups are to be protected, the data say which rows belong together, and no group is on both sides."""
    if unit == "record":
        return
    train, test = data.train.groups, data.test.groups
    if train is None or test is None:
        raise NotPrivateError(
            'privacy.unit is "group" and this task does not say which rows belong to one patient or machine',
            advice='use a task whose data have groups (docs/tasks.md), or agree on privacy.unit = "record"',
        )
    if set(train.tolist()) & set(test.tolist()):
        raise NotPrivateError(
            "some groups have rows to train on and rows to test on",
            advice="let the task cut its rows with secure_fl.tasks.cutting, and give it the groups",
        )


def require_layers(model: nn.Module) -> None:
    """No layer of a kind that Opacus knows not to work, such as batch normalisation."""
    from opacus.validators import ModuleValidator

    found = ModuleValidator.validate(deepcopy(model).train())
    if found:
        reason = str(found[0]).splitlines()[0]
        raise NotPrivateError(
            f"the model has a layer without a gradient of its own for each row: {reason}", advice=_LAYERS
        )


# --- one batch is tried -----------------------------------------------------------------------------------


def _require_no_memory(task: Task, model: nn.Module, split: Split) -> None:
    """Training on a batch changes nothing of the model but gradients: neither a buffer nor what a row gives later."""
    import torch

    inputs, targets = _some_rows(model, split)
    trial = deepcopy(model).train()
    before = {name: buffer.clone() for name, buffer in trial.named_buffers()}
    task.loss(trial(inputs), targets).backward()  # type: ignore[no-untyped-call]
    changed = [name for name, buffer in trial.named_buffers() if not torch.equal(buffer, before[name])]
    if changed:
        raise NotPrivateError(
            f"training changes the model's {', '.join(changed)} directly from the rows, where no noise can be added",
            advice=_LAYERS,
        )
    calm = _without_dropout(deepcopy(model))
    first = _alone(task, calm, inputs, targets)
    _gradient(task, calm, inputs, targets)
    if not _equal(_alone(task, calm, inputs, targets), first):
        raise NotPrivateError(
            "the gradient of a row differs from one time to the next: the model remembers rows, or draws at random",
            advice="keep no state between batches; of layers that draw at random only torch's own dropout can be tried",
        )


def _require_own_gradients(task: Task, model: nn.Module, split: Split) -> None:
    """Opacus' gradient of each row in a batch is the one that the row has alone: no row has a part in another's."""
    import torch
    from opacus import GradSampleModule

    inputs, targets = _some_rows(model, split)
    calm = _without_dropout(deepcopy(model))
    alone = _alone(task, calm, inputs, targets)
    try:
        wrapped = GradSampleModule(calm, loss_reduction="mean", strict=False)
        calm.zero_grad(set_to_none=True)
        task.loss(wrapped(inputs), targets).backward()  # type: ignore[no-untyped-call]
        parts = [_rows_of(parameter, len(targets)) for parameter in calm.parameters() if parameter.requires_grad]
        together = torch.cat(parts, dim=1)
    except SecureFLError:
        raise
    except Exception as error:  # Layers fail in ways of their own; what they say may quote a row.
        raise NotPrivateError(
            f"the gradients of single rows cannot be computed ({type(error).__name__})",
            advice="build the model from layers that Opacus supports; nn.EmbeddingBag, for one, can be an nn.Embedding "
            "and a mean",
        ) from error
    if not _equal(together, alone):
        raise NotPrivateError(
            "a row's gradient in a batch is not the one it has alone",
            advice="let no layer use statistics over the batch, let the loss be the plain mean over rows (no weights "
            "that are normalised over the batch), and keep images in torch's usual memory format, not channels_last",
        )


def _rows_of(parameter: nn.Parameter, rows: int) -> Tensor:
    """The gradient of each row as (rows, values); zero for a parameter that the model does not use."""
    found: Tensor | None = getattr(parameter, "grad_sample", None)
    if found is None:
        if parameter.grad is not None:
            raise TypeError("a parameter has a gradient, but none of single rows")
        return parameter.new_zeros(rows, parameter.numel())
    return found.detach().reshape(rows, -1)


def _some_rows(model: nn.Module, split: Split) -> Batch:
    """A few rows from all over the data: neighbours in a file are often alike."""
    import torch

    if len(split) < 2:
        raise DataError("there are fewer than 2 rows to train on")
    rows = torch.linspace(0, len(split) - 1, min(_ROWS, len(split))).long()
    device = next(model.parameters(), split.inputs).device
    return split.inputs[rows].to(device), split.targets[rows].to(device)


def _gradient(task: Task, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The gradient of the loss on a batch as one vector over all trainable parameters."""
    import torch

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(task.loss(model(inputs), targets), parameters, allow_unused=True)
    flat = [torch.zeros_like(p) if part is None else part for p, part in zip(parameters, found, strict=True)]
    return torch.cat([part.reshape(-1) for part in flat])


def _alone(task: Task, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The gradient of each row in a batch of its own, as (rows, values)."""
    import torch

    try:
        each = [_gradient(task, model, inputs[row : row + 1], targets[row : row + 1]) for row in range(len(targets))]
    except SecureFLError:
        raise
    except Exception as error:  # What a layer says may quote a row.
        raise NotPrivateError(
            f"the model cannot be trained on a single row ({type(error).__name__})", advice=_LAYERS
        ) from error
    found = torch.stack(each)
    if not torch.isfinite(found).all():
        raise DataError(
            "some rows of the local data have no finite gradient",
            advice="check the data for huge values, and scale inputs and targets to about unit size",
        )
    return found


def _equal(some: Tensor, others: Tensor) -> bool:
    """Row by row, but for rounding."""
    largest = others.norm(dim=1).max()
    return bool((some - others).norm(dim=1).max() <= _TOLERANCE * largest + 1e-7)  # False for NaN, too.


def _without_dropout(model: nn.Module) -> nn.Module:
    """In training mode, but for dropout, which is allowed and would make any two gradients differ."""
    from torch import nn

    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
    return model


@contextmanager
def _trial() -> Iterator[None]:
    """Randomness as it was afterwards, and none of Opacus' warnings about its own hooks."""
    import torch

    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
