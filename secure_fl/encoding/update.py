"""Between the protections' integers and the strategies' floats: one update encoded, one opened sum decoded."""

from __future__ import annotations

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


def decode_sums(sums: dict[str, BlockSum], codec: FixedPoint) -> Aggregate:
    """Opened sums as the per-block means a strategy may see. `sums` is empty afterwards: each goes as it is decoded."""
    means: dict[str, BlockMean] = {}
    for name in tuple(sums):
        block = sums.pop(name)
        means[name] = BlockMean(mean=codec.decode(block), contributors=block.contributors)
    return Aggregate(means)
