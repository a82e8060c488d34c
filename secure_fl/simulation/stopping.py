"""A simulation's event loop, in whichever thread it runs, and a way for another thread to end it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any


class Stoppable:
    """Runs one coroutine after the other; `stop` cancels the one that runs, and lets no other begin."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Until the coroutine is done. Raises `asyncio.CancelledError` if another thread stopped it."""
        asyncio.run(self._run(coroutine))

    def stop(self) -> None:
        """End it, from any thread. Everything that the coroutine started is ended by itself."""
        with self._lock:
            self._stopped = True
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)

    async def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        with self._lock:
            if self._stopped:
                coroutine.close()
                raise asyncio.CancelledError
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            await coroutine
        finally:
            with self._lock:  # A loop that is closed cannot be called any more.
                self._loop = self._task = None
