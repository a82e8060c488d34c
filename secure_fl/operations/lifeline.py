"""A child process that cannot outlive its parent, however the parent dies."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

_READ_BYTES = 1 << 16


def read_until_parent_dies(descriptor: int, on_line: Callable[[bytes], None]) -> None:
    """Read lines from a pipe the parent holds open; at its end leave this process at once.

    The kernel closes the pipe when the parent dies, kill −9 included, so this needs no cooperation and no polling. The
    thread reads the bare descriptor: a buffered reader would hold a lock that the interpreter wants when it shuts down.
    """

    def read() -> None:
        pending = b""
        while data := os.read(descriptor, _READ_BYTES):
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                on_line(line)
        os._exit(3)

    threading.Thread(target=read, name="lifeline", daemon=True).start()
