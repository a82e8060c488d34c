"""Between the protections' integers and the strategies' floats: one update encoded, one opened sum decoded."""

from __future__ import annotations

from collections.abc import Mapping

from secure_fl.blocks import Blocks, Layout
from secure_fl.protect.base import BlockSum, Contribution
from secure_fl.protect.fixed_point import FixedPoint
from secure_fl.randomness import KeyStream
from secure_fl.strategies.base import Aggregate, BlockMean


def encode_update(
    update: Blocks,
    *,
    layout: Layout,
    codec: FixedPoint,
    weight: int,
    stream: KeyStream,
) -> tuple[Contribution, int]:
    """A node's update as ring integers, and the number of coordinates that had to be clipped."""
    layout = layout.select(update)
    layout.check({name: update[name] for name in layout.names})
    blocks = {}
    clipped = 0
    for name in layout.names:
        blocks[name], outside = codec.encode(update[name], weight=weight, stream=stream)
        clipped += outside
    return Contribution(blocks=blocks, weight=weight), clipped


def decode_sums(sums: Mapping[str, BlockSum], codec: FixedPoint) -> Aggregate:
    """Opened sums as the per-block means a strategy may see."""
    return Aggregate(
        {name: BlockMean(mean=codec.decode(block), contributors=block.contributors) for name, block in sums.items()}
    )
