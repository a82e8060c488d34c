"""Circles: how a study divides its roster, once, so that every sum it ever opens is the sum of a whole circle.

Whatever is opened in any attempt, round or evaluation then lies in the span of the circles' sums. With equal weights
the best estimate of one site's update, by a coordinator that works with c other sites, explains at most 1/(g − c) of
its variance in a circle of g, for ever: there is no second sum with one site more or less to subtract.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import TypeAlias

from secure_fl.errors import SettingsError
from secure_fl.protect.past import CHANGING_COHORTS

Circle: TypeAlias = tuple[str, ...]  # names of sites, sorted


def smallest_circle(colluders: int) -> int:
    """The fewest sites of a circle: two that nobody else speaks for."""
    return max(3, colluders + 2)


def require_recovery(strategy: str, exceptions: Collection[str], *, recovery: bool) -> None:
    """Raise `SettingsError` where a strategy's sums have other sites each time and would be opened by circle.

    A site that sends a block in one round and not in the next cannot be in a whole circle's sum of it.
    """
    if CHANGING_COHORTS in exceptions and not recovery:
        raise SettingsError(
            f"strategy {strategy!r} lets each site decide in every round what it sends, and whole circles send alike",
            advice='write strategy.gating = "public", by which whole circles send the same blocks; or '
            f"protection.recovery = true, where each site lists {CHANGING_COHORTS!r} in its [policy] exceptions",
        )


def divide(names: Collection[str], *, colluders: int, at_least: int = 0) -> tuple[Circle, ...]:
    """As many circles as the roster allows, by name and of nearly the same size.

    A circle's sum is seen by its own members, too, so at least one colluder is reckoned with: c + 3 sites leave three
    behind each other where c were enough for two. A roster that is smaller than that is one circle.

    >>> divide(["a", "b", "c", "d", "e", "f", "g", "h", "i"], colluders=1)
    (('a', 'b', 'c', 'd', 'e'), ('f', 'g', 'h', 'i'))
    """
    count = max(1, len(names) // max(max(1, colluders) + 3, at_least))
    size, larger = divmod(len(names), count)
    return in_order(sorted(names), sizes=[size + (index < larger) for index in range(count)])


def in_order(names: Sequence[str], *, sizes: Sequence[int]) -> tuple[Circle, ...]:
    """The first `sizes[0]` names are a circle, the next ones another."""
    ends = list(accumulate(sizes))
    pieces = (names[end - size : end] for size, end in zip(sizes, ends, strict=True))
    return tuple(tuple(sorted(piece)) for piece in pieces if piece)


def checked(circles: Sequence[Sequence[str]], names: Collection[str], *, at_least: int) -> tuple[Circle, ...]:
    """Circles that a study lists, sorted. Raises `SettingsError` unless each site is in exactly one large enough."""
    listed = [name for circle in circles for name in circle]
    if sorted(listed) != sorted(names):
        wrong = sorted(set(listed) ^ set(names)) or sorted({name for name in listed if listed.count(name) > 1})
        raise SettingsError(
            f"protection.circles: {', '.join(wrong)} must be in the roster and in one circle",
            advice='list each site of the roster once, or write circles = "auto"',
        )
    small = [circle for circle in circles if len(circle) < at_least]
    if small:
        raise SettingsError(
            f"protection.circles: {', '.join(small[0]) or 'an empty circle'} is a circle of fewer than {at_least}",
            advice="make fewer and larger circles; what a smaller one opens would show its sites",
        )
    return tuple(sorted(tuple(sorted(circle)) for circle in circles))
