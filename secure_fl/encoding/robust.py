"""Means over circles that a few of them cannot drag along: trimmed mean and median, coordinate by coordinate.

One site's word moves its circle's mean anywhere within ±clip, and the plain mean with it. Of k circles at most c hold
one of c colluding sites. Sort a coordinate's k circle means: whatever those c circles say, the values from the
(c + 1)-th smallest to the (c + 1)-th largest lie between the smallest and the largest of the honest circles'. Both
means here are made of nothing else, so they stay in that range, if k ≥ 2c + 1.

Circles count the same, however many sites or samples are behind them: a weight is a circle's own word, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from secure_fl.aggregation import Aggregate, BlockMean
from secure_fl.blocks import DTYPE, Vector
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.errors import ProtectionError, TooFewCirclesError

Kind: TypeAlias = Literal["trimmed", "median"]

_CELLS = 1 << 17  # doubles sorted at a time, whatever the number of circles: a megabyte


def robust_mean(circles: Sequence[BlockSum], *, codec: FixedPoint, kind: Kind, colluders: int) -> Vector:
    """One block's mean over its circles: the middle one, or the mean of all but the c smallest and c largest.

    Circle means are what `codec.decode` makes of each sum, before they are rounded to float32; the result is rounded
    once. The order of the circles does not matter, to the last bit. Memory beyond the result is a few megabytes.

    Raises `TooFewCirclesError` for fewer than 2c + 1 circles, `OverflowInvariantError` for a sum that its contributors
    cannot have made, and `ProtectionError` for sums of different blocks.

    >>> codec = FixedPoint(bits=16, clip=1.0)
    >>> sums = [[3277, 3277], [6553, 6553], [98301, -98301]]  # the third circle is at both ends of the clip
    >>> circles = [BlockSum(total=np.array(total), weight=3 * 64, contributors=3) for total in sums]
    >>> print(robust_mean(circles, codec=codec, kind="median", colluders=1).round(3))
    [0.067 0.033]
    """
    require_circles(len(circles), colluders)
    size = circles[0].total.size
    for circle in circles:
        codec.require_range(circle)
        if circle.total.size != size:
            raise ProtectionError("circles opened sums of different sizes")
    drop = colluders if kind == "trimmed" else (len(circles) - 1) // 2
    mean = np.empty(size, DTYPE)
    for part in _pieces(size, len(circles)):
        means = np.stack([circle.total[part] / _divisor(codec, circle) for circle in circles])
        means.sort(axis=0)
        mean[part] = _middle(means[drop : len(circles) - drop])
    return mean


def decode_circles(
    circles: Sequence[dict[str, BlockSum]], codec: FixedPoint, *, kind: Kind, colluders: int
) -> Aggregate:
    """The circles' opened sums as the means that a strategy may see: `decode_sums`, robustly.

    A block that fewer than 2c + 1 circles opened is absent, and keeps its value. Raises `TooFewCirclesError` where that
    is so for every block: the round makes no step. `circles` are empty afterwards: each block goes as it is decoded.
    """
    names = dict.fromkeys(name for circle in circles for name in circle)
    means: dict[str, BlockMean] = {}
    most = 0
    for name in names:
        block = [circle.pop(name) for circle in circles if name in circle]
        most = max(most, len(block))
        if len(block) > 2 * colluders:
            mean = robust_mean(block, codec=codec, kind=kind, colluders=colluders)
            means[name] = BlockMean(mean=mean, contributors=sum(circle.contributors for circle in block))
    if not means:
        require_circles(most, colluders)
    return Aggregate(means)


def require_circles(count: int, colluders: int) -> None:
    """Raise `TooFewCirclesError` unless so many circles can outvote those of the colluders."""
    if count < 2 * colluders + 1:
        raise TooFewCirclesError(have=count, need=2 * colluders + 1)


def _divisor(codec: FixedPoint, circle: BlockSum) -> float:
    return codec.scale * (circle.weight / WEIGHT_UNITS)  # as `FixedPoint.decode` has it


def _middle(kept: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The mean of sorted rows. Rounding could lift the mean of equal numbers above all of them: it is kept within."""
    mean: npt.NDArray[np.float64] = np.clip(kept.mean(axis=0), kept[0], kept[-1])
    return mean


def _pieces(size: int, circles: int) -> Iterator[slice]:
    width = max(1, _CELLS // circles)
    return (slice(start, min(start + width, size)) for start in range(0, size, width))
