"""The signed header of an answer, and what the ledger says about it before it leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping

from secure_fl.encoding.metrics import SiteMetrics
from secure_fl.identity.signing import SigningKey
from secure_fl.protect.contract import Message
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.transport.wire import reference, sign_upload_header


def signed_header(
    resolved: ResolvedStudy,
    key: SigningKey,
    *,
    kind: RoundKind,
    round_and_attempt: tuple[int, int],
    phase: str,
    answer: Message,
    metrics: SiteMetrics | None,
) -> pb.UploadHeader:
    """The header of `answer`; with `metrics`, where the study shares them per site and this answer carries them."""
    number, attempt = round_and_attempt
    protection = resolved.protection_in(kind)
    payload = pb.Payload(protection=protection.name, phase=phase, version=protection.payload_version, body=answer.body)
    header = pb.UploadHeader(
        study_id=resolved.id,
        round=number,
        attempt=attempt,
        phase=phase,
        payload=payload,
        bulk=reference(answer.bulk, answer.digest),
    )
    if metrics is not None and resolved.study.metrics.share == "per-node":
        header.metrics.CopyFrom(_report(metrics, resolved.study.metrics.sizes))
    sign_upload_header(header, key)
    return header


def release(resolved: ResolvedStudy, header: pb.UploadHeader, *, pledged: int = 0) -> dict[str, str | int]:
    """What is about to leave, for the ledger; `pledged` bytes of it with a later answer."""
    return {
        "upload": header.upload_id.hex(),
        "bytes": header.bulk.size + len(header.payload.body) + pledged,
        "protection": header.payload.protection,
        "metrics": resolved.study.metrics.share,
    }


def _report(metrics: SiteMetrics, sizes: Mapping[str, int]) -> pb.MetricsReport:
    report = pb.MetricsReport(samples=metrics.samples or 0)
    for field in ("accuracy", "loss", "mse", "global_accuracy"):
        value = getattr(metrics, field)
        if value is not None and math.isfinite(value):  # A loss may be anything, and is no reason not to answer.
            setattr(report, field, value)
    for name, size in sizes.items():
        if len(found := metrics.sums.get(name, ())) == size:
            report.sums.add(name=name, values=found)
    return report
