"""Waiting for something to change, but not for ever."""

from __future__ import annotations

import asyncio
import contextlib


class Pulse:
    """Whoever notices a change beats; whoever waits looks again, at a beat or when its time is up."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def beat(self) -> None:
        """Something changed."""
        self._event.set()

    async def next(self, seconds: float) -> None:
        """Until something changes, or for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
            self._event.clear()
