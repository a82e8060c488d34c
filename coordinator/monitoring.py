"""The coordinator's metrics, read off its events: nothing in the rounds knows that anybody counts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

from coordinator.service import Coordinator
from secure_fl.errors import known_code
from secure_fl.monitoring import Instruments


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

    def watch(self, coordinator: Coordinator) -> None:
        """What is a state and not an event is asked for at every scrape."""
        nodes = self._make.gauge("nodes_connected", "nodes with a session")
        nodes.set_function(lambda: coordinator.hub.connected)
        studies = self._make.gauge("studies", "studies by state", "state")
        for state in ("running", "finished", "aborted"):
            studies.labels(state).set_function(partial(_in_state, coordinator, state))

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> None:
        """One event."""
        study = str(fields.get("study_id", ""))[:12]
        match kind:
            case "round-committed":
                self._rounds.labels(study).inc()
                self._round_seconds.labels(study).observe(fields["seconds"])
                for direction in ("up", "down"):
                    self._bytes.labels(study, direction).inc(sum(n[f"bytes_{direction}"] for n in fields["nodes"]))
            case "round-void":
                self._void.labels(study, known_code(fields["reason"])).inc()
            case "sat-out" | "refused":
                # The reason is a node's word: only names of ours become labels, or a node could invent them for ever.
                self._sat_out.labels(study, known_code(fields["reason"])).inc()
            case "answered":
                self._answers.labels(study, fields["phase"]).inc()
            case "phase-closed":
                self._phase_seconds.labels(study, fields["phase"]).observe(fields["seconds"])
            case "call-refused":
                self._refused.labels(fields["method"], known_code(fields["code"])).inc()
            case "study-paused":
                self._paused.labels(study).inc()


def _in_state(coordinator: Coordinator, state: str) -> int:
    return sum(runner.outcome == state for runner in list(coordinator.runners.values()))
