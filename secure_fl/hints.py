"""What to do about an error, where a person sees it: below the traceback, in a notebook too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from secure_fl.errors import SecureFLError


@contextmanager
def shown_hints() -> Iterator[None]:
    """Errors of the product that leave this block, or a function decorated with it, have their advice as a note.

    For what people call in Python. Other processes and commands say the advice in their own way.
    """
    try:
        yield
    except SecureFLError as error:
        if error.hint and not getattr(error, "__notes__", None):
            error.add_note(f"→ {error.hint}")
        raise
