"""Adding up a task's metrics over the rows of a site, batch by batch."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch
from torch import Tensor

from secure_fl import limits
from secure_fl.errors import DataError
from secure_fl.tasks.metrics import Metric

log = logging.getLogger(__name__)


class Tally:
    """The sums so far. A metric that fails on some rows has none: a part of them would pass for all."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = {metric.name: metric for metric in metrics}
        self._sums = {name: [0] * metric.size for name, metric in self._metrics.items()}

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in the rows of one batch. Never raises: what a model does to a metric is the site's business alone."""
        for name in tuple(self._sums):
            try:
                found = _counted(self._metrics[name], outputs, targets)
                self._sums[name] = [before + more for before, more in zip(self._sums[name], found, strict=True)]
            except Exception as error:
                log.warning("metric %r cannot be measured here (%s)", name, type(error).__name__, exc_info=True)
                del self._sums[name]

    @property
    def sums(self) -> dict[str, tuple[int, ...]]:
        """By metric, its sums; a metric that failed, or whose sums are out of range, is not among them."""
        return {name: tuple(sums) for name, sums in self._sums.items() if max(sums) < 1 << limits.METRIC_SUM_BITS}


def _counted(metric: Metric, outputs: Tensor, targets: Tensor) -> list[int]:
    """The sums over a batch, as a metric's own code made them: as many as it said, whole and not negative."""
    if not torch.isfinite(outputs).all():
        raise DataError("the model's outputs are not finite")
    values = metric.sums(outputs, targets)
    found = [_whole(value) for value in (values.tolist() if isinstance(values, Tensor) else values)]
    if len(found) != metric.size:
        raise DataError(f"metric {metric.name!r} has {len(found)} sums, and says {metric.size}")
    return found


def _whole(value: object) -> int:
    number = value.item() if isinstance(value, Tensor) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or number != int(number) or number < 0:
        raise DataError("a sum is a whole number that is not negative")
    return int(number)
