"""Reserve before training, commit before anything leaves, release only what never left.

The round calls these three and nothing else, whatever the mechanism. A reservation that is neither committed nor
released (the node was killed) counts as spent: the node cannot know whether its upload arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from secure_fl.privacy.ledger import CANCELLED, PLANNED, SENT, Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One round's claim on a data set's budget. `epsilon` is None where no mechanism bounds it: never 0."""

    study_id: str
    round: int
    attempt: int
    dataset: str
    epsilon: float | None = None
    delta: float | None = None

    def facts(self) -> dict[str, Any]:
        """For the ledger."""
        return {
            "study": self.study_id,
            "round": self.round,
            "attempt": self.attempt,
            "dataset": self.dataset,
            "epsilon": self.epsilon,
            "delta": self.delta,
        }


class Accountant(Protocol):
    """A site's privacy accounting, as the round sees it."""

    def reserve(self, reservation: Reservation) -> None:
        """Set budget aside. Raises when the site does not have it; nothing has been computed yet."""
        ...

    def commit(self, reservation: Reservation, *, release: Mapping[str, Any]) -> None:
        """Charge it, durably, before the first byte leaves. `release` says what is about to."""
        ...

    def release(self, reservation: Reservation, *, reason: str) -> None:
        """Give it back: nothing left the node."""
        ...


class RecordingAccountant:
    """Without a DP mechanism there is no ε to compose; what left is recorded all the same."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def reserve(self, reservation: Reservation) -> None:
        """Record the intention."""
        self._ledger.append(PLANNED, reservation.facts())

    def commit(self, reservation: Reservation, *, release: Mapping[str, Any]) -> None:
        """Record what leaves."""
        self._ledger.append(SENT, {**reservation.facts(), "release": dict(release)})

    def release(self, reservation: Reservation, *, reason: str) -> None:
        """Record that nothing left."""
        self._ledger.append(CANCELLED, {**reservation.facts(), "reason": reason})
