"""A salted fingerprint of a data set: says whether two studies used the same rows, and nothing about the rows.

HMAC-SHA256(salt, the sorted digests of the rows). The salt is a secret of the site: the plain hash of a small data set
could be found by trying out what it might hold. Neither the order of rows nor their cut into training and test matters.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from secure_fl.tasks.units import row_digests

if TYPE_CHECKING:
    from secure_fl.tasks.base import LocalData, Split

_LEAST_SALT = 16  # bytes
_CHUNK = 4096  # rows that are looked at together


def fingerprint(data: LocalData, *, salt: bytes) -> str:
    """64 hexadecimal digits that any changed, added or removed row changes.

    Of the rows as the task prepares them: another task, or other settings of it, gives another fingerprint of the same
    file. It reads a few thousand rows at a time and keeps 32 bytes of each. Raises `ValueError` for a short salt.
    """
    if len(salt) < _LEAST_SALT:
        raise ValueError(f"a salt needs at least {_LEAST_SALT} bytes")
    mac = hmac.new(salt, _form(data.train), hashlib.sha256)
    for digest in sorted([*_digests(data.train), *_digests(data.test)]):
        mac.update(digest)
    return mac.hexdigest()


def _form(split: Split) -> bytes:
    """What kind of rows these are, so that the same bytes do not stand for two different rows."""
    parts = (split.inputs, split.targets, *(() if split.groups is None else (split.groups,)))
    return "; ".join(f"{part.dtype} {list(part.shape[1:])}" for part in parts).encode() + b"\n"


def _digests(split: Split) -> list[bytes]:
    found: list[bytes] = []
    for start in range(0, len(split), _CHUNK):
        rows = slice(start, start + _CHUNK)
        parts = (split.inputs, split.targets, *(() if split.groups is None else (split.groups,)))
        found += row_digests(*(part[rows].cpu().numpy() for part in parts))
    return found
