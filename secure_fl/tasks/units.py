"""Names for the units of a data set: what is added or removed as a whole when one asks what a result says about it.

A unit is a record or, where the data say which rows belong together, a group of rows (a patient, a machine). Its name
follows from the unit alone. So whatever is decided by name is decided for each unit as if no other were there.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from secure_fl.errors import DataError

Array: TypeAlias = npt.NDArray[Any]


def unit_names(*columns: Array, groups: Array | None = None) -> list[bytes]:
    """The name of each row's unit: of its group where there are groups, otherwise of the record itself.

    `columns` are arrays with a row for each record: together, what the record says.
    """
    if groups is None:
        return record_names(row_digests(*columns))
    return [b"group" + int(group).to_bytes(8, "little", signed=True) for group in group_numbers(groups)]


def record_names(digests: Iterable[bytes]) -> list[bytes]:
    """A name for each record: the digest of its content, and how many equal records came before it.

    Without the count, records that are equal would all have one name, and share one fate. With it, removing one of k
    equal records removes the k-th name. It does not matter which of them it was, for nothing tells them apart.
    """
    seen: Counter[bytes] = Counter()
    names = []
    for digest in digests:
        names.append(b"record" + digest + seen[digest].to_bytes(8, "little"))
        seen[digest] += 1
    return names


def row_digests(*columns: Array) -> list[bytes]:
    """The SHA-256 of each row: its values in all columns, as little-endian bytes, the same on every machine."""
    rows = {len(column) for column in columns}
    if len(rows) != 1:
        raise DataError(f"columns of {sorted(rows)} rows do not belong together")
    content = [_bytes(column) for column in columns]
    digests = []
    for row in range(rows.pop()):
        digest = hashlib.sha256()
        for column in content:
            digest.update(column[row])
        digests.append(digest.digest())
    return digests


def group_numbers(groups: Array) -> npt.NDArray[np.int64]:
    """Group labels as numbers: integers as they are, text as 63 bits of its SHA-256.

    A number never depends on which other groups there are, as a place in a sorted list would. That two of a million
    labels get the same number has a chance below 1 in 10 million.
    """
    if groups.ndim != 1:
        raise DataError("group labels need one entry for each row")
    if np.issubdtype(groups.dtype, np.integer):
        if groups.dtype == np.uint64 and len(groups) and groups.max() > np.iinfo(np.int64).max:
            raise DataError("a group label is too large", advice="use text, or integers below 2^63")
        return groups.astype(np.int64)
    if groups.dtype.kind != "U":
        raise DataError("group labels are neither integers nor text", advice="use patient or machine numbers, or names")
    hashed = [hashlib.sha256(str(label).encode()).digest()[:8] for label in groups]
    return np.array([int.from_bytes(digest, "little") >> 1 for digest in hashed], np.int64)


def _bytes(column: Array) -> npt.NDArray[np.uint8]:
    """A column as (rows, bytes), its numbers little-endian."""
    if column.dtype.hasobject:
        raise DataError("a column has Python objects, whose content has no bytes")
    values = np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
    return values.reshape(len(values), -1).view(np.uint8) if values.size else np.empty((len(values), 0), np.uint8)
