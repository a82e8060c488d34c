"""The coordinator's metrics, read off its events: nothing in the rounds knows that anybody counts."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry

from coordinator.service import Coordinator
from secure_fl.errors import known_code
from secure_fl.events import (
    Answered,
    CallRefused,
    Event,
    PhaseClosed,
    Refused,
    RoundCommitted,
    RoundVoid,
    SatOut,
    StudyPaused,
)
from secure_fl.operations.loop_lag import LoopLag
from secure_fl.operations.monitoring import Instruments


class Metrics:
    """A listener that counts. Studies are labelled by the first twelve digits of their id."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._make = make = Instruments(registry)
        self._rounds = make.counter("rounds_total", "rounds that were committed", "study")
        self._void = make.counter("attempts_void_total", "attempts at a round that came to nothing", "study", "code")
        self._sat_out = make.counter("sat_out_total", "times a site sat a round out or refused", "study", "code")
        self._answers = make.counter("answers_total", "answers of sites that were accepted", "study", "phase")
        self._bytes = make.counter("bytes_total", "bytes of committed rounds", "study", "direction")
        self._refused = make.counter("calls_refused_total", "calls that were answered with an error", "method", "code")
        self._paused = make.counter("storage_pauses_total", "times a study waited for its disk", "study")
        self._round_seconds = make.duration("round_seconds", "duration of committed rounds", "study")
        self._phase_seconds = make.duration("phase_seconds", "duration of phases", "study", "phase")

    def watch(self, coordinator: Coordinator, lag: LoopLag) -> None:
        """What is a state and not an event is asked for at every scrape."""
        self._make.loop_lag(lag)
        nodes = self._make.gauge("nodes_connected", "nodes with a session")
        nodes.set_function(lambda: coordinator.hub.connected)
        studies = self._make.gauge("studies", "studies by state", "state")
        for state in ("running", "finished", "aborted"):
            studies.labels(state).set_function(partial(_in_state, coordinator, state))

    def __call__(self, event: Event) -> None:
        """One event."""
        match event:
            case RoundCommitted(study_id=study, record=record):
                self._rounds.labels(study[:12]).inc()
                self._round_seconds.labels(study[:12]).observe(record.seconds)
                self._bytes.labels(study[:12], "up").inc(record.bytes_up)
                self._bytes.labels(study[:12], "down").inc(record.bytes_down)
            case RoundVoid(study_id=study, reason=reason):
                self._void.labels(study[:12], known_code(reason)).inc()
            case SatOut(study_id=study, reason=reason) | Refused(study_id=study, reason=reason):
                # The reason is a node's word: only names of ours become labels, or a node could invent them for ever.
                self._sat_out.labels(study[:12], known_code(reason)).inc()
            case Answered(study_id=study, phase=phase):
                self._answers.labels(study[:12], phase).inc()
            case PhaseClosed(study_id=study, phase=phase, seconds=seconds):
                self._phase_seconds.labels(study[:12], phase).observe(seconds)
            case CallRefused(method=method, code=code):
                self._refused.labels(method, known_code(code)).inc()
            case StudyPaused(study_id=study):
                self._paused.labels(study[:12]).inc()


def _in_state(coordinator: Coordinator, state: str) -> int:
    return sum(runner.outcome == state for runner in list(coordinator.runners.values()))
