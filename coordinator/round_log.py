"""The coordinator's log of a study: one line for each round, and one for its end."""

from __future__ import annotations

import logging

from secure_fl import logs
from secure_fl.events import Event, RoundCommitted, StudyEnded, Waiting
from secure_fl.results.record import RoundRecord
from secure_fl.rounds import RoundKind

log = logging.getLogger(__name__)


class RoundLog:
    """A listener that writes what somebody who reads the log wants to know, and no more."""

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}  # study → how many sites were ready when it was said last

    def __call__(self, event: Event) -> None:
        """Write a line for the events that are worth one."""
        match event:
            case RoundCommitted(study_id=study, record=record):
                self._waiting.pop(study, None)
                with logs.about(study=study, round=record.number):
                    log.info("%s", _told(record))
            case StudyEnded(study_id=study, outcome=outcome, reason=reason):
                with logs.about(study=study):
                    log.info("the study is %s%s", outcome, f" ({reason})" if reason else "")
            case Waiting(study_id=study, ready=ready, roster=roster, minimum=minimum):
                # It is told again and again while nothing changes; the log has it once.
                if self._waiting.get(study) != ready:
                    self._waiting[study] = ready
                    with logs.about(study=study):
                        log.info("waiting for sites: %d of %d are ready, %d are needed", ready, roster, minimum)


def _told(record: RoundRecord) -> str:
    parts = [f"{len(record.cohort)} of {len(record.nodes)} sites", f"{record.seconds:.1f} s"]
    if record.attempts > 1:
        parts.append(f"{record.attempts} attempts")
    if record.mean_accuracy is not None:
        parts.append(f"mean accuracy {record.mean_accuracy:.3f}")
    elif record.mean_loss is not None:
        parts.append(f"mean loss {record.mean_loss:.4g}")
    return f"{_called(record)} is done: {', '.join(parts)}"


def _called(record: RoundRecord) -> str:
    match record.kind:
        case RoundKind.TRAIN:
            return f"round {record.number}"
        case RoundKind.EVALUATE:
            return "the closing evaluation"
        case RoundKind.DECLARE:
            return "the declaration of what sites share"
