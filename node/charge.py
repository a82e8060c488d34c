"""One attempt's claim on the site's privacy budget: set aside before training, spent before anything leaves.

What was computed from the data shaped what this site keeps, so it stays counted whatever becomes of the attempt: it may
leave with a later one. Given back is only what was never computed. A later attempt at the round that sends the same
integers costs nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from node.privacy import SitePrivacy
from secure_fl.errors import BudgetExceededError, SecureFLError
from secure_fl.privacy.accountant import Accountant, Reservation


class Charge:
    """Of one attempt, whose training is that of round `number`. Blocks."""

    def __init__(
        self, accountant: Accountant, privacy: SitePrivacy, *, number: int, attempt: int, trains: bool
    ) -> None:
        self._accountant = accountant
        self._privacy = privacy
        self._number = number
        self._attempt = attempt
        self._trains = trains
        self._reservation: Reservation | None = None
        self._computed = False
        self._spent = False

    def reserve(self, found: Mapping[str, str], *, repeats: bool, trained: int = 0) -> None:
        """4. Set the round's privacy cost aside before anything is computed from the data.

        `found` is what the training process says of data and code. What `repeats` another attempt costs nothing more;
        with `trained`, one at the earlier round of that number. Raises `BudgetExceededError`, and the ledger has it.
        """
        study = self._privacy.resolved.study
        facts = None if repeats else self._privacy.facts(self._number, trains=self._trains, found=found)
        reservation = Reservation(
            study_id=self._privacy.resolved.id,
            round=self._number,
            attempt=self._attempt,
            dataset=study.task.dataset_id,
            repeats=repeats,
            privacy=facts,
            trained=trained if repeats and trained not in (0, self._number) else None,
        )
        try:
            self._accountant.reserve(reservation)
        except BudgetExceededError as error:
            self._accountant.refused(reservation.study_id, self._number, error.code)
            raise
        self._reservation = reservation

    def computing(self) -> None:
        """The data are about to be used: from here on nothing is given back."""
        self._computed = True

    def spend(self, release: Mapping[str, Any]) -> None:
        """9. Charge durably, once. Nothing to charge after a restart, which goes on with what was charged before."""
        if self._reservation is not None and not self._spent:
            self._accountant.commit(self._reservation, release=release)
            self._spent = True

    def give_back(self, error: BaseException) -> None:
        """The attempt came to nothing before the data were used."""
        if self._reservation is not None and not self._spent and not self._computed:
            reason = error.code if isinstance(error, SecureFLError) else type(error).__name__
            self._accountant.release(self._reservation, reason=reason)
