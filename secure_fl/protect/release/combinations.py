"""Combinations: the integer rows that recipients ask for, and which of them may be opened together.

A row gives every peer a weight, in units of 1/total. The total is the same for everybody in a round, so that one scale
fits whatever is asked for: 64, or the next power of two that is at least four times the number of nodes. Small totals
are not a matter of taste: large weights would give keys of ring-LWE away (docs/guard.md, "kernel").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from secure_fl.errors import ProtectionError, ReleaseRefusedError
from secure_fl.protect.primitives.field import MODULUS
from secure_fl.protect.release.exact_algebra import Matrix
from secure_fl.protect.release.guard import ReleaseReport, check_release
from secure_fl.protect.release.guard_rows import Opening
from secure_fl.protect.release.history import CombinationRows, OpenedRow, new_rows

SIGMA = 64.0  # of an error that hides in a combination; every protection applies the guard that this implies

_SMALLEST_TOTAL = 64


def row_total(nodes: int) -> int:
    """What the weights of a row add up to in a round with so many nodes."""
    return max(_SMALLEST_TOTAL, 1 << (4 * nodes - 1).bit_length())


def whole_weights(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Integers in proportion to `shares` that add up to `total`: rounded down, the rest to the largest remainders."""
    whole = sum(shares.values())
    if not whole > 0 or not np.isfinite(whole) or min(shares.values()) < 0:
        return {}
    exact = {name: share / whole * total for name, share in shares.items()}
    weights = {name: int(value) for name, value in exact.items()}
    # Ties go by name, so that a row does not depend on the order of a mapping.
    by_remainder = sorted(exact, key=lambda name: (weights[name] - exact[name], name))
    for name in by_remainder[: total - sum(weights.values())]:
        weights[name] += 1
    return {name: weight for name, weight in weights.items() if weight}


def require_row(row: Mapping[str, int], *, uploaded: Iterable[str], total: int) -> None:
    """Raise `ProtectionError` unless this is a row over nodes that uploaded, or none at all."""
    if row and (not row.keys() <= set(uploaded) or min(row.values()) < 1 or sum(row.values()) != total):
        raise ProtectionError("a row is not one of positive weights over those who uploaded, with the round's total")


def matrix(rows: CombinationRows, nodes: Sequence[str]) -> tuple[Matrix, list[str]]:
    """Rows as the guard takes them, and whom each is opened at."""
    recipients = sorted(recipient for recipient, row in rows.items() if row)
    weights = [[rows[recipient].get(node, 0) for node in nodes] for recipient in recipients]
    return np.array(weights, np.int64).reshape(len(recipients), len(nodes)), recipients


def check_rows(
    rows: CombinationRows, *, nodes: Sequence[str], colluders: int, earlier: Collection[OpenedRow] = ()
) -> ReleaseReport:
    """The guard over all rows that are to be opened together, after `earlier` ones; raises `ReleaseRefusedError`."""
    gone = {name for recipient, row in earlier for name in (recipient, *row)}
    names = (*nodes, *sorted(gone - set(nodes)))
    weights, recipients = matrix(rows, names)
    past = Opening(
        weights=np.array([[row.get(name, 0) for name in names] for _, row in earlier]).reshape(-1, len(names)),
        opened_at="recipients",
        recipients=[recipient for recipient, _ in earlier],
    )
    return check_release(
        weights,
        colluders=colluders,
        recipients=recipients,
        history=[past] if earlier else [],
        modulus=MODULUS,
        sigma=SIGMA,
        names=names,
    )


def servable(
    rows: CombinationRows, *, nodes: Sequence[str], colluders: int, earlier: Sequence[OpenedRow] = ()
) -> dict[str, Mapping[str, int]]:
    """The rows that may be opened together: while the guard refuses, one of those it complains of goes.

    Whoever asks for a row that was never opened goes first, so that one site's change of mind costs no other its row.
    """
    left = {recipient: row for recipient, row in rows.items() if row}
    new = {recipient for recipient, _ in new_rows(left, earlier)}
    while left:
        try:
            check_rows(left, nodes=nodes, colluders=colluders, earlier=earlier)
        except ReleaseRefusedError as refused:
            blamed = [name for name in map(str, refused.coalition) if name in left]
            if not blamed:
                return {}  # What was opened before is too much by itself: nothing more is.
            del left[max(blamed, key=lambda name: (name in new, name))]
        else:
            break
    return left


def steady(
    row: Mapping[str, int], *, me: str, uploaded: Collection[str], colluders: int, asked: Sequence[Mapping[str, int]]
) -> Mapping[str, int]:
    """Return `row` if holders would open it after `asked`; else the latest earlier row that still fits; else `{}`.

    If a site changes its mix of partners every round, the mixes together reveal single partners. So holders refuse a
    row that says too much beside the earlier ones. An earlier row, asked for again, says nothing new. It fits if all
    its nodes are here.
    """
    if not row or refusal(row, me=me, uploaded=uploaded, colluders=colluders, asked=asked) != "history":
        return row
    total = sum(row.values())
    here = (rescaled(past, total) for past in reversed(asked) if past.keys() <= set(uploaded))
    return next((past for past in here if past), {})


def refusal(
    row: Mapping[str, int], *, me: str, uploaded: Collection[str], colluders: int, asked: Sequence[Mapping[str, int]]
) -> str:
    """The rule by which holders would not open `row` at `me` after those it asked for; empty where they would."""
    try:
        check_rows({me: row}, nodes=sorted(uploaded), colluders=colluders, earlier=[(me, past) for past in asked])
    except ReleaseRefusedError as refused:
        return refused.rule
    return ""


def rescaled(row: Mapping[str, int], total: int) -> dict[str, int]:
    """The same row with another total, as rounds among more or fewer nodes have; nothing where that is not exact."""
    had = sum(row.values())
    if any(weight * total % had for weight in row.values()):
        return {}
    return {name: weight * total // had for name, weight in row.items()}
