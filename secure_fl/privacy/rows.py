"""The rows of the units of one step, and gradients of units, as the two ways to compute them share them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from secure_fl.errors import NotPrivateError

RowLosses = Callable[[Tensor, Tensor], Tensor]  # of outputs and targets: one number per row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """The rows of the units of one step. Unit u has some of them, each with the same share; together they make 1."""

    inputs: Tensor
    targets: Tensor
    unit: Tensor  # of each row: 0, 1, …, units − 1
    units: int
    single: bool = True  # row u is all that unit u has

    def between(self, first: int, last: int) -> Rows:
        """The rows of units `first` to `last` − 1 alone."""
        mine = (self.unit >= first) & (self.unit < last)
        return Rows(
            inputs=self.inputs[mine],
            targets=self.targets[mine],
            unit=self.unit[mine] - first,
            units=last - first,
            single=self.single,
        )

    def share(self) -> Tensor:
        """Of each row, in its unit's mean."""
        return 1 / torch.bincount(self.unit, minlength=self.units)[self.unit]


class UnitGradients(Protocol):
    """The gradients of one parameter, one for each unit."""

    def squared_norms(self, units: int) -> Tensor:
        """In float64, so that no square overflows."""
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ_u weights_u·gradient_u. A unit of weight 0 is left out, whatever its gradient: 0·∞ is no number."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """One tensor, the units first."""

    values: Tensor

    def squared_norms(self, units: int) -> Tensor:  # noqa: ARG002
        """Σ of squares."""
        squares: Tensor = torch.linalg.vector_norm(self.values.flatten(1), dim=1, dtype=torch.float64).square()
        return squares

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Over the units of a weight above 0."""
        values, kept = self.values, weights > 0
        if not kept.all():
            weights, values = weights[kept], values[kept]
        return (weights @ values.flatten(1)).view(self.values.shape[1:])


def by_unit(values: Tensor, rows: Rows) -> Dense:
    """Units' gradients from those of rows, one after the other in `values`."""
    if rows.single:
        return Dense(values)
    share = rows.share().to(values.dtype).view(-1, *[1] * (values.dim() - 1))
    return Dense(values.new_zeros(rows.units, *values.shape[1:]).index_add_(0, rows.unit, values * share))


def trainable(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    """The parameters that training changes, in the order of `nn.Module.parameters`."""
    return [p for module in modules for p in module._parameters.values() if p is not None and p.requires_grad]


def total_of(losses: RowLosses, outputs: Tensor, targets: Tensor) -> Tensor:
    """Σ of the rows' losses; `NotPrivateError` where there is not one for each row."""
    if len(outputs) != len(targets):
        raise NotPrivateError(f"the model makes {len(outputs)} outputs of {len(targets)} rows")
    found = losses(outputs, targets)
    if found.shape != targets.shape[:1]:
        raise NotPrivateError("the loss is not one number for each row")
    return found.sum()
