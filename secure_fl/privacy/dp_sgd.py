"""DP-SGD (Abadi et al., 2016, arXiv:1607.00133): gradients of a secret sample, clipped unit by unit, under noise.

g̃ = (Σ_{u in sample} min(1, C/‖g_u‖)·g_u + N(0, σ²C²)) / (q·units)

Each unit is in a step's sample with probability q, whoever else is; the number of steps and the divisor are constants.
So one unit more or less moves the sum by at most C, and nothing else. What an optimizer makes of g̃, and what is added
to it that depends on weights alone, costs nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from secure_fl.errors import DataError, UnaccountedTrainingError
from secure_fl.privacy.noise import PrivateRandomness, StepRandomness
from secure_fl.privacy.per_unit import PerUnitGradients
from secure_fl.privacy.rows import RowLosses, Rows

if TYPE_CHECKING:
    from torch import nn

    from secure_fl.privacy.mechanism import Mechanism
    from secure_fl.tasks.base import Split

_Indices = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Sample:
    """What one step is computed from. It is good for one step: two on the same sample cost more than two samples."""

    rows: _Indices
    unit: _Indices  # of each row: 0, 1, …
    units: int
    randomness: StepRandomness
    used: bool = False


class NoisyTraining:
    """The noised steps of one execution: draws samples, puts noised gradients into the model, counts."""

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        model: nn.Module,
        split: Split,
        reserved_steps: int,
        randomness: PrivateRandomness,
    ) -> None:
        self.mechanism = mechanism
        self.reserved_steps = reserved_steps
        self.steps = 0  # that were taken
        self._drawn = 0
        self._model = model
        self._split = split
        self._members = _Members(units_of(split, mechanism.unit))
        self._randomness = randomness
        self._gradients = PerUnitGradients(model)

    @property
    def left_out(self) -> int:
        """How often a unit had no finite gradient and counted as zero."""
        return self._gradients.left_out

    def samples(self, epochs: int) -> Iterator[Sample]:
        """A fixed number of samples that stand for so many passes over the data."""
        for _ in range(epochs * self.mechanism.epoch_steps):
            # Drawn when asked for, and numbered for ever: no step shares its randomness with another.
            self._drawn += 1
            yield self._draw(self._randomness.step(self._drawn))

    def descent(self, sample: Sample, losses: RowLosses) -> None:
        """Put the noised gradient into `grad` of every trainable parameter.

        Raises `UnaccountedTrainingError`, before anything is computed, for a step that was not reserved or a sample
        that was used before.
        """
        if self.steps >= self.reserved_steps:
            raise UnaccountedTrainingError(f"a step more than the {self.reserved_steps} that were reserved")
        if sample.used:
            raise UnaccountedTrainingError("a second step on the same sample")
        sample.used = True
        self.steps += 1
        mechanism = self.mechanism
        rows = self._gather(sample.rows, sample.unit, sample.units)
        sums = self._gradients.clipped_sum(rows, losses, mechanism.clip)
        flat = torch.cat([total.flatten() for _, total in sums])
        noised = sample.randomness.noised(flat, mechanism.noise * mechanism.clip)
        # By a constant: the true size of the sample is private.
        noised /= mechanism.sampling * mechanism.units
        parts = torch.split(noised, [total.numel() for _, total in sums])
        for (parameter, total), part in zip(sums, parts, strict=True):
            parameter.grad = part.view(total.shape).to(parameter)

    def try_out(self, losses: RowLosses, units: int = 4) -> None:
        """Before a study: raise `NotPrivateError`, or what the model raises, if it cannot be trained like this.

        A few units are looked at, alone and together. No noise is drawn, and nothing is changed or kept.
        """
        rows, unit = self._members.rows(np.arange(min(units, self._members.count)))
        if self.mechanism.unit == "group":
            kept = np.arange(len(unit)) - np.searchsorted(unit, unit) < self.mechanism.group_rows
            rows, unit = rows[kept], unit[kept]
        self._gradients.try_out(self._gather(rows, unit, min(units, self._members.count)), losses)

    def _draw(self, randomness: StepRandomness) -> Sample:
        chosen = randomness.sample(self._members.count, self.mechanism.sampling)
        rows, unit = self._members.rows(chosen)
        if self.mechanism.unit == "group":
            kept = _few(unit, randomness.order(len(unit)), self.mechanism.group_rows)
            rows, unit = rows[kept], unit[kept]
        return Sample(rows=rows, unit=unit, units=len(chosen), randomness=randomness)

    def _gather(self, rows: _Indices, unit: _Indices, units: int) -> Rows:
        device = next(self._model.parameters()).device
        index = torch.from_numpy(rows)
        return Rows(
            inputs=self._split.inputs[index].to(device),
            targets=self._split.targets[index].to(device),
            unit=torch.from_numpy(unit).to(device),
            units=units,
            single=self.mechanism.unit == "record",
        )


class _Members:
    """Which rows each unit has; the units are in order, whatever the order of the rows."""

    def __init__(self, owners: _Indices) -> None:
        self._sorted = np.argsort(owners, kind="stable")
        _, self._starts, self._sizes = np.unique(owners[self._sorted], return_index=True, return_counts=True)

    @property
    def count(self) -> int:
        return len(self._starts)

    def rows(self, chosen: _Indices) -> tuple[_Indices, _Indices]:
        """All rows of the units `chosen`, and whose each is: 0 for the first of `chosen`."""
        sizes = self._sizes[chosen]
        unit = np.repeat(np.arange(len(chosen)), sizes)
        within = np.arange(len(unit)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return self._sorted[self._starts[chosen][unit] + within], unit


def _few(unit: _Indices, order: npt.NDArray[np.uint64], most: int) -> _Indices:
    """Of each unit's rows, which come one after the other, `most` at random: chosen among the unit's own alone."""
    ranked = np.lexsort((order, unit))
    first = np.searchsorted(unit, unit)  # where the rows of each one's unit begin
    return np.sort(ranked[np.arange(len(unit)) - first < most])


def units_of(split: Split, unit: str) -> _Indices:
    """The unit that each row belongs to. Raises `DataError` where groups are asked for and the task has none."""
    if unit == "record":
        return np.arange(len(split))
    groups: Any = getattr(split, "groups", None)
    if groups is None:
        raise DataError(
            "this task does not say which rows belong to the same group",
            advice='use privacy.unit = "record", or a task that gives its rows groups (docs/tasks.md)',
        )
    found: _Indices = groups.cpu().numpy().astype(np.int64)
    return found
