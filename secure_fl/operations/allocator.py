"""Memory that a process has no use for any more goes back to the system.

glibc keeps an arena for every few threads, and learns from the first large array that is freed to keep the next ones:
after some rounds a party holds several models that nobody refers to. Bounds set at its start prevent that.
"""

from __future__ import annotations

import ctypes

# From <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_LARGE = 4 * 2**20  # above a transfer's chunks, below a block that is worth giving back at once


def give_memory_back() -> None:
    """Bound the C library's allocator, where it is glibc's; elsewhere nothing happens."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, _LARGE)
    mallopt(_M_TRIM_THRESHOLD, _LARGE)
