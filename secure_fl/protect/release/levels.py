"""Weights at few levels, where that lets a row pass.

The guard's kernel rule refuses rows whose weights are almost but not quite equal: (34, 32, 31, 31) leaves no short
relation between the errors that hide, (32, 32, 32, 32) does. What a recipient wants is hardly changed by that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise

from secure_fl.protect.release.combinations import refusal, whole_weights


def passing_row(
    shares: Mapping[str, float], total: int, *, me: str, uploaded: Collection[str], colluders: int
) -> dict[str, int]:
    """Integers in proportion to `shares`; if the kernel rule refuses them, the nearest at fewer levels that it passes.

    The same sites are in it. Where there is no such row, the refused one: its recipient will keep its own model.
    """
    row = whole_weights(shares, total)
    if not row or refusal(row, me=me, uploaded=uploaded, colluders=colluders, asked=()) != "kernel":
        return row
    whole = sum(shares[name] for name in row)
    exact = {name: total * shares[name] / whole for name in row}

    def off(candidate: Mapping[str, int]) -> float:
        return sum(abs(weight - exact[name]) for name, weight in candidate.items())

    # Ties go by name: a mapping's order must not matter.
    for candidate in sorted(_coarser(exact, total, me), key=lambda c: (off(c), sorted(c.items()))):
        if not refusal(candidate, me=me, uploaded=uploaded, colluders=colluders, asked=()):
            return candidate
    return row


def _coarser(exact: Mapping[str, float], total: int, me: str) -> Iterator[dict[str, int]]:
    """Rows over the same sites in which peers have few different weights, all multiples of a unit.

    The recipient has the rest: its own weight hides nobody from it. So peers that are wanted alike weigh alike.
    """
    peers = {name: weight for name, weight in exact.items() if name != me}
    for levels in range(1, len(peers) + 1):
        merged = _merged(peers, levels)
        unit = 1
        while unit * len(peers) < total:
            for rounded in (math.floor, round, math.ceil):
                row = {name: unit * rounded(weight / unit) for name, weight in merged.items()}
                mine = total - sum(row.values())
                if min(row.values()) > 0 < mine:
                    yield {**row, me: mine}
            unit *= 2


def _merged(shares: Mapping[str, float], levels: int) -> dict[str, float]:
    """Shares at so many levels: those with the smallest gaps between them become their mean."""
    ordered = sorted(shares, key=lambda name: (shares[name], name))
    gaps = sorted(range(1, len(ordered)), key=lambda at: shares[ordered[at - 1]] - shares[ordered[at]])
    cuts = [0, *sorted(gaps[: levels - 1]), len(ordered)]
    merged: dict[str, float] = {}
    for start, end in pairwise(cuts):
        group = ordered[start:end]
        merged |= dict.fromkeys(group, sum(shares[name] for name in group) / len(group))
    return merged
