"""What sums over changing sites say together, over all studies, as if no site's values ever changed.

A seed, a start or a task that differs is no protection: weights, measurements, small and convex models do not care. So
every sum a site was ever part of counts as a row of zeros and ones, and a new one is opened only if nobody stands out
in what all rows span. The same row again adds nothing. Three hospitals and then four show the fourth; three and then
six show three together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np

from secure_fl.errors import ReleaseRefusedError
from secure_fl.protect.past import CHANGING_COHORTS, Row
from secure_fl.protect.release.exact_algebra import Matrix, explained, rank_over_rationals

_BOUND = Fraction(1, 2)  # as the guard's: how much of a site's variance may be explained


def spanning(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Those of the rows that are no combination of the ones before: they say all that the others say."""
    kept: list[Row] = []
    for row in rows:
        if rank_over_rationals(_matrix([*kept, row])) > len(kept):
            kept.append(row)
    return tuple(kept)


def check_together(rows: Collection[Row], *, agreed: Collection[str], colluders: int) -> None:
    """Raise `ReleaseRefusedError`, naming a site, if sums over these rows show one that has not agreed.

    A member of a circle sees its sum and knows its own part, so at least one site is reckoned with that works with the
    coordinator; any may.
    """
    names = sorted({name for row in rows for name in row})
    weights = _matrix(list(rows), names)
    for coalition in combinations(range(len(names)), min(max(1, colluders), len(names) - 1)):
        honest = [column for column in range(len(names)) if column not in coalition]
        seen = weights[:, honest]
        shares, whole = explained(seen @ seen.T, seen)
        for column, share in zip(honest, shares, strict=True):
            if Fraction(share, whole) > _BOUND and names[column] not in agreed:
                raise ReleaseRefusedError(
                    f"{names[column]} would be shown: an earlier sum differs from this one by too few sites",
                    rule="history",
                    node=names[column],
                    coalition=tuple(names[index] for index in coalition),
                    advice=f"if {names[column]} agrees to be shown by the difference, its operator writes exceptions = "
                    f'["{CHANGING_COHORTS}"] under [policy]; otherwise let at least {max(1, colluders) + 2} sites join '
                    "or leave together",
                )


def _matrix(rows: Sequence[Row], names: Sequence[str] | None = None) -> Matrix:
    columns = names if names is not None else sorted({name for row in rows for name in row})
    return np.array([[int(name in row) for name in columns] for row in rows], np.int64).reshape(len(rows), len(columns))
