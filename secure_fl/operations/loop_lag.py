"""How long an event loop was kept waiting: the loop carries heartbeats, so nothing may hold it for long."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_INTERVAL = 0.05
TOO_LONG = 0.1  # seconds; nothing of ours holds a loop for longer
_WORTH_A_WARNING = 1.0  # Three heartbeats missed end a session, so this is early. A busy machine does not reach it.
_QUIET_SECONDS = 60.0  # between two warnings

log = logging.getLogger(__name__)


class LoopLag:
    """Wakes up at even intervals and notes how late it is."""

    def __init__(self) -> None:
        self._worst = 0.0
        self._quiet_until = float("-inf")

    def read(self) -> float:
        """The longest wait, in seconds, since this was read last."""
        worst, self._worst = self._worst, 0.0
        return worst

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Watch the running loop."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, queued = loop.time() + _INTERVAL, _queued()
            await asyncio.sleep(_INTERVAL)
            late = loop.time() - due
            self._worst = max(self._worst, late)
            if late > TOO_LONG:
                log.log(
                    self._level(late, loop.time()),
                    "the event loop was kept waiting for %.3f s, %.3f s of them for a processor",
                    late,
                    min(late, _queued() - queued),
                )

    def _level(self, late: float, now: float) -> int:
        """A warning where sessions are in danger, and not one after the other; else for whoever looks for it."""
        if late < _WORTH_A_WARNING or now < self._quiet_until:
            return logging.DEBUG
        self._quiet_until = now + _QUIET_SECONDS
        return logging.WARNING


def _queued() -> float:
    """For how many seconds this thread could have run and got no processor; 0 where the system does not tell.

    It tells a busy machine from a step of ours that is too slow.
    """
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
