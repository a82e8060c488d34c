"""How rich a site's labels are, AiFed's LIR: by how much its number of samples counts in its weight.

IE = −Σ p_i·log2 p_i over the classes a site has                                                        AiFed (12)
LN = how many classes it has                                                                            AiFed (13)

Weights are compared with each other only, so both are divided by the most there can be: they lie in (0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Collection

# Of a site with one class alone, whose entropy is 0: it would not count at all.
LEAST = 1 / 64


def entropy(counts: Collection[int]) -> float:
    """IE, in bits, of so many samples of each class.

    >>> round(entropy([50, 30, 20]), 6)
    1.485475
    """
    total = sum(counts)
    return math.fsum(count / total * math.log2(total / count) for count in counts if count)


def by_entropy(counts: Collection[int], classes: int) -> float:
    """IE as a part of log2(`classes`), the most there can be; at least `LEAST`."""
    return _within(entropy(counts) / math.log2(classes)) if classes > 1 else 1.0


def by_labels(counts: Collection[int], classes: int) -> float:
    """LN as a part of all `classes`."""
    return _within(sum(count > 0 for count in counts) / classes)


def _within(richness: float) -> float:
    return min(1.0, max(LEAST, richness))
