"""How much a node sent and received."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """One node's bytes in one attempt."""

    up: int = 0
    down: int = 0
