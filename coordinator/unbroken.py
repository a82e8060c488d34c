"""Work that is done to its end, also when whoever waits for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Unbroken:
    """Keeps hold of such work. Half an answer in a sum, or half a commit, cannot be taken back."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work`. A cancelled caller leaves at once; the work goes on."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def ended(self) -> None:
        """Wait until nothing is under way, however it ends."""
        if self._tasks:
            await asyncio.wait(self._tasks)
