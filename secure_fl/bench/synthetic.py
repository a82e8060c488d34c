"""A task of any size that costs next to nothing to train, so that what is measured is the protocol around it."""

from __future__ import annotations

from collections import OrderedDict

import torch
from pydantic import Field
from torch import Tensor, nn

from secure_fl.errors import DataError
from secure_fl.tasks.base import LocalData, Source, Split, Task, TaskSettings

BLOCKS = 8
_ROWS = 4  # one batch


class SyntheticSettings(TaskSettings):
    """How large the model is."""

    parameters: int = Field(default=1_000_000, ge=BLOCKS)


class Part(nn.Module):
    """One block: a vector of parameters, of which only the sum is used."""

    def __init__(self, size: int) -> None:
        super().__init__()
        # Not drawn at random: fifty million draws would be the most expensive part of the training.
        self.values = nn.Parameter(torch.linspace(-0.5, 0.5, size))

    def forward(self) -> Tensor:
        """The sum, whose gradient is the same for every parameter and takes no memory until it is stored."""
        return self.values.sum()


class Parts(nn.Sequential):
    """A few blocks of equal size, as nearly as their number divides the parameters."""

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, 1) to (n, 1): every row times the mean of all parameters."""
        parts = [part for part in self if isinstance(part, Part)]
        total = torch.stack([part() for part in parts]).sum()
        return inputs * (total / sum(part.values.numel() for part in parts))


class Synthetic(Task):
    """Exactly as many parameters as the settings say. The gradient of each is one over their number, times the row."""

    kind = "regression"
    preprocessing = "none"
    Settings = SyntheticSettings
    settings: SyntheticSettings

    def model(self) -> nn.Module:
        """Blocks `part-0`, `part-1`, …"""
        each, left = divmod(self.settings.parameters, BLOCKS)
        sizes = [each + (index < left) for index in range(BLOCKS)]
        return Parts(OrderedDict((f"part-{index}", Part(size)) for index, size in enumerate(sizes)))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        """Linear, so that the gradient is the same in every round."""
        return outputs.mean()

    def load(self, source: Source) -> LocalData:
        """A handful of rows, a little different at every site."""
        if source.share is None:
            raise DataError("the synthetic task has no data", advice="it is for `secure-fl bench round` alone")
        inputs = torch.full((_ROWS, 1), 1 + source.share.index / source.share.of)
        rows = Split(inputs=inputs, targets=torch.zeros_like(inputs))
        return LocalData(train=rows, test=rows)
