"""The sums of circles, each checked by itself as it is opened, as the one sum that a strategy's mean is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum
from secure_fl.errors import ProtectionError
from secure_fl.protect.contract import Opened, OpenedSums


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedCircles(OpenedSums):
    """Sums of several circles that stay apart."""

    circles: list[OpenedSums]


class CircleSums:
    """Adds up. Where means have to be robust, every circle's sum is kept by itself instead."""

    def __init__(self, codec: FixedPoint, *, robust: bool) -> None:
        self._codec = codec
        self._robust = robust
        self._circles: list[OpenedSums] = []

    def add(self, opened: Opened) -> None:
        """Take in one circle's sum, or raise `OverflowInvariantError` and stay as before.

        A mean beyond the clip is impossible for sites that follow the rules. Looked for in each circle, because the
        sum of all has room for what a single site of one circle must not be able to add.
        """
        if not isinstance(opened, OpenedSums):
            raise ProtectionError("a circle opens a sum")
        for block in opened.blocks.values():
            self._codec.require_range(block)
        if self._robust or not self._circles:
            self._circles.append(opened)
            return
        total = self._circles[0]
        blocks = opened.taken()
        for name in tuple(blocks):
            block = blocks.pop(name)
            total.blocks[name] = _sum(total.blocks[name], block) if name in total.blocks else block
        self._circles[0] = OpenedSums(blocks=total.blocks, cohort=tuple(sorted((*total.cohort, *opened.cohort))))

    def total(self) -> OpenedSums:
        """Everything that was opened; handed over."""
        if not self._robust:
            return self._circles.pop()
        return OpenedCircles(
            blocks={},
            cohort=tuple(sorted(name for circle in self._circles for name in circle.cohort)),
            circles=self._circles,
        )


def _sum(total: BlockSum, block: BlockSum) -> BlockSum:
    # In place: `require_room` has made sure that sums of the whole roster fit.
    np.add(total.total, block.total, out=total.total)
    return BlockSum(
        total=total.total, weight=total.weight + block.weight, contributors=total.contributors + block.contributors
    )
