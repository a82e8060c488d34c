"""What a site measures on its own test data, and how that may leave: alone, inside the protected sum, or not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secure_fl.aggregation import RequestKind
from secure_fl.blocks import DTYPE, RESERVED, BlockShape, Layout, TensorShape, Vector
from secure_fl.encoding.fixed_point import FixedPoint

METRICS_BLOCK = f"{RESERVED}metrics"
_ANYBODY = 1 / 1024
METRICS_SHAPE = BlockShape(name=METRICS_BLOCK, tensors=(TensorShape(name="values", shape=(6,)),))


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


def to_vector(metrics: SiteMetrics, *, ceiling: float) -> Vector:
    """Measurements as a block for the protected sum. What does not exist counts as zero at every site alike.

    A loss or squared error above `ceiling`, or one that is no number, does not fit; the last two values say so, since a
    mean of values that were cut off would be wrong without anybody noticing.
    """
    loss, mse = (metrics.loss or 0.0), (metrics.mse or 0.0)
    loss_fits, mse_fits = loss <= ceiling, mse <= ceiling  # NaN does not.
    values = (
        metrics.accuracy or 0.0,
        loss / ceiling if loss_fits else 1.0,
        mse / ceiling if mse_fits else 1.0,
        metrics.global_accuracy or 0.0,
        float(not loss_fits),
        float(not mse_fits),
    )
    return np.array(values, DTYPE)


def from_vector(mean: Vector, *, ceiling: float, classification: bool, has_global_model: bool) -> SiteMetrics:
    """The cohort's mean measurements; None for what some site could not express."""
    accuracy, loss, mse, global_accuracy, loss_cut, mse_cut = (float(value) for value in mean)
    # One site of 512 that counts like the others weighs more than this; rounding moves a mean by far less.
    return SiteMetrics(
        accuracy=accuracy if classification else None,
        loss=loss * ceiling if loss_cut < _ANYBODY else None,
        mse=mse * ceiling if not classification and mse_cut < _ANYBODY else None,
        global_accuracy=global_accuracy if classification and has_global_model else None,
    )


def with_metrics(layout: Layout, kind: RequestKind, *, share: str) -> Layout:
    """The blocks a round opens: the strategy's and, where metrics are shared in aggregate, theirs."""
    if share == "aggregate" and kind is RequestKind.SUM:
        return Layout((*layout.shapes, METRICS_SHAPE))
    return layout
