"""Numbers of things in sentences."""

from __future__ import annotations


def counted(number: int, one: str, several: str = "") -> str:
    """`1 round`, `2 rounds`; with `several` where an s does not do: `2 studies`."""
    return f"{number} {one if number == 1 else several or one + 's'}"
