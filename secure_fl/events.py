"""What happens, for whoever watches: a progress display, metrics, a test."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from secure_fl.errors import SecureFLError

Listener: TypeAlias = Callable[[str, Mapping[str, Any]], None]


def print_json_lines(kind: str, fields: Mapping[str, Any]) -> None:
    """A listener that writes one JSON object per line to standard output."""
    sys.stdout.write(json.dumps({"event": kind, **fields}) + "\n")
    sys.stdout.flush()


def failure(error: SecureFLError) -> dict[str, Any]:
    """An error as the fields of an event."""
    return {"code": error.code, "message": error.message, "hint": error.hint}


def ignore(kind: str, fields: Mapping[str, Any]) -> None:
    """A listener for nobody."""


def each(*listeners: Listener) -> Listener:
    """One listener that tells several."""

    def tell(kind: str, fields: Mapping[str, Any]) -> None:
        for listener in listeners:
            listener(kind, fields)

    return tell
