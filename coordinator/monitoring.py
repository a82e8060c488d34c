"""The coordinator's metrics, read off its events: nothing in the rounds knows that anybody counts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from coordinator.service import Coordinator
from secure_fl.errors import known_code

_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600, 10_000)


class Metrics:
    """A listener that counts. Studies are labelled by the first twelve digits of their id."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._rounds = self._counter("rounds_total", "rounds that were committed", "study")
        self._void = self._counter("attempts_void_total", "attempts at a round that came to nothing", "study", "code")
        self._sat_out = self._counter("sat_out_total", "times a site sat a round out or refused", "study", "code")
        self._answers = self._counter("answers_total", "answers of sites that were accepted", "study", "phase")
        self._bytes = self._counter("bytes_total", "bytes of committed rounds", "study", "direction")
        self._refused = self._counter("calls_refused_total", "calls that were answered with an error", "method", "code")
        self._paused = self._counter("storage_pauses_total", "times a study waited for its disk", "study")
        self._round_seconds = self._histogram("round_seconds", "duration of committed rounds", "study")
        self._phase_seconds = self._histogram("phase_seconds", "duration of phases", "study", "phase")

    def watch(self, coordinator: Coordinator) -> None:
        """What is a state and not an event is asked for at every scrape."""
        nodes = Gauge("secure_fl_nodes_connected", "nodes with a session", registry=self._registry)
        nodes.set_function(lambda: coordinator.hub.connected)
        studies = Gauge("secure_fl_studies", "studies by state", ["state"], registry=self._registry)
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

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"secure_fl_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"secure_fl_{name}", text, labels, registry=self._registry, buckets=_SECONDS)


def _in_state(coordinator: Coordinator, state: str) -> int:
    return sum(runner.outcome == state for runner in list(coordinator.runners.values()))
