"""The gradient of every unit by itself, clipped, and added up.

A unit is a record, or a group of records whose rows are averaged. Two ways lead to the same numbers: Opacus, for any
model it accepts, and `quick`, one pass backwards for models of common layers (`privacy.quick`). In both, the norm that
decides how much of a unit is taken is that of the vector that is added: what is computed in two ways may differ by
rounding, and rounding must not carry a unit beyond the clip.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fl.errors import DataError, NotPrivateError, SecureFLError
from secure_fl.privacy.rows import RowLosses, Rows, UnitGradients, by_unit, total_of, trainable

if TYPE_CHECKING:
    from secure_fl.tasks.base import Task

# Norms, products and sums are rounded, and a unit more rounds the sum of all others anew. This much below the clip,
# float32 cannot carry one unit's influence above it, in samples of up to some thousand units.
_BELOW = 1 - 2.0**-12
_AT_ONCE = 1 << 26  # numbers: gradients per unit take as much as so many models
log = logging.getLogger(__name__)


class PerUnitGradients:
    """Clipped sums of the gradients of a model's trainable parameters."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules = list(model.modules())  # once: walking through a model takes as long as a small one trains
        self._quick = True  # until the model turns out to be none for it
        self.left_out = 0  # units that had no finite gradient and counted as zero

    def clipped_sum(self, rows: Rows, losses: RowLosses, clip: float) -> list[tuple[nn.Parameter, Tensor]]:
        """For every trainable parameter Σ_u min(1, clip/‖g_u‖)·g_u, the norm being that over all of them.

        A unit without a finite gradient, or on which the model's code raises, contributes zero, and no other unit is
        touched by it. Raises `NotPrivateError` for a model that cannot be trained this way.
        """
        require_separable(self._modules)
        trained = trainable(self._modules)
        most = max(1, _AT_ONCE // max(1, sum(parameter.numel() for parameter in trained)))
        total: list[Tensor] | None = None
        for first in range(0, rows.units, most):
            part = rows.between(first, min(first + most, rows.units)) if rows.units > most else rows
            found = self._careful(part, losses, clip)
            total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
        return list(zip(trained, total or [torch.zeros_like(p) for p in trained], strict=True))

    def _careful(self, rows: Rows, losses: RowLosses, clip: float) -> list[Tensor]:
        try:
            return self._batch(rows, losses, clip)
        except NotPrivateError:
            raise
        except Exception as error:
            if rows.units == 1:
                log.warning("a unit on which the model fails (%s) counts as zero", type(error).__name__)
                self.left_out += 1
                return [torch.zeros_like(p) for p in trainable(self._modules)]
        # Something in the batch made the model's code fail. Alone, each unit fails for itself only.
        alone = [self._careful(rows.between(unit, unit + 1), losses, clip) for unit in range(rows.units)]
        return [torch.stack(sums).sum(dim=0) for sums in zip(*alone, strict=True)]

    def _batch(self, rows: Rows, losses: RowLosses, clip: float) -> list[Tensor]:
        gradients = self._gradients(rows, losses)
        norms = torch.zeros(rows.units, dtype=torch.float64, device=rows.unit.device)
        for _, found in gradients:
            if found is not None:
                norms += found.squared_norms(rows.units)
        finite = torch.isfinite(norms)
        # Where the norm is 0 the quotient is infinite, and 1 is the smaller.
        weights = torch.where(finite, (clip * _BELOW / norms.sqrt()).clamp(max=1.0), 0.0).float()
        self.left_out += rows.units - int(finite.sum())
        return [torch.zeros_like(p) if found is None else found.weighted_sum(weights) for p, found in gradients]

    def try_out(self, rows: Rows, losses: RowLosses) -> None:
        """Before a study: raise `NotPrivateError` unless each unit's gradient is the same in company and alone.

        `clipped_sum` passes over units on which code fails, so code that always fails would train on noise alone.
        """
        require_separable(self._modules)
        try:
            with _without_dropout(self._model):
                together = self._gradients(rows, losses)
                alone = [self._gradients(rows.between(unit, unit + 1), losses) for unit in range(rows.units)]
        except SecureFLError:
            raise
        except Exception as error:
            raise NotPrivateError(f"no gradient per row can be computed ({type(error).__name__})") from error
        for only, by_itself in zip(torch.eye(rows.units, device=rows.unit.device), alone, strict=True):
            for (_, mine), (_, other) in zip(together, by_itself, strict=True):
                if not _alike(_sum(mine, only), _sum(other, only[only > 0])):
                    raise NotPrivateError("a row's gradient depends on the other rows of its batch")

    def _gradients(self, rows: Rows, losses: RowLosses) -> Sequence[tuple[nn.Parameter, UnitGradients | None]]:
        from secure_fl.privacy.quick import NotQuickError, quick_gradients

        buffers = (b for module in self._modules for b in module._buffers.values() if b is not None)
        before = [(buffer, buffer._version) for buffer in buffers]
        try:
            if not self._quick:
                return opacus_gradients(self._model, rows, losses)
            try:
                return quick_gradients(self._model, rows, losses, self._modules)
            except NotQuickError:
                self._quick = False
                return opacus_gradients(self._model, rows, losses)
        finally:
            if any(buffer._version != version for buffer, version in before):
                raise NotPrivateError("training changes a buffer of this model, which no noise would cover")


def _sum(gradients: UnitGradients | None, weights: Tensor) -> Tensor | None:
    return None if gradients is None else gradients.weighted_sum(weights)


def _alike(one: Tensor | None, other: Tensor | None) -> bool:
    """Up to rounding; where the one is no number, so is the other."""
    if one is None or other is None:
        return one is other
    apart = torch.linalg.vector_norm((one - other).nan_to_num(posinf=0, neginf=0))
    return bool(apart <= 1e-3 * torch.linalg.vector_norm(other.nan_to_num()) + 1e-6)


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """Which draws anew in each pass."""
    dropping = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.training]
    try:
        for module in dropping:
            module.eval()
        yield
    finally:
        for module in dropping:
            module.train()


def require_separable(modules: Sequence[nn.Module]) -> None:
    """Raise `NotPrivateError` for layers through which the rows of a batch influence each other."""
    for module in modules:
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise NotPrivateError(f"{module} normalises over the batch: every row moves every other")


def opacus_gradients(
    model: nn.Module, rows: Rows, losses: RowLosses
) -> list[tuple[nn.Parameter, UnitGradients | None]]:
    """Every unit's gradient by Opacus' `GradSampleModule`, which accepts almost any model."""
    from opacus import GradSampleModule

    # Wrapped for one pass only: hooks that stayed would slow down training without noise, and after an exception they
    # would match the activations of one batch with the gradients of another.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own hooks, and of layers for which it uses torch.func
        try:
            wrapped = GradSampleModule(model, loss_reduction="sum", force_functorch=_pads_otherwise(model))
        except NotImplementedError as error:
            raise NotPrivateError("Opacus finds no gradient per row for a layer of this model") from error
        try:
            total_of(losses, wrapped(rows.inputs), rows.targets).backward()  # type: ignore[no-untyped-call]
            return [(parameter, _dense(parameter, rows)) for parameter in model.parameters() if parameter.requires_grad]
        finally:
            wrapped.to_standard_module()
            for module in model.modules():
                module.__dict__.pop("activations", None)
                module.__dict__.pop("max_batch_len", None)
            model.zero_grad(set_to_none=True)


def _pads_otherwise(model: nn.Module) -> bool:
    """Whether a convolution pads with something else than zeros: Opacus' own rule for it takes zeros all the same."""
    return any(getattr(module, "padding_mode", "zeros") != "zeros" for module in model.modules())


def _dense(parameter: nn.Parameter, rows: Rows) -> UnitGradients | None:
    found = getattr(parameter, "grad_sample", None)
    if parameter.grad is None and found is None:
        return None  # The loss does not depend on it.
    if not isinstance(found, Tensor) or len(found) != len(rows.unit):
        raise NotPrivateError("Opacus finds no gradient per row for a parameter of this model")
    return by_unit(found, rows)


def row_losses(task: Task, loss: Callable[[Tensor, Tensor], Tensor] | None = None) -> RowLosses:
    """The loss of each row as if it were alone, from a task's loss or from `loss`, both of which give a batch's mean.

    Not the batch's mean times its size: a loss that divides by something else, as cross-entropy does by the number of
    rows that are not to be ignored, would let one row scale the gradients of all.
    """
    from secure_fl.tasks.base import Task

    if loss is not None or type(task).loss is not Task.loss:
        return _one_by_one(loss or task.loss)
    return _cross_entropies if task.kind == "classification" else _squared_errors


def _cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    # A row may have many places, as the pixels of a picture have.
    return functional.cross_entropy(outputs, targets, reduction="none").reshape(len(outputs), -1).mean(dim=1)


def _squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.shape != targets.shape:
        raise DataError(f"outputs of shape {list(outputs.shape)} for targets of shape {list(targets.shape)}")
    return (outputs - targets).square().reshape(len(outputs), -1).mean(dim=1)


def _one_by_one(loss: Callable[[Tensor, Tensor], Tensor]) -> RowLosses:
    def alone(output: Tensor, target: Tensor) -> Tensor:
        return loss(output.unsqueeze(0), target.unsqueeze(0))

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        try:
            found: Tensor = torch.func.vmap(alone)(outputs, targets)
        except (RuntimeError, ValueError):  # Not all code can be run for all rows at once.
            found = torch.stack([alone(*row) for row in zip(outputs, targets, strict=True)])
        return found

    return losses
