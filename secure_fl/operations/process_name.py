"""What `ps` and `top` call this process: several parties on one machine are told apart."""

from __future__ import annotations

import contextlib
from pathlib import Path

_CHARS = 15  # what Linux keeps


def name_process(name: str) -> None:
    """Call this process `name`, where the system lets it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name[:_CHARS])
