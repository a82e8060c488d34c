"""The one way off an event loop.

A loop that carries heartbeats runs nothing that takes longer than about 20 ms: no disk, no hashing of bulk, no protocol
arithmetic. Whatever may take longer goes through here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`work(*args, **kwargs)` in a thread; the loop goes on meanwhile. A cancelled caller does not stop the work."""
    return await asyncio.to_thread(work, *args, **kwargs)


async def in_thread_whole(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The same for short work on something that others use next: a cancelled caller leaves once the work is done."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():  # however often it is cancelled
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # Nobody is left to hear of it.
        raise
