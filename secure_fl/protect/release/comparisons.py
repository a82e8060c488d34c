"""How often a site lets one peer learn how far its features are.

What a comparison tells cannot be made coarser by the one who is compared: the recipient interpolates the exact number,
of 61 bits, and may compare with whatever features it likes. k + 1 comparisons with features of its own choosing solve
for the whole sketch. So their number is limited, for each pair and data set, for ever: attempts that came to nothing
count, other studies count. The limits belong to how many numbers there are to guess (docs/sealed.md has what an
attacker makes of them).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

MORE = "more-comparisons"  # the exception by which sites lift the limit for a study (`strategies.attention`)

_ALLOWED = ((4500, 4), (600, 2))  # from so many features, so many comparisons; below that none


class Comparisons(Protocol):
    """What a node counts, beyond the life of any study."""

    def count(self, peers: Collection[str]) -> None:
        """Note that this site's features are compared with those of `peers`: durable when it returns.

        Called before anything leaves by which a distance could be opened. Raises `RefusedError` if one of them has
        had its comparisons (nothing is noted then), or `StorageError`.
        """
        ...


def fewest() -> int:
    """Of how many features on a peer gets any comparison."""
    return min(least for least, _ in _ALLOWED)


def allowed(features: int) -> int:
    """How many comparisons of so many features one peer gets."""
    return next((count for least, count in _ALLOWED if features >= least), 0)
