"""Well-formed messages, for tests to break in one place at a time."""

from __future__ import annotations

from secure_fl.rpc import federation_pb2 as pb

STUDY_ID = "5a" * 32
DIGEST = b"\x07" * 32


def payload(*, phase: str = "upload") -> pb.Payload:
    """What a protection says."""
    return pb.Payload(protection="none", phase=phase, version=1, body=b"body")


def announcement() -> pb.PhaseAnnouncement:
    """The first phase of a round."""
    return pb.PhaseAnnouncement(
        round=3,
        attempt=1,
        kind=pb.ROUND_KIND_TRAIN,
        phase="upload",
        deadline_ms=1000,
        model=pb.ModelRef(version=2, digest=DIGEST, object=pb.ObjectRef(sha256=DIGEST, size=4)),
        invited=["north", "south", "west"],
        payload=payload(),
        bulk=pb.ObjectRef(sha256=DIGEST, size=9),
    )


def announced(body: pb.PhaseAnnouncement | None = None) -> pb.CoordinatorMessage:
    """The same, as the coordinator says it."""
    return pb.CoordinatorMessage(study_id=STUDY_ID, announcement=body or announcement())


def upload_header() -> pb.UploadHeader:
    """A header without id and signature."""
    return pb.UploadHeader(
        study_id=STUDY_ID,
        round=3,
        attempt=1,
        phase="upload",
        payload=payload(),
        bulk=pb.ObjectRef(sha256=DIGEST, size=4),
        metrics=pb.MetricsReport(
            samples=10,
            accuracy=0.5,
            loss=1.0,
            mse=0.25,
            global_accuracy=0.75,
            sums=[pb.MetricSums(name="auc", values=[3, 0, 7])],
        ),
    )
