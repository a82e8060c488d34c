"""What sums over changing sites say together, over all studies, as if no site's values ever changed.

A seed, a start or a task that differs is no protection: weights, measurements, small and convex models do not care. So
every sum a site was ever part of counts as a row of zeros and ones, and a new one is opened only under two rules. Who
agreed to be shown by differences counts as known throughout, and hides nobody.

Growing     A new row contains every earlier row that it meets. A site knows only rows it was part of, and of peers what
            they tell; a row that cut an earlier one apart could be completed by a third that neither knows. Rows that
            only grow are nested or disjoint, and whoever is in an earlier row is there to tell of it.
Leverage    In what the new row and the earlier ones inside it span, nobody stands out: for any c sites that work with
            the coordinator, no more than half of another site's variance is explained. Four and then five show the
            fifth; three and then six show three together.

The same row again adds nothing and always passes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np

from secure_fl.errors import ProtectionError, ReleaseRefusedError
from secure_fl.protect.past import CHANGING_COHORTS, Row
from secure_fl.protect.release.exact_algebra import Matrix, explained, rank_over_rationals

_MOST = 256  # names that are judged together: what it costs grows with their square and more
_BOUND = Fraction(1, 2)  # as the guard's: how much of a site's variance may be explained


def spanning(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Those of the rows that are no combination of the ones before: they say all that the others say."""
    kept: list[Row] = []
    for row in rows:
        if rank_over_rationals(_matrix([*kept, row])) > len(kept):
            kept.append(row)
    return tuple(kept)


def check_together(new: Row, earlier: Collection[Row], *, agreed: Collection[str], colluders: int) -> None:
    """Raise `ReleaseRefusedError`, naming a site, unless `new` may be opened after `earlier`.

    A member of a circle sees its sum and knows its own part, so at least one site is reckoned with that works with the
    coordinator; any may.
    """
    hidden = _without(new, agreed)
    met = check_growth(new, earlier, agreed=agreed, colluders=colluders)
    names = sorted({*hidden}.union(*met))
    if len(names) > _MOST:
        raise ProtectionError("too many sites were part of sums with these to judge what their sums say together")
    weights = _matrix([row for row in (hidden, *sorted(met)) if row], names)
    for coalition in combinations(range(len(names)), min(max(1, colluders), max(0, len(names) - 1))):
        honest = [column for column in range(len(names)) if column not in coalition]
        seen = weights[:, honest]
        shares, whole = explained(seen @ seen.T, seen)
        for column, share in zip(honest, shares, strict=True):
            if Fraction(share, whole) > _BOUND:
                others = tuple(names[index] for index in coalition)
                why = "an earlier sum differs from this one by too few sites" if met else "too few others hide it"
                _refuse(names[column], others, colluders, why)


def check_growth(new: Row, earlier: Collection[Row], *, agreed: Collection[str], colluders: int) -> set[Row]:
    """The earlier rows that `new` meets, without who agreed; `ReleaseRefusedError` unless it contains them."""
    hidden = _without(new, agreed)
    met = {_without(row, agreed) for row in earlier if set(row) & set(new)} - {hidden, ()}
    why = "it was added up with some of these sites before, and is not among them now"
    for row in sorted(met):
        if set(row) & set(hidden) and (left := sorted(set(row) - set(hidden))):
            _refuse(left[0], (), colluders, why)
    return met


def _refuse(site: str, coalition: tuple[str, ...], colluders: int, why: str) -> None:
    raise ReleaseRefusedError(
        f"{site} would be shown: {why}",
        rule="history",
        node=site,
        coalition=coalition,
        advice=f"if {site} agrees to be shown by the difference, its operator writes exceptions = "
        f'["{CHANGING_COHORTS}"] under [policy]; otherwise let at least {max(1, colluders) + 2} sites join together, '
        "and none leave",
    )


def _without(row: Row, agreed: Collection[str]) -> Row:
    return tuple(name for name in row if name not in agreed)


def _matrix(rows: Sequence[Row], names: Sequence[str] | None = None) -> Matrix:
    columns = names if names is not None else sorted({name for row in rows for name in row})
    return np.array([[int(name in row) for name in columns] for row in rows], np.int64).reshape(len(rows), len(columns))
