"""What sites say of the metrics that a task declares: checked when it comes in, added up and valued for the record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from secure_fl.messages import require
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.measures import MeasuredMetric


def require_report(report: pb.MetricsReport, measured: Sequence[MeasuredMetric]) -> None:
    """Raise `MalformedMessageError` unless every metric in a site's report is of the study, with all its sums."""
    sizes = {metric.name: metric.sums for metric in measured}
    found = [metric.name for metric in report.sums]
    require(len(set(found)) == len(found), "a metric is reported twice")
    for metric in report.sums:
        require(len(metric.values) == sizes.get(metric.name), "a metric is not one of the study, with so many sums")


def sums_of(report: pb.MetricsReport) -> dict[str, tuple[int, ...]]:
    """One site's sums, by metric."""
    return {metric.name: tuple(metric.values) for metric in report.sums}


def together(reports: Collection[pb.MetricsReport], measured: Sequence[MeasuredMetric]) -> dict[str, tuple[int, ...]]:
    """The sums of all sites, of the metrics that each of them knows."""
    each = [sums_of(report) for report in reports]
    return {
        metric.name: tuple(map(sum, zip(*(sums[metric.name] for sums in each), strict=True)))
        for metric in measured
        if each and all(metric.name in sums for sums in each)
    }


def valued(sums: Mapping[str, Sequence[int]], measured: Sequence[MeasuredMetric]) -> dict[str, Any]:
    """The metrics' values, and the sums of those whose value only the task's code can say."""
    return {
        "metrics": {metric.name: metric.value(sums.get(metric.name)) for metric in measured},
        "sums": {
            metric.name: tuple(sums[metric.name]) for metric in measured if not metric.formula and metric.name in sums
        },
    }
