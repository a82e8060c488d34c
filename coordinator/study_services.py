"""What all attempts of a study use and none of them owns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from coordinator.agreements import KnownAgreements
from coordinator.bulk_files import BulkFiles
from coordinator.store import Store
from coordinator.unbroken import Unbroken
from secure_fl.events import Listener
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.resolved import ResolvedStudy


class Sessions(Protocol):
    """The connected nodes, as runners see them."""

    def ready(self, study_id: str) -> frozenset[str]:
        """Nodes that are connected and accepted the study."""
        ...

    def send(self, node: str, message: pb.CoordinatorMessage) -> bool:
        """Queue a message; False for a node that is not connected, which is told again when it is back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyServices:
    """What a study's attempts use and do not own."""

    resolved: ResolvedStudy
    store: Store
    files: BulkFiles
    sessions: Sessions
    listener: Listener
    unbroken: Unbroken
    agreements: KnownAgreements
    grace: float  # how long a node that vanished in mid-phase is waited for
