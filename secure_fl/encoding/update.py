"""Between the protections' integers and the strategies' floats: one update encoded, one opened sum decoded."""

from __future__ import annotations

import numpy as np

from secure_fl.aggregation import Aggregate, BlockMean
from secure_fl.blocks import Blocks, Layout
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum, Integers
from secure_fl.randomness import KeyStream


def encode_update(
    update: Blocks,
    *,
    layout: Layout,
    codec: FixedPoint,
    weight: int,
    stream: KeyStream,
) -> tuple[dict[str, Integers], int]:
    """A node's update as ring integers, and the number of coordinates that had to be clipped."""
    blocks: dict[str, Integers] = {}
    clipped = 0
    for shape in layout.select(update):
        vector = update[shape.name]  # Read when it is its turn: floats of the whole model are never there at once.
        Layout((shape,)).check({shape.name: vector})
        blocks[shape.name], outside = codec.encode(vector, weight=weight, stream=stream)
        clipped += outside
    return blocks, clipped


def decode_sums(sums: dict[str, BlockSum], codec: FixedPoint, *, whole: float | None = None) -> Aggregate:
    """Opened sums as the per-block means a strategy may see. `sums` is empty afterwards: each goes as it is decoded.

    A mean is over those who sent the block. With `whole`, what all sites weigh together, it is over all of them:
    whoever left the block out counts as one that did not change it.
    """
    means: dict[str, BlockMean] = {}
    for name in tuple(sums):
        block = sums.pop(name)
        mean = codec.decode(block)
        if whole is not None and block.weight < whole:
            np.multiply(mean, np.float32(block.weight / whole), out=mean)
        means[name] = BlockMean(mean=mean, contributors=block.contributors)
    return Aggregate(means)
