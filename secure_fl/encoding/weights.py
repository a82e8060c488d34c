"""How much a node counts in a weighted mean, without anybody learning its sample count.

ω = min(1, N/N_ref), quantised to 1/64 once and used in numerator and denominator. One dominant hospital *is* the mean,
and nobody sees the weights, so nobody could check that afterwards; it is made true by construction. Of at least m
contributors (`min_cohort`), c may side with the coordinator and subtract their part. The k = m − c others are left in a
sum whose leverage on one of them is ω_j²/Σ ω² (docs/guard.md). With 1 ≥ ω ≥ f for everybody that is at most
1/(1 + (k − 1)·f²), hence at most one half if f = 1/√(k − 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

from secure_fl.encoding.integers import BlockSum
from secure_fl.errors import DataError

WEIGHT_UNITS = 64


def weight_floor(min_cohort: int, colluders: int) -> int:
    """The smallest weight a node may have, in units of 1/64: the least f with (m − c − 1)·f² ≥ 64²."""
    others = max(1, min_cohort - colluders - 1)
    return 1 + isqrt((WEIGHT_UNITS**2 - 1) // others)


def quantise_weight(
    samples: int, *, reference_samples: int | None, min_cohort: int, colluders: int, richness: float = 1.0
) -> int:
    """A node's weight in units of 1/64. Without a reference every node counts the same.

    `richness` is the part, above 0 and at most 1, by which the strategy lets its samples count.
    """
    if samples <= 0:
        raise DataError("the site has no training samples")
    if not 0 < richness <= 1:  # Written so that NaN is refused too.
        raise DataError("a site's samples count by a part above 0 and at most 1, and the strategy says another")
    if reference_samples is None:
        return WEIGHT_UNITS
    wanted = round(WEIGHT_UNITS * samples * richness / reference_samples)
    return min(WEIGHT_UNITS, max(weight_floor(min_cohort, colluders), wanted))


def aged_weight(weight: int, part: float, *, min_cohort: int, colluders: int) -> int:
    """What is left of a node's weight if old work counts by `part`: never less than keeps others from standing out."""
    return min(weight, max(weight_floor(min_cohort, colluders), round(weight * part)))


def whole_weight(sums: Mapping[str, BlockSum], *, sites: int) -> float:
    """What all `sites` of an opened sum weigh together, in units of 1/64; call it before the sums are taken.

    The largest cohort says it: where measurements are shared, or any block is, by all, exactly. Sites that are in no
    block of that cohort count as much as those in it do on average.
    """
    largest = max(sums.values(), key=lambda block: block.contributors, default=None)
    return float(WEIGHT_UNITS * sites) if largest is None else largest.weight * sites / largest.contributors
