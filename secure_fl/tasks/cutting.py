"""Which rows a site holds, which of them it trains on, and which it only tests on.

The side of a unit (units.py) follows from its name and a key: HMAC-SHA256(key, name) below the test fraction is a test
unit. So a unit that comes or goes moves no other, which a cut by a drawn order would: there, one row fewer out of 300
changes the side of about 60 others, and what is learnt from the rest tells that the row was there.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from secure_fl.errors import DataError
from secure_fl.randomness import derive_key
from secure_fl.tasks.partition import Array, Indices, PartitionSettings, assign
from secure_fl.tasks.units import unit_names

if TYPE_CHECKING:
    from secure_fl.tasks.base import Source

SPLIT = "hmac-sha256 per unit"  # how data are cut, for records of what was done
_DEFAULT_KEY = b"secure-fl: a site without a split key of its own"


def divide(
    source: Source,
    inputs: Array,
    targets: Array,
    *,
    classification: bool,
    sites: Array | None = None,
    groups: Array | None = None,
) -> tuple[Indices, Indices]:
    """The rows this site trains on and the rows it tests on, both ascending.

    `inputs` are the rows as they were recorded, so that another way to prepare them does not cut them anew. Rows of
    one group are at one site, and on one side. Raises as `held` and `cut` do.
    """
    rows = held(source, targets, classification=classification, sites=sites, groups=groups)
    names = unit_names(inputs[rows], targets[rows], groups=None if groups is None else groups[rows])
    train, test = cut(source, names)
    return rows[train], rows[test]


def held(
    source: Source,
    targets: Array,
    *,
    classification: bool,
    sites: Array | None = None,
    groups: Array | None = None,
) -> Indices:
    """The rows that are this site's: its share of a common data set, or all of its own. Raises as `assign` does."""
    if source.share is None:
        return np.arange(len(targets))
    return assign(targets, source.share, classification=classification, sites=sites, groups=groups)


def cut(source: Source, names: Sequence[bytes]) -> tuple[Indices, Indices]:
    """The positions, in `names`, of the rows to train on and to test on, each by the name of its unit alone.

    Raises `DataError` where a side is empty: too few units. That is the only way in which one unit matters to others,
    and with n units the chance is (1 - fraction)^n. In a simulation, where many a site is tiny and no guarantee is
    given, the one unit next to the line crosses it instead.
    """
    settings = PartitionSettings() if source.share is None else source.share.partition
    line = int(settings.test_fraction * 2**64)
    key = split_key(source)
    sides = {name: int.from_bytes(hmac.digest(key, name, "sha256")[:8], "little") for name in set(names)}
    tested = {name for name, value in sides.items() if value < line}
    if len(sides) > 1 and source.share is not None:
        tested = tested or {min(sides, key=sides.__getitem__)}
        tested = tested if len(tested) < len(sides) else tested - {max(sides, key=sides.__getitem__)}
    is_test = np.array([name in tested for name in names], np.bool_)
    if is_test.all() or not is_test.any():
        raise DataError(
            f"{len(names)} rows of {len(sides)} units are too few: none is left to train on, or none to test on",
            advice="a site needs some dozens of units (records, or groups such as patients)",
        )
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def split_key(source: Source) -> bytes:
    """What the cut depends on besides the units: in a simulation its seed, so that it can be repeated."""
    if source.share is None:
        return source.split_key or _DEFAULT_KEY
    label = f"{source.share.seed} {source.share.index}".encode()
    return derive_key(label, b"secure-fl simulated split key")
