"""The coordinator's file."""

from __future__ import annotations

from pydantic import Field

from secure_fl.party import IdentitySection, PartyFile
from secure_fl.settings import Settings


class CoordinatorSection(IdentitySection):
    """Where to listen, and as whom."""

    address: str = "0.0.0.0:8443"


class LimitsSection(Settings):
    """Timing of sessions, in seconds."""

    heartbeat: float = Field(10.0, gt=0, le=300)
    grace: float = Field(20.0, ge=0, le=3600)  # how long a node that vanished in mid-phase is waited for


class CoordinatorFile(PartyFile):
    """Everything a coordinator needs to start."""

    coordinator: CoordinatorSection
    limits: LimitsSection = LimitsSection()
    studies: tuple[str, ...] = ()  # study files to run, besides those already in the store

    @property
    def identity(self) -> IdentitySection:
        """The section with the certificate."""
        return self.coordinator
