"""The sums of circles, each checked by itself as it is opened, as the one sum that a strategy's mean is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum
from secure_fl.encoding.metrics import METRICS_BLOCK, require_range
from secure_fl.errors import ProtectionError
from secure_fl.protect.contract import Opened, OpenedSums


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedCircles(OpenedSums):
    """Sums of several circles that stay apart, but for measurements."""

    circles: list[dict[str, BlockSum]]


class CircleSums:
    """Adds up. Where means have to be robust, every circle's sum is kept by itself instead."""

    def __init__(self, codec: FixedPoint, *, robust: bool) -> None:
        self._codec = codec
        self._robust = robust
        self._cohort: tuple[str, ...] = ()
        self._total: dict[str, BlockSum] = {}
        self._circles: list[dict[str, BlockSum]] = []

    def add(self, opened: Opened) -> None:
        """Take in one circle's sum, or raise `OverflowInvariantError` and stay as before.

        A mean beyond the clip is impossible for sites that follow the rules. Looked for in each circle, because the
        sum of all has room for what a single site of one circle must not be able to add.
        """
        if not isinstance(opened, OpenedSums):
            raise ProtectionError("a circle opens a sum")
        for name, block in opened.blocks.items():
            require_range(name, block, self._codec)
        self._cohort = tuple(sorted((*self._cohort, *opened.cohort)))
        blocks = opened.taken()
        if self._robust:
            self._circles.append({name: blocks.pop(name) for name in tuple(blocks) if name != METRICS_BLOCK})
        for name in tuple(blocks):
            block = blocks.pop(name)
            self._total[name] = _sum(self._total[name], block) if name in self._total else block

    def total(self) -> OpenedSums:
        """Everything that was opened; handed over."""
        if self._robust:
            return OpenedCircles(blocks=self._total, cohort=self._cohort, circles=self._circles)
        return OpenedSums(blocks=self._total, cohort=self._cohort)


def measurements(circles: Iterable[Opened]) -> OpenedSums:
    """What several circles measured, as one sum: their sites count in it as they would in a round of all of them.

    It is taken out of what each of them opened.
    """
    total: dict[str, BlockSum] = {}
    cohort: list[str] = []
    for opened in circles:
        if isinstance(opened, OpenedSums) and (block := opened.blocks.pop(METRICS_BLOCK, None)) is not None:
            total[METRICS_BLOCK] = _sum(total[METRICS_BLOCK], block) if total else block
            cohort += opened.cohort
    return OpenedSums(blocks=total, cohort=tuple(sorted(cohort)))


def _sum(total: BlockSum, block: BlockSum) -> BlockSum:
    # In place: `require_room` has made sure that sums of the whole roster fit.
    np.add(total.total, block.total, out=total.total)
    return BlockSum(
        total=total.total, weight=total.weight + block.weight, contributors=total.contributors + block.contributors
    )
