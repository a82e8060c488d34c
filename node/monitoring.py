"""The node's metrics, read off its events. Off unless the site's file says where to answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from node.events import AnswerSent, Fetched, NodeEvent, RoundDone, SatOut, StudyRefused, Trained
from secure_fl.operations.loop_lag import LoopLag
from secure_fl.operations.monitoring import Instruments


class Metrics:
    """A listener that counts. Studies are labelled by the first twelve digits of their id."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._make = make = Instruments(registry)
        self._rounds = make.counter("rounds_total", "rounds this site answered to the end", "study")
        self._sat_out = make.counter("sat_out_total", "rounds this site sat out", "study", "code")
        self._refusals = make.counter("refused_total", "offers of studies that this site refused", "code")
        self._answers = make.counter("answers_total", "answers that were acknowledged", "study", "phase")
        self._bytes = make.counter("bytes_total", "bulk that went through the link", "study", "direction")
        self._training = make.duration("training_seconds", "local training", "study")

    def watch(
        self, connected: Callable[[], bool], lag: LoopLag, budgets: Mapping[str, Callable[[], float]] | None = None
    ) -> None:
        """What is a state and not an event is asked for at every scrape; `budgets` by data set, where there are any."""
        self._make.loop_lag(lag)
        if budgets:
            text = "how much of a data set's privacy budget is spent or set aside: 1 is all of it"
            used = self._make.gauge("privacy_budget_used", text, "dataset")
            for dataset, fraction in budgets.items():
                used.labels(dataset).set_function(fraction)
        gauge = self._make.gauge("connected", "whether the coordinator is connected")
        gauge.set_function(lambda: float(connected()))

    def __call__(self, event: NodeEvent) -> None:
        """One event."""
        study = event.study_id[:12]
        match event:
            case Fetched(bytes=count):
                self._bytes.labels(study, "down").inc(count)
            case Trained(seconds=seconds):
                self._training.labels(study).observe(seconds)
            case AnswerSent(phase=phase, bytes=count):
                self._answers.labels(study, phase).inc()
                self._bytes.labels(study, "up").inc(count)
            case RoundDone():
                self._rounds.labels(study).inc()
            case SatOut(code=code):
                self._sat_out.labels(study, code).inc()
            case StudyRefused(code=code):
                # Without the study's id: a coordinator may offer as many as it can think of.
                self._refusals.labels(code).inc()
