"""Lists as people write them on the command line."""

from __future__ import annotations


def listed(text: str) -> list[str]:
    """The parts between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]
