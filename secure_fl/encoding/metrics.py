"""What a site measures on its own test data, and how that may leave: alone, inside the protected sum, or not.

In the sum every site counts the same, whatever its weight in the model: a mean of measurements is a mean over sites.
Beside the six measurements that every task has are the sums of the metrics that a task declares. Those are whole
numbers and stay exact: each is cut into digits that fit the study's `bits`, digits are added up by themselves, and the
sum of all sites is put together from the sums of digits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from secure_fl import limits
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import DTYPE, RESERVED, BlockShape, Layout, TensorShape, Vector
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum, Integers, Totals
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.errors import OverflowInvariantError
from secure_fl.randomness import KeyStream

METRICS_BLOCK = f"{RESERVED}metrics"
_ANYBODY = 1 / 1024
_VALUES = TensorShape(name="values", shape=(6,))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteMetrics:
    """One site's measurements, or the mean over a cohort."""

    samples: int | None = None
    accuracy: float | None = None
    loss: float | None = None
    mse: float | None = None
    global_accuracy: float | None = None
    # Of the metrics that the task declares, by name: a site's, or a cohort's together. One that is unknown is missing.
    sums: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # JSON has lists only, and what was read is equal to what was written.
        object.__setattr__(self, "sums", {name: tuple(values) for name, values in self.sums.items()})


def metrics_codec(bits: int) -> FixedPoint:
    """The grid of the metrics block: values are scaled to [0, 1]."""
    return FixedPoint(bits=bits, clip=1.0)


def to_vector(metrics: SiteMetrics, *, ceiling: float) -> Vector:
    """Measurements as a block for the protected sum. What does not exist counts as zero at every site alike.

    A loss or squared error above `ceiling`, or one that is no number, does not fit; the last two values say so, since a
    mean of values that were cut off would be wrong without anybody noticing.
    """
    loss, mse = (metrics.loss or 0.0), (metrics.mse or 0.0)
    loss_fits, mse_fits = _fits(loss, ceiling), _fits(mse, ceiling)
    values = (
        _part(metrics.accuracy),
        loss / ceiling if loss_fits else 1.0,
        mse / ceiling if mse_fits else 1.0,
        _part(metrics.global_accuracy),
        float(not loss_fits),
        float(not mse_fits),
    )
    return np.array(values, DTYPE)


def _part(value: float | None) -> float:
    """An accuracy; a task's own code may make one that is no number."""
    return value if value is not None and math.isfinite(value) else 0.0


def _fits(value: float, ceiling: float) -> bool:
    return abs(value) <= ceiling  # NaN does not, and some losses can be −∞.


def from_vector(mean: Vector, *, ceiling: float, classification: bool, has_global_model: bool) -> SiteMetrics:
    """The cohort's mean measurements; None for what some site could not express."""
    accuracy, loss, mse, global_accuracy, loss_cut, mse_cut = (float(value) for value in mean)
    # One site of 512 counts for more than this; rounding moves a mean by far less.
    return SiteMetrics(
        accuracy=accuracy if classification else None,
        loss=loss * ceiling if loss_cut < _ANYBODY else None,
        mse=mse * ceiling if not classification and mse_cut < _ANYBODY else None,
        global_accuracy=global_accuracy if classification and has_global_model else None,
    )


# --- sums of a task's own metrics -----------------------------------------------------------------------------------


def digits(bits: int) -> int:
    """Into how many numbers of that many bits, sign included, the largest possible sum of a site is cut."""
    return -(-limits.METRIC_SUM_BITS // (bits - 1))


def to_digits(sums: Mapping[str, Sequence[int]], *, sizes: Mapping[str, int], bits: int) -> Integers:
    """A site's sums: for each metric, whether it is unknown here, and the digits of each sum, lowest first.

    What is missing, or is not as many sums as `sizes` says, or is out of range, counts as unknown: nothing that a
    task's code does may leave the range that was agreed upon.
    """
    places = digits(bits)
    found: list[int] = []
    for name, size in sizes.items():
        own = sums.get(name, ())
        known = len(own) == size and all(0 <= each < 1 << limits.METRIC_SUM_BITS for each in own)
        found.append(int(not known))
        for each in own if known else [0] * size:
            found += [each >> (place * (bits - 1)) & ((1 << (bits - 1)) - 1) for place in range(places)]
    return np.array(found, np.int32)


def from_digits(totals: Totals, *, sizes: Mapping[str, int], bits: int) -> dict[str, tuple[int, ...]]:
    """The cohort's sums, without the metrics that some site did not know, or that no honest sites can have made."""
    places, values, at = digits(bits), [int(each) for each in totals], 0
    sums: dict[str, tuple[int, ...]] = {}
    for name, size in sizes.items():
        unknown, block = values[at], values[at + 1 : at + 1 + size * places]
        at += 1 + size * places
        if unknown == 0 and min(block, default=0) >= 0:
            sums[name] = tuple(
                sum(digit << (place * (bits - 1)) for place, digit in enumerate(block[start : start + places]))
                for start in range(0, len(block), places)
            )
    return sums


# --- the block ------------------------------------------------------------------------------------------------------


def metrics_shape(sizes: Mapping[str, int], *, bits: int) -> BlockShape:
    """The block of measurements: the six that every task has and, where a task declares metrics, their digits."""
    length = sum(1 + size * digits(bits) for size in sizes.values())
    own = (TensorShape(name="sums", shape=(length,)),) if length else ()
    return BlockShape(name=METRICS_BLOCK, tensors=(_VALUES, *own))


def with_metrics(layout: Layout, kind: RequestKind, *, share: str, sizes: Mapping[str, int], bits: int) -> Layout:
    """The blocks a round opens: the strategy's and, where metrics are shared in aggregate, theirs."""
    if share == "aggregate" and kind is RequestKind.SUM:
        return Layout((*layout.shapes, metrics_shape(sizes, bits=bits)))
    return layout


def encode_metrics(
    metrics: SiteMetrics, *, ceiling: float, sizes: Mapping[str, int], bits: int, stream: KeyStream
) -> Integers:
    """A site's block. Its weight in the model plays no part."""
    vector = to_vector(metrics, ceiling=ceiling)
    values, _ = metrics_codec(bits).encode(vector, weight=WEIGHT_UNITS, stream=stream)
    return np.concatenate((values, to_digits(metrics.sums, sizes=sizes, bits=bits)))


def decode_metrics(
    block: BlockSum,
    *,
    ceiling: float,
    sizes: Mapping[str, int],
    bits: int,
    classification: bool,
    has_global_model: bool,
) -> SiteMetrics:
    """The mean over the sites behind an opened block, and the sums of all of them together."""
    shape = metrics_shape(sizes, bits=bits)
    if block.total.size != shape.size:
        raise OverflowInvariantError(f"{block.total.size} measurements were opened; the study has {shape.size}")
    values = replace(_counted_alike(block), total=block.total[: _VALUES.size])
    mean = from_vector(
        metrics_codec(bits).decode(values),
        ceiling=ceiling,
        classification=classification,
        has_global_model=has_global_model,
    )
    return replace(mean, sums=from_digits(block.total[_VALUES.size :], sizes=sizes, bits=bits))


def require_range(name: str, block: BlockSum, codec: FixedPoint) -> None:
    """Raise `OverflowInvariantError` unless the block's contributors can have made its sum."""
    codec.require_range(_counted_alike(block) if name == METRICS_BLOCK else block)


def _counted_alike(block: BlockSum) -> BlockSum:
    return replace(block, weight=block.contributors * WEIGHT_UNITS)
