"""How a circle's shared blocks lie in 64-bit words, the same at every member and at the coordinator."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from secure_fl.encoding.integers import BlockSum, Integers
from secure_fl.protect.contract import RoundContext
from secure_fl.protect.masked.manifest import CircleCohort
from secure_fl.protect.primitives.packing import WORD, Packing, Words


@dataclass(frozen=True, slots=True, kw_only=True)
class CircleWords:
    """The blocks that every member holds, one after the other, then one word for the weight."""

    packing: Packing
    sizes: tuple[tuple[str, int], ...]  # of each block: its name and its values

    @classmethod
    def of(cls, context: RoundContext, cohort: CircleCohort) -> Self:
        """Lanes have room for the whole circle."""
        packing = Packing(bits=context.bits, contributors=len(cohort.names))
        return cls(packing=packing, sizes=tuple((block, context.layout[block].size) for block in cohort.common))

    @property
    def count(self) -> int:
        """Words of an upload, and of the sum."""
        return sum(self.packing.words(values) for _, values in self.sizes) + 1

    def pack(self, blocks: MutableMapping[str, Integers], weight: int) -> Words:
        """A member's words. Each block goes as it is packed: its memory is needed for what comes of it."""
        words: Words = np.empty(self.count, WORD)
        for name, _, part in self._parts(words):
            self.packing.pack(blocks.pop(name), part)
        blocks.clear()  # what not everybody holds stays here
        words[-1] = weight
        return words

    def unpack(self, words: Words) -> dict[str, BlockSum]:
        """What the sum of everybody's words says. Raises `OverflowInvariantError` for what no circle can add up to."""
        members, weight = self.packing.contributors, int(words[-1])
        return {
            name: BlockSum(
                total=self.packing.unpack(part, values, contributors=members), weight=weight, contributors=members
            )
            for name, values, part in self._parts(words)
        }

    def _parts(self, words: Words) -> Iterator[tuple[str, int, Words]]:
        start = 0
        for name, values in self.sizes:
            end = start + self.packing.words(values)
            yield name, values, words[start:end]
            start = end
