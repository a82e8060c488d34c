"""The coordinator inside another process, for the `threads` engine."""

from __future__ import annotations

from pathlib import Path

from coordinator.events import Listener
from coordinator.service import Coordinator
from secure_fl.record import StudyRecord
from secure_fl.study import Study
from secure_fl.transport.base import FederationService


class LocalCoordinator:
    """One study, no socket."""

    def __init__(self, folder: Path, *, listener: Listener) -> None:
        self._coordinator = Coordinator(folder, listener=listener)

    @property
    def service(self) -> FederationService:
        """What nodes connect to."""
        return self._coordinator.hub

    async def run(self, study: Study) -> StudyRecord | None:
        """Run the study to its end; None when it failed (the listener was told why)."""
        runners = self._coordinator.resume()
        if not any(runner.id == study.id for runner in runners):
            added = self._coordinator.add(study)
            runners += [added] if added else []
        records = await self._coordinator.run(runners)
        await self._coordinator.hub.drain(5.0)
        self._coordinator.close()
        return records[0] if records else None
