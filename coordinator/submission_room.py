"""How much the models that are being submitted may take here together.

Each is bounded by [limits] model_bytes, and nobody has to finish a submission: without a common bound, many half ones
fill the disk that the running studies need.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from secure_fl.errors import SubmissionsFullError
from secure_fl.limits import MESSAGE_BYTES

_LARGEST = 2  # as many of the largest models may come at once
_SMALL = 32  # and besides so many whose size hardly counts: each holds a message in memory


class SubmissionRoom:
    """Bytes that submissions have asked for and not given back. Of one event loop."""

    def __init__(self, model_bytes: int) -> None:
        self._most = _LARGEST * model_bytes + _SMALL * MESSAGE_BYTES
        self._taken = 0

    @contextmanager
    def taken(self, model_bytes: int) -> Iterator[None]:
        """Room for one submission with such a model, until it ends. Raises `SubmissionsFullError`."""
        wanted = model_bytes + MESSAGE_BYTES
        if self._taken + wanted > self._most:
            raise SubmissionsFullError(
                f"models that others are submitting take {self._taken} bytes here, and this one would take {wanted}: "
                f"together more than the {self._most} allowed"
            )
        self._taken += wanted
        try:
            yield
        finally:
            self._taken -= wanted
