"""Text that another party wrote, as a person may be shown it.

A terminal obeys some characters: they move the cursor, clear what stands there, and write something else in its place.
Others turn the order of letters around. A study that hides what it says, or paints an approval that nobody gave, needs
one of them. So text with such characters is refused where it comes in, and what is printed of errors is one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from secure_fl.errors import MalformedMessageError, SecureFLError

# Control characters but for tab and line feed, separators of lines, and what changes the direction of writing.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_DEPTH = 16
_SHOWN = 80  # characters


def is_plain(text: str) -> bool:
    """Whether a terminal only shows it."""
    return _OBEYED.search(text) is None


def require_plain(value: Any, *, what: str, error: type[SecureFLError] = MalformedMessageError, depth: int = 0) -> None:
    """Raise `error` unless all text in a message of protobuf, or in decoded JSON, is plain."""
    if depth > _DEPTH:
        raise error(f"{what} is nested too deeply")
    if isinstance(value, str):
        if not is_plain(value):
            raise error(f"{what} has characters that a terminal would obey: {value[:_SHOWN]}")
        return
    held: Iterable[Any] = ()
    if hasattr(value, "ListFields"):
        held = (inner for _, inner in value.ListFields())
    elif isinstance(value, Mapping):
        held = chain(value.keys(), value.values())
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        held = value
    for inner in held:
        require_plain(inner, what=what, error=error, depth=depth + 1)
