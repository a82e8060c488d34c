"""What a site measures on its own test data, and how that may leave: alone, inside the protected sum, or not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secure_fl.blocks import DTYPE, BlockShape, Layout, TensorShape, Vector
from secure_fl.protect.base import RequestKind
from secure_fl.protect.fixed_point import FixedPoint

# A reserved block: no task can have one of this name, since "@" starts no Python attribute.
METRICS_BLOCK = "@metrics"
METRICS_SHAPE = BlockShape(name=METRICS_BLOCK, tensors=(TensorShape(name="values", shape=(4,)),))

# Loss and squared error are cut off here before they enter a sum; accuracy lies in [0, 1] anyway.
_CEILING = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteMetrics:
    """One site's measurements, or the mean over a cohort."""

    samples: int | None = None
    accuracy: float | None = None
    loss: float | None = None
    mse: float | None = None
    global_accuracy: float | None = None


def metrics_codec(bits: int) -> FixedPoint:
    """The grid of the metrics block: values are scaled to [0, 1]."""
    return FixedPoint(bits=bits, clip=1.0)


def to_vector(metrics: SiteMetrics) -> Vector:
    """Measurements as a block for the protected sum. What does not exist counts as zero at every site alike."""
    ceilings = (1.0, _CEILING, _CEILING, 1.0)
    values = (metrics.accuracy, metrics.loss, metrics.mse, metrics.global_accuracy)
    scaled = [min(value or 0.0, ceiling) / ceiling for value, ceiling in zip(values, ceilings, strict=True)]
    return np.array(scaled, DTYPE)


def from_vector(mean: Vector, *, classification: bool, has_global_model: bool) -> SiteMetrics:
    """The cohort's mean measurements."""
    accuracy, loss, mse, global_accuracy = (float(value) for value in mean)
    return SiteMetrics(
        accuracy=accuracy if classification else None,
        loss=loss * _CEILING,
        mse=None if classification else mse * _CEILING,
        global_accuracy=global_accuracy if classification and has_global_model else None,
    )


def with_metrics(layout: Layout, kind: RequestKind, *, share: str) -> Layout:
    """The blocks a round opens: the strategy's and, where metrics are shared in aggregate, theirs."""
    if share == "aggregate" and kind is RequestKind.SUM:
        return Layout((*layout.shapes, METRICS_SHAPE))
    return layout
