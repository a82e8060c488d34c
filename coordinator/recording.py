"""What a round leaves in the study's record, as far as [metrics] share lets it be seen."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from coordinator.machine import STILL_TRAINING
from coordinator.reports import sums_of, together, valued
from coordinator.rounds import RoundResult
from coordinator.store import StoredAnswer
from coordinator.traffic import Traffic
from secure_fl.aggregation import RequestKind
from secure_fl.encoding.metrics import SiteMetrics
from secure_fl.errors import LateMessageError, NotConnectedError, WrongSharesError
from secure_fl.protect.combining import CombinationsSent
from secure_fl.protect.contract import Opened
from secure_fl.results.record import CircleRound, LeftOut, NodeRound, Outcome, RoundRecord, StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.measures import MeasuredMetric
from secure_fl.study.resolved import ResolvedStudy

_VANISHED = (LateMessageError.code, NotConnectedError.code, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """Everything that is known when a round is opened."""

    number: int
    kind: RoundKind
    tried: int
    invited: frozenset[str]  # and there to be asked
    opened: Opened
    left: Mapping[str, str]  # node → why it did not answer
    answers: Sequence[StoredAnswer]
    traffic: Mapping[str, Traffic]
    metrics: SiteMetrics  # the cohort's mean, where it was part of the sum
    blocks_kept: tuple[str, ...]
    seconds: float
    circles: tuple[CircleRound, ...] = ()
    arrived: Mapping[str, float] = field(default_factory=dict)  # node → when its upload was here
    committed: float | None = None

    @classmethod
    def of(
        cls,
        number: int,
        kind: RoundKind,
        result: RoundResult,
        *,
        metrics: SiteMetrics,
        blocks_kept: tuple[str, ...],
        arrived: Mapping[str, float],
        committed: float,
    ) -> Self:
        """Gathered from the round's attempts: those that opened something, and those it did without."""
        attempts = (*result.attempts, *result.given_up)
        return cls(
            number=number,
            kind=kind,
            tried=result.tried,
            invited=frozenset(node for attempt in attempts for node in attempt.met),
            opened=result.opened,
            left=dict(ChainMap(*(dict(attempt.left) for attempt in attempts))),
            answers=[answer for attempt in result.attempts for answer in attempt.answers],
            traffic=dict(ChainMap(*(dict(attempt.traffic) for attempt in attempts))),
            metrics=metrics,
            blocks_kept=blocks_kept,
            seconds=asyncio.get_running_loop().time() - min(attempt.began for attempt in result.attempts),
            circles=result.circles,
            arrived=arrived,
            committed=committed,
        )


def record_round(
    facts: RoundFacts,
    *,
    roster: Iterable[str],
    per_node: bool,
    measured: Sequence[MeasuredMetric] = (),
    left_out: frozenset[str] = frozenset(),
) -> RoundRecord:
    """The round's record, with the metrics `measured`; `left_out` were not invited although they may be there."""
    reports = {a.node: a.header.metrics for a in facts.answers if per_node and a.header.HasField("metrics")}
    nodes = tuple(_node(name, facts, reports.get(name), measured, left_out=name in left_out) for name in roster)
    pooled = together(reports.values(), measured) if per_node else facts.metrics.sums
    record = RoundRecord(
        number=facts.number,
        kind=facts.kind,
        attempts=facts.tried,
        seconds=facts.seconds,
        nodes=nodes,
        committed=facts.committed,
        combinations=len(facts.opened.recipients) if isinstance(facts.opened, CombinationsSent) else 0,
        blocks_kept=facts.blocks_kept,
        circles=facts.circles,
        mean_accuracy=facts.metrics.accuracy,
        mean_loss=facts.metrics.loss,
        mean_mse=facts.metrics.mse,
        global_accuracy=facts.metrics.global_accuracy,
        **valued(pooled, measured),
    )
    if not per_node:
        return record
    return replace(
        record,
        mean_accuracy=_mean(node.accuracy for node in nodes),
        mean_loss=_mean(node.loss for node in nodes),
        mean_mse=_mean(node.mse for node in nodes),
        global_accuracy=_mean(node.global_accuracy for node in nodes),
    )


def study_record(
    resolved: ResolvedStudy,
    *,
    outcome: str,
    reason: str,
    parameters: int,
    shared_parameters: int,
    blocks: Mapping[str, int],
    rounds: tuple[RoundRecord, ...],
    left_out: tuple[LeftOut, ...] = (),
) -> StudyRecord:
    """A study so far."""
    study = resolved.study
    return StudyRecord(
        study=study.study.name,
        study_id=resolved.id,
        task=study.task.name,
        strategy=study.strategy.name,
        protection=study.protection.kind,
        planned_rounds=study.versions,
        roster=tuple(study.study.roster),
        outcome=outcome,
        reason=reason,
        parameters=parameters,
        shared_parameters=shared_parameters,
        blocks=blocks,
        combinations_opened=sum(record.combinations for record in rounds),
        combinations_possible=_possible(rounds) if resolved.request is RequestKind.COMBINE else None,
        rounds=rounds,
        left_out=left_out,
        settings=resolved.canonical.decode(),
        blocks_declared=_declared(resolved),
        circles=resolved.circles_in(RoundKind.TRAIN) if resolved.division.settled else (),
        partial=resolved.strategy.partial,
    )


def _declared(resolved: ResolvedStudy) -> tuple[str, ...] | None:
    division = resolved.division
    return None if division.declared is None else tuple(sorted(division.shared_by_some_circle()))


def _possible(rounds: tuple[RoundRecord, ...]) -> int:
    return sum(len(record.cohort) for record in rounds if record.kind is RoundKind.TRAIN)


def _node(
    name: str,
    facts: RoundFacts,
    report: pb.MetricsReport | None,
    measured: Sequence[MeasuredMetric],
    *,
    left_out: bool,
) -> NodeRound:
    outcome: Outcome
    reason = facts.left.get(name, "")
    if name in facts.opened.cohort:
        outcome, reason = "took part", ""
    elif name not in facts.invited:
        outcome, reason = "absent", WrongSharesError.code if left_out else ""
    elif (not reason and (facts.circles or not facts.opened.cohort)) or reason == STILL_TRAINING:
        outcome = "waited"  # for others, without whom nothing was opened
    else:
        outcome = "dropped" if reason in _VANISHED else "sat out"
    traffic = facts.traffic.get(name, Traffic())
    shared = NodeRound(
        name=name,
        outcome=outcome,
        reason=reason,
        bytes_up=traffic.up,
        bytes_down=traffic.down,
        uploaded=facts.arrived.get(name),
    )
    if report is None:
        return shared
    fields = ("accuracy", "loss", "mse", "global_accuracy")
    known = {field: getattr(report, field) for field in fields if report.HasField(field)}
    return replace(shared, samples=report.samples, **known, **valued(sums_of(report), measured))


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present else None
