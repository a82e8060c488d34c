"""The node's log of a study: one line for each round that this site answered."""

from __future__ import annotations

import logging

from node.events import AnswerSent, NodeEvent, RoundDone, SatOut, Trained
from secure_fl.rounds import RoundKind

log = logging.getLogger(__name__)


class RoundLog:
    """A listener. Whoever sat out is told why by the round itself."""

    def __init__(self) -> None:
        self._trained: dict[tuple[str, int], float] = {}
        self._sent: dict[tuple[str, int], int] = {}

    def __call__(self, event: NodeEvent) -> None:
        """Collect what a round cost, and write it when the round is over here."""
        match event:
            case Trained(study_id=study, round=number, seconds=seconds):
                self._trained[study, number] = seconds
            case AnswerSent(study_id=study, round=number, bytes=size):
                self._sent[study, number] = self._sent.get((study, number), 0) + size
            case RoundDone(study_id=study, round=number, kind=kind):
                trained, sent = self._taken(study, number)
                if kind is RoundKind.EVALUATE:
                    log.info("the closing evaluation is answered, %d bytes sent", sent)
                    return
                how = "" if trained is None else f", trained for {trained:.1f} s"
                log.info("round %d is answered%s, %d bytes sent", number, how, sent)
            case SatOut(study_id=study, round=number):
                self._taken(study, number)

    def _taken(self, study: str, number: int) -> tuple[float | None, int]:
        return self._trained.pop((study, number), None), self._sent.pop((study, number), 0)
