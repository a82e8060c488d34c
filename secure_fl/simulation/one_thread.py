"""torch on one thread while simulations run in this process, and as before when the last of them has ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_changing = threading.Lock()
_before: list[int] = []  # what each run found that is under way; all but the first found 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs may overlap: what the first one found is what the last one leaves, whichever that is."""
    import torch

    with _changing:
        _before.append(torch.get_num_threads())
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _changing:
            torch.set_num_threads(_before.pop())
