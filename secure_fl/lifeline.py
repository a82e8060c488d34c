"""A child process that cannot outlive its parent, however the parent dies."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import BinaryIO


def read_until_parent_dies(stream: BinaryIO, on_line: Callable[[bytes], None]) -> threading.Thread:
    """Read lines from a pipe the parent holds open; at its end leave this process at once.

    The kernel closes the pipe when the parent dies, kill −9 included, so this needs no cooperation and no polling.
    """

    def read() -> None:
        for line in stream:
            on_line(line)
        os._exit(3)

    thread = threading.Thread(target=read, name="lifeline", daemon=True)
    thread.start()
    return thread
