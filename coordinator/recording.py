"""What a round leaves in the study's record, as far as [metrics] share lets it be seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coordinator.store import Attempt, StoredAnswer
from secure_fl.aggregation import RequestKind
from secure_fl.encoding.metrics import SiteMetrics
from secure_fl.errors import LateMessageError, NotConnectedError
from secure_fl.protect.combining import CombinationsSent
from secure_fl.protect.contract import Opened
from secure_fl.results.record import NodeRound, RoundRecord, StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.resolved import ResolvedStudy

_VANISHED = (LateMessageError.code, NotConnectedError.code, "")


@dataclass(slots=True)
class Traffic:
    """One node's bytes in one round."""

    up: int = 0
    down: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """Everything that is known when a round is opened."""

    attempt: Attempt
    opened: Opened
    left: Mapping[str, str]  # node → why it did not answer
    answers: Iterable[StoredAnswer]
    traffic: Mapping[str, Traffic]
    metrics: SiteMetrics  # the cohort's mean, where it was part of the sum
    blocks_kept: tuple[str, ...]
    seconds: float


def record_round(facts: RoundFacts, *, roster: Iterable[str], per_node: bool) -> RoundRecord:
    """The round's record."""
    reports = {a.node: a.header.metrics for a in facts.answers if per_node and a.header.HasField("metrics")}
    nodes = tuple(_node(name, facts, reports.get(name)) for name in roster)
    record = RoundRecord(
        number=facts.attempt.number,
        kind=facts.attempt.kind,
        attempts=facts.attempt.attempt,
        seconds=facts.seconds,
        nodes=nodes,
        combinations=len(facts.opened.recipients) if isinstance(facts.opened, CombinationsSent) else 0,
        blocks_kept=facts.blocks_kept,
        mean_accuracy=facts.metrics.accuracy,
        mean_loss=facts.metrics.loss,
        mean_mse=facts.metrics.mse,
        global_accuracy=facts.metrics.global_accuracy,
    )
    if not per_node:
        return record
    return replace(
        record,
        mean_accuracy=_mean(node.accuracy for node in nodes),
        mean_loss=_mean(node.loss for node in nodes),
        mean_mse=_mean(node.mse for node in nodes),
        global_accuracy=_mean_over_samples(nodes),
    )


def study_record(
    resolved: ResolvedStudy,
    *,
    outcome: str,
    reason: str,
    parameters: int,
    shared_parameters: int,
    rounds: tuple[RoundRecord, ...],
) -> StudyRecord:
    """A study so far."""
    study = resolved.study
    return StudyRecord(
        study=study.study.name,
        study_id=resolved.id,
        task=study.task.name,
        strategy=study.strategy.name,
        protection=study.protection.kind,
        planned_rounds=study.study.rounds,
        roster=tuple(study.study.roster),
        outcome=outcome,  # type: ignore[arg-type]
        reason=reason,
        parameters=parameters,
        shared_parameters=shared_parameters,
        combinations_opened=sum(record.combinations for record in rounds),
        combinations_possible=_possible(rounds) if resolved.request is RequestKind.COMBINE else None,
        rounds=rounds,
        settings=resolved.canonical.decode(),
    )


def _possible(rounds: tuple[RoundRecord, ...]) -> int:
    return sum(len(record.cohort) for record in rounds if record.kind is RoundKind.TRAIN)


def _node(name: str, facts: RoundFacts, report: pb.MetricsReport | None) -> NodeRound:
    outcome: Literal["took part", "dropped", "sat out", "absent"]
    reason = facts.left.get(name, "")
    if name in facts.opened.cohort:
        outcome, reason = "took part", ""
    elif name not in facts.attempt.invited:
        outcome = "absent"
    else:
        outcome = "dropped" if reason in _VANISHED else "sat out"
    traffic = facts.traffic.get(name, Traffic())
    shared = NodeRound(name=name, outcome=outcome, reason=reason, bytes_up=traffic.up, bytes_down=traffic.down)
    if report is None:
        return shared
    fields = ("accuracy", "loss", "mse", "global_accuracy")
    measured = {field: getattr(report, field) for field in fields if report.HasField(field)}
    return replace(shared, samples=report.samples, **measured)


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present else None


def _mean_over_samples(nodes: tuple[NodeRound, ...]) -> float | None:
    """The common model's accuracy on all sites' test data together."""
    pairs = [
        (node.global_accuracy, node.samples) for node in nodes if node.global_accuracy is not None and node.samples
    ]
    if not pairs:
        return None
    return float(np.average([accuracy for accuracy, _ in pairs], weights=[samples for _, samples in pairs]))
