"""How a node comes to know its circle, where circles follow from what sites declared."""

from __future__ import annotations

from node.session import Session
from node.store import StudyStore
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.threads import in_thread_whole
from secure_fl.transport.objects import IncomingObject
from secure_fl.transport.wire import round_kind


async def learn_circles(
    session: Session, resolved: ResolvedStudy, store: StudyStore, announcement: pb.PhaseAnnouncement
) -> None:
    """Take the first list of declarations that is announced, verified, for the study's, for ever.

    Raises `SecureFLError` for one that is forged, and for any other one afterwards.
    """
    division, listed = resolved.division, announcement.declared
    if not division.declares or round_kind(announcement.kind) is RoundKind.DECLARE or listed.sha256 == division.digest:
        return
    incoming = IncomingObject(store.scratch(f"{announcement.round}-{announcement.attempt}-declared.bin"), listed)
    await session.download(resolved.id, incoming)
    await in_thread_whole(store.keep_declared, division, incoming.path)
