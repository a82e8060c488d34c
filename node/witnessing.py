"""This site as a witness: it shows how far its ledger goes, and notes how far its peers' ledgers went.

What contradicts an earlier note is a warning here and nothing more. To refuse the attempt would protect nobody, since a
forged ledger hides what its own site released, and would harm everybody: one site that lies once, or that went on from
an old copy of its disk, would end every study it is in, for good, because notes are never taken back. The coordinator
could pick such a site to stop the others. The two signatures are in `witness.jsonl`; people judge them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime

from secure_fl.identity.certificates import utc_now
from secure_fl.identity.ledger_head import LedgerHead
from secure_fl.privacy.ledger import Ledger
from secure_fl.privacy.witness import WitnessFile, WitnessNote
from secure_fl.protect.witness import ShownHead

_ADVICE = "keep witness.jsonl: it is the evidence; ask that site and your consortium for an explanation"

log = logging.getLogger(__name__)


class Witnessing:
    """One for all studies of a site. Any thread may use it."""

    def __init__(self, ledger: Ledger, notes: WitnessFile, *, now: Callable[[], datetime] = utc_now) -> None:
        self._ledger = ledger
        self._notes = notes
        self._now = now
        self._lock = threading.Lock()
        self._latest: dict[tuple[str, str], WitnessNote] = {}  # by site and study, since this process began

    def head(self) -> LedgerHead:
        """How far this site's ledger goes now, on disk."""
        return self._ledger.head

    def saw(self, shown: Sequence[ShownHead], *, study: str, round: int, attempt: int) -> None:  # noqa: A002
        """Note what peers showed, durably. Raises `StorageError`."""
        time = self._now()
        notes = [
            WitnessNote(
                head=one.head,
                study=study,
                round=round,
                attempt=attempt,
                time=time,
                certificate=one.certificate,
                signature=one.signature,
            )
            for one in shown
        ]
        for before, now in self._notes.note_all(notes):
            log.warning("%s keeps two ledgers: %s; but now %s → %s", now.head.site, before, now, _ADVICE)
        for note in notes:
            earlier = self._not_grown_since(note)
            if earlier is not None:
                log.warning("%s has cut its ledger: %s; but later %s → %s", note.head.site, earlier, note, _ADVICE)

    def _not_grown_since(self, note: WitnessNote) -> WitnessNote | None:
        """The note of an earlier attempt at the same study, if the ledger has not grown since.

        Every attempt begins with an entry, so within a study a ledger always grows. Of two studies nothing follows:
        which of two attempts that ran side by side is heard of first is chance.
        """
        with self._lock:
            place = note.head.site, note.study
            before = self._latest.get(place)
            if before is not None and (note.round, note.attempt) <= (before.round, before.attempt):
                return None
            self._latest[place] = note
        return before if before is not None and note.head.length <= before.head.length else None
