"""A value that must not show up anywhere by accident."""

from __future__ import annotations

import hmac
from typing import NoReturn, final


@final
class Secret:
    """Bytes whose repr is redacted, that compare in constant time, cannot be pickled and can be wiped.

    Wiping is best effort: Python may hold other copies of the bytes that were passed in. It shortens the time
    a secret stays in a core dump; it is no guarantee.
    """

    __slots__ = ("_value",)

    def __init__(self, value: bytes | bytearray) -> None:
        self._value = bytearray(value)

    def reveal(self) -> bytes:
        """Return the bytes. The one place where they come out, so that a search finds every use."""
        if not self._value:
            raise ValueError("this secret was wiped")
        return bytes(self._value)

    def wipe(self) -> None:
        """Overwrite and forget."""
        for index in range(len(self._value)):
            self._value[index] = 0
        self._value.clear()

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    __hash__ = None  # type: ignore[assignment]  # A hash of a secret is a fingerprint of it.

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is never pickled")
