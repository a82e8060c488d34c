"""The coordinator's file."""

from __future__ import annotations

from pydantic import Field

from secure_fl.addresses import Address
from secure_fl.identity.party_file import IdentitySection, PartyFile
from secure_fl.operations.monitoring import MonitoringSection
from secure_fl.settings import PathText, Settings


class CoordinatorSection(IdentitySection):
    """Where to listen, and as whom."""

    address: Address = "0.0.0.0:8443"
    tasks: tuple[str, ...] = ()  # `module:attribute` tasks installed and allowed here, word for word


class LimitsSection(Settings):
    """Timing of sessions, in seconds, and how much of the server one peer may have."""

    heartbeat: float = Field(10.0, gt=0, le=300)
    grace: float = Field(20.0, ge=0, le=3600)  # how long a node that vanished in mid-phase is waited for
    connections: int = Field(512, ge=1, le=100_000)  # of all peers together, unfinished handshakes included
    calls_per_peer: int = Field(16, ge=3, le=1000)  # at the same time, over all connections of one certificate
    messages_per_second: float = Field(500.0, gt=0)  # per certificate; a faster sender is read more slowly
    model_bytes: int = Field(2**30, ge=1)  # the largest shared model a study may have here


class CoordinatorFile(PartyFile):
    """Everything a coordinator needs to start."""

    coordinator: CoordinatorSection
    limits: LimitsSection = LimitsSection()
    monitoring: MonitoringSection = MonitoringSection(address="127.0.0.1:9464")
    studies: tuple[PathText, ...] = ()  # study files to run, besides those already in the store

    @property
    def identity(self) -> IdentitySection:
        """The section with the certificate."""
        return self.coordinator
