"""What a fuzzing run must not do: log an error, write a second line, keep memory, tasks or files."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from secure_fl import logs

GROWTH_BYTES = 8 << 20
POOLED_FILES = 16  # the store keeps up to five connections to its database, with three files each


class Watch(logging.Handler):
    """Formats every record as the product does, keeps errors, and counts lines that are not one."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []
        self.broken_lines: list[str] = []
        self.lines = 0
        self._shapes = (logs._TextLines(), logs._JsonLines())

    def check(self) -> None:
        """Fail where anything unexpected was logged."""
        assert self.errors == [], self.errors
        assert self.broken_lines == [], self.broken_lines

    def emit(self, record: logging.LogRecord) -> None:
        """Look at one record."""
        self.lines += 1
        text, as_json = (shape.format(record) for shape in self._shapes)
        if record.levelno >= logging.ERROR:
            self.errors.append(text)
        if not as_json.isprintable() or (record.exc_info is None and not text.isprintable()):
            self.broken_lines.append(text)


@contextmanager
def watched() -> Iterator[Watch]:
    """Put a watch in place of every other handler: pytest would keep each of a hundred thousand records."""
    gc.collect()  # What an earlier test left behind complains now, and not into this watch.
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    watch = Watch()
    root.handlers[:] = [watch]
    root.setLevel(logging.INFO)
    try:
        yield watch
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def resident_bytes() -> int:
    """Memory of this process, after giving back what is free."""
    gc.collect()
    if hasattr(trim := ctypes.CDLL(None), "malloc_trim"):
        trim.malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Usage:
    """Memory and files over a run; the first fifth is warm-up."""

    def __init__(self) -> None:
        self._memory: list[int] = []
        self._files: list[int] = []

    def note(self) -> None:
        """Measure now."""
        self._memory.append(resident_bytes())
        self._files.append(open_files())

    @property
    def growth(self) -> int:
        """Bytes that were added after the warm-up, but for the largest single step.

        One large message may make the allocator keep its thread's memory (24 MB, once, in one run of ten). A leak adds
        up message by message, and so in every step.
        """
        later = self._memory[len(self._memory) // 5 :]
        steps = [after - before for before, after in pairwise(later)]
        return sum(steps) - max(0, *steps)

    def check(self) -> None:
        """Fail where memory or files grew."""
        assert self.growth < GROWTH_BYTES
        assert self._files[-1] <= self._files[len(self._files) // 5] + POOLED_FILES

    def __str__(self) -> str:
        return f"memory {self._memory[-1] / 2**20:.0f} MiB after {self.growth / 2**20:+.1f} MiB since the warm-up"


def open_files() -> int:
    """File descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def settled_tasks(most: int) -> list[str]:
    """Names of the tasks that still run once everything had time to end; empty when at most `most` do."""
    for _ in range(100):
        if len(asyncio.all_tasks()) <= most:
            return []
        await asyncio.sleep(0.02)
    return sorted(str(task.get_coro()) for task in asyncio.all_tasks())
