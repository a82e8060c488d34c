"""A simulation beside the caller: in a thread of its own, so that a notebook's event loop does not matter.

What happens is told to the caller's own thread, where notebooks expect output to come from; an error there stops the
simulation and is the caller's. Ctrl-C, or cancelling the awaiting task, stops the simulation and waits until everything
that it started has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from secure_fl.events import Event, Listener
from secure_fl.simulation.stopping import Stoppable
from secure_fl.threads import in_thread_whole

T = TypeVar("T")
Work = Callable[[Listener, Stoppable], T]


class _Beside(Generic[T]):
    """One piece of work in a thread."""

    def __init__(self, work: Work[T], tell: Listener, done: Callable[[], None]) -> None:
        self._work = work
        self._tell = tell
        self._done = done
        self._loop = Stoppable()
        self._result: list[T] = []
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="simulation", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._work(self._tell, self._loop))
        except BaseException as error:  # handed over to the thread that waits
            self._error = error
        finally:
            self._done()

    def stop(self) -> None:
        """End it."""
        self._loop.stop()

    def join(self) -> None:
        """Until it has ended."""
        self._thread.join()

    def result(self) -> T:
        """What came out, or the error."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._result[0]


def run_beside(work: Work[T], show: Listener) -> T:
    """Do `work` in a thread and show its events in this one. Works where an event loop is already running."""
    events: SimpleQueue[Event | None] = SimpleQueue()
    beside = _Beside(work, events.put, lambda: events.put(None))
    try:
        while (event := events.get()) is not None:
            show(event)
    except BaseException:  # Ctrl-C above all
        beside.stop()
        beside.join()
        raise
    return beside.result()


async def await_beside(work: Work[T], show: Listener, *, slow: Listener | None = None) -> T:
    """The same for whoever awaits: the caller's loop goes on meanwhile.

    `slow` hears of each event first, in a thread, because what it does may take longer than a loop can wait.
    """
    loop, events = asyncio.get_running_loop(), asyncio.Queue[Event | None]()

    def tell(event: Event | None) -> None:
        loop.call_soon_threadsafe(events.put_nowait, event)

    beside = _Beside(work, tell, lambda: tell(None))
    try:
        while (event := await events.get()) is not None:
            if slow is not None:
                await in_thread_whole(slow, event)
            show(event)
    except BaseException:  # an error of a listener, or the caller was cancelled
        beside.stop()
        await asyncio.to_thread(beside.join)
        raise
    return beside.result()
