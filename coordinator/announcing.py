"""What nodes are told when a phase of an attempt begins."""

from __future__ import annotations

from coordinator.store import Attempt
from secure_fl.protect.contract import Message, Protection
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.wire import round_kind_to_wire


def announcement(
    plan: Attempt,
    protection: Protection,
    question: tuple[str, Message],
    *,
    model: pb.ModelRef,
    seconds: float,
    agreements: bytes = b"",
) -> pb.PhaseAnnouncement:
    """The phase and what it asks, as far as it is not bulk, and how many seconds a node may take."""
    phase, message = question
    return pb.PhaseAnnouncement(
        round=plan.number,
        attempt=plan.attempt,
        kind=round_kind_to_wire(plan.kind),
        phase=phase,
        deadline_ms=int(min(seconds * 1000, 2**32 - 1)),
        model=model,
        invited=plan.invited,
        asked=plan.asked,
        agreements=agreements,
        payload=pb.Payload(
            protection=protection.name, phase=phase, version=protection.payload_version, body=message.body
        ),
    )
