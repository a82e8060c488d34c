"""An event loop on which time passes only while everybody waits.

A federation in one process waits for deadlines, heartbeats and pauses, and computes in between. On a busy machine
computing takes longer, and a test that means "this message comes late" or "that one in time" would depend on who else
uses the machine. Here the clock stands still while anything is computed, on the loop or in one of its threads. Once
nothing is left to do it jumps to the next moment that somebody waits for. So deadlines mean what they say, and waiting
for them takes no time. (A test in which something never waits would never end: it needs `asyncio.run`.)
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# While a thread computes, time passes this much slower: a thread may itself wait for something that takes time.
_SLOWER = 50.0


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, on such a loop."""
    with asyncio.Runner(loop_factory=PatientLoop) as runner:
        return runner.run(main)


class PatientLoop(asyncio.SelectorEventLoop):
    """Its time begins at 0 and has nothing to do with the wall's."""

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        """Seconds that were waited for."""
        return self._clock.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """The same; the clock knows of it."""
        self._clock.busy += 1
        try:
            future = super().run_in_executor(executor, func, *args)
        except BaseException:
            self._clock.busy -= 1
            raise
        future.add_done_callback(self._clock.done)
        return future


class _Clock(selectors.DefaultSelector):
    """Where the loop waits: whoever waits here waits for the clock, or for a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.busy = 0  # threads that compute

    def done(self, _: object) -> None:
        """One of them does not any more."""
        self.busy -= 1

    def select(self, timeout: float | None = None) -> Any:
        """Without a thread at work, time jumps to the next timer."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        if self.busy or timeout is None:
            begun = time.monotonic()
            found = super().select(None if timeout is None else timeout * _SLOWER)
            if timeout is not None:
                self.now += min(timeout, (time.monotonic() - begun) / _SLOWER)
            return found
        found = super().select(0)
        if not found:
            self.now += timeout
        return found
