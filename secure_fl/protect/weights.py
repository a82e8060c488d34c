"""How much a node counts in a weighted mean, without anybody learning its sample count.

ω = min(1, N/N_ref), quantised to 1/64 once and used in numerator and denominator. One dominant hospital *is* the
mean, so no node may hold more than half of a cohort's weight. Nobody sees the weights, so nobody could check
that afterwards; it is therefore made true by construction. With at least m contributors (`min_cohort`) and every
ω ≥ 1/(m − 1), the others together weigh at least (m − 1)·1/(m − 1) = 1 ≥ ω: half at most, whatever is hidden.
"""

from __future__ import annotations

from secure_fl.errors import DataError

WEIGHT_UNITS = 64


def weight_floor(min_cohort: int) -> int:
    """The smallest weight a node may have, in units of 1/64."""
    return -(-WEIGHT_UNITS // (min_cohort - 1))


def quantise_weight(samples: int, *, reference_samples: int | None, min_cohort: int) -> int:
    """A node's weight in units of 1/64. Without a reference every node counts the same."""
    if samples <= 0:
        raise DataError("the site has no training samples")
    if reference_samples is None:
        return WEIGHT_UNITS
    wanted = round(WEIGHT_UNITS * samples / reference_samples)
    return min(WEIGHT_UNITS, max(weight_floor(min_cohort), wanted))
