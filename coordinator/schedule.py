"""What happens next in a study's training: one round after the other, or circles that each take turns of their own.

`InOrder` is the first, for synchronous rounds and for flushes of single sites; `coordinator.buffered` is the second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from secure_fl import logs


class Schedule(Protocol):
    """All training of a study."""

    async def run(self) -> None:
        """From wherever the study stands to its last training round. Raises `StudyAbortedError`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InOrder:
    """A round begins when the one before it is committed."""

    rounds: int
    committed: Callable[[], int]  # how many rounds are
    take: Callable[[int], Awaitable[None]]  # a round, by its number, until it is committed

    async def run(self) -> None:
        """Until the last round."""
        while (number := self.committed() + 1) <= self.rounds:
            with logs.about(round=number):
                await self.take(number)
