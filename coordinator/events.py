"""What happens, for whoever watches: a progress display, a log, a test."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Listener: TypeAlias = Callable[[str, Mapping[str, Any]], None]


def print_json_lines(kind: str, fields: Mapping[str, Any]) -> None:
    """A listener that writes one JSON object per line to standard output."""
    sys.stdout.write(json.dumps({"event": kind, **fields}) + "\n")
    sys.stdout.flush()


def ignore(kind: str, fields: Mapping[str, Any]) -> None:
    """A listener for nobody."""
