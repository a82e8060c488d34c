"""Text that another party wrote, as a person may be shown it.

A terminal obeys some characters: they move the cursor, clear what stands there, and write something else in its place.
Others turn the order of letters around. A study that hides what it says, or paints an approval that nobody gave, needs
one of them. So text with such characters is refused where it comes in, and what is printed of errors is one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from secure_fl.errors import MalformedMessageError

# Control characters but for tab and line feed, separators of lines, and what changes the direction of writing.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_DEPTH = 16


def is_plain(text: str) -> bool:
    """Whether a terminal only shows it."""
    return _OBEYED.search(text) is None


def require_plain(value: Any, *, what: str, depth: int = 0) -> None:
    """Raise `MalformedMessageError` unless all text in a message of protobuf, or in decoded JSON, is plain."""
    if depth > _DEPTH:
        raise MalformedMessageError(f"{what} is nested too deeply")
    if isinstance(value, str):
        if not is_plain(value):
            raise MalformedMessageError(f"{what} has characters that a terminal would obey")
    elif hasattr(value, "ListFields"):
        for _, held in value.ListFields():
            require_plain(held, what=what, depth=depth + 1)
    elif isinstance(value, Mapping):
        for key, held in value.items():
            require_plain(key, what=what, depth=depth + 1)
            require_plain(held, what=what, depth=depth + 1)
    elif hasattr(value, "__iter__") and not isinstance(value, bytes):
        for held in value:
            require_plain(held, what=what, depth=depth + 1)
