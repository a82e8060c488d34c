"""The node's metrics, read off its events. Off unless the site's file says where to answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600, 10_000)


class Metrics:
    """A listener that counts. Studies are labelled by the first twelve digits of their id."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._rounds = self._counter("rounds_total", "rounds this site answered to the end", "study")
        self._sat_out = self._counter("sat_out_total", "rounds this site sat out", "study", "code")
        self._refusals = self._counter("refused_total", "offers of studies that this site refused", "code")
        self._answers = self._counter("answers_total", "answers that were acknowledged", "study", "phase")
        self._bytes = self._counter("bytes_total", "bulk that went through the link", "study", "direction")
        self._training = Histogram(
            "secure_fl_training_seconds", "local training", ["study"], registry=registry, buckets=_SECONDS
        )

    def watch(self, connected: Callable[[], bool]) -> None:
        """What is a state and not an event is asked for at every scrape."""
        gauge = Gauge("secure_fl_connected", "whether the coordinator is connected", registry=self._registry)
        gauge.set_function(lambda: float(connected()))

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> None:
        """One event."""
        study = str(fields["study_id"])[:12]
        match kind:
            case "fetched":
                self._bytes.labels(study, "down").inc(fields["bytes"])
            case "trained":
                self._training.labels(study).observe(fields["seconds"])
            case "answered":
                self._answers.labels(study, fields["phase"]).inc()
                self._bytes.labels(study, "up").inc(fields["bytes"])
            case "round-done":
                self._rounds.labels(study).inc()
            case "sat-out":
                self._sat_out.labels(study, fields["code"]).inc()
            case "refused":
                # Without the study's id: a coordinator may offer as many as it can think of.
                self._refusals.labels(fields["code"]).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"secure_fl_{name}", text, labels, registry=self._registry)
