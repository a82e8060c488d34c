"""What a node is asked, the signed header of its answer, and what the ledger says about that before it leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from node.session import Session
from secure_fl.encoding.metrics import SiteMetrics
from secure_fl.identity.signing import SigningKey
from secure_fl.protect.contract import Message
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.threads import in_thread_whole
from secure_fl.transport.objects import IncomingObject
from secure_fl.transport.wire import reference, sign_upload_header


async def fetched_question(session: Session, study_id: str, announcement: pb.PhaseAnnouncement, path: Path) -> Message:
    """What the coordinator says in a phase; its bulk, if there is any, is fetched into the file `path` and checked."""
    if not announcement.HasField("bulk"):
        return Message(body=announcement.payload.body)
    incoming = IncomingObject(path, announcement.bulk)
    await session.download(study_id, incoming)
    return Message(body=announcement.payload.body, bulk=await in_thread_whole(path.read_bytes))


def signed_header(
    resolved: ResolvedStudy,
    key: SigningKey,
    *,
    about: tuple[RoundKind, tuple[int, int]],
    phase: str,
    answer: Message,
    metrics: SiteMetrics | None,
) -> pb.UploadHeader:
    """The header of `answer`; with `metrics`, where the study shares them per site and this answer carries them."""
    kind, (number, attempt) = about
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
