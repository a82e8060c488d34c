"""A process that is told to end (Ctrl-C, SIGTERM) ends in good order, also if it was about to end by itself."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_TOLD_TO_END = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for each signal. Whoever leaves the context is ending: from then on they change nothing.

    asyncio would write a signal that comes while its loop closes to a pipe that is not there any more, and say so.
    """
    loop = asyncio.get_running_loop()
    for number in _TOLD_TO_END:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in _TOLD_TO_END:
            # A loop that closes gives whatever it still handles back to the default, which ends the process at once.
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
