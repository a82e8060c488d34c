"""How far rounds can move a model, and whether it moved further.

A model that is far from the last one was not made by a round. It may be one that overflows on a single record, or one
that is dead but for the weights that somebody wants to read. So a site trains only from models within as many steps of
the last one it verified as there were rounds since, and a coordinator publishes no other.

The next model is fl(w + fl(fl(β)·fl(m))) in float32, where m is an opened mean and |β·m| ≤ `largest`. With u = 2⁻²⁴,
each fl moves its argument by at most u of it: the summand is at most `largest`·(1 + u)³, and the sum is off by at most
u of itself. Hence |new − old| ≤ L + u·|new| with L = `largest`·(1 + 4u), which leaves room for the subtraction below,
in float64. After k steps |old| ≤ (1 + u)·|new| + L for each of them, and so |new − old| ≤ g·(|new| + L/u) with
g = (1 + u)ᵏ − 1: k steps and what they round. Every point that near can be reached in k steps, along a straight line:
to look at the models in between would tell a site nothing more.
"""

from __future__ import annotations

import math

import numpy as np

from secure_fl.blocks import RESERVED, Blocks, Layout, Vector
from secure_fl.errors import StepTooLargeError

_CHUNK = 1 << 18  # values: 1 MiB of each model at a time
_U = 2.0**-24


def require_step(before: Blocks, after: Blocks, layout: Layout, *, largest: float, steps: int = 1) -> None:
    """Raise `StepTooLargeError` unless `after` is at most so many steps from `before`, in every coordinate.

    What is shipped beside the model, the reserved blocks, does not move at all. Both may be mapped from files: they are
    read a piece at a time.
    """
    for shape in layout:
        moves = largest > 0 and steps > 0 and not shape.name.startswith(RESERVED)
        old, new = before[shape.name], after[shape.name]
        for start in range(0, shape.size, _CHUNK):
            pair = old[start : start + _CHUNK], new[start : start + _CHUNK]
            if not (_within(*pair, largest, steps) if moves else _same(*pair)):
                raise StepTooLargeError(f"block {shape.name!r} moved further than {_rounds(steps)} can move it")


def _rounds(steps: int) -> str:
    return "one round" if steps == 1 else f"{steps} rounds"


def _within(old: Vector, new: Vector, largest: float, steps: int) -> bool:
    there = new.astype(np.float64)
    moved = np.abs(there - old)
    growth = math.expm1(steps * math.log1p(_U))
    room = growth * np.abs(there) + growth / _U * largest * (1 + 4 * _U)
    return bool((np.isfinite(moved) & (moved <= room)).all())


def _same(old: Vector, new: Vector) -> bool:
    """Bit for bit: NaN is itself, and −0 is not 0."""
    return np.array_equal(old.view(np.uint32), new.view(np.uint32))
