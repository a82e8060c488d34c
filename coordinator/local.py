"""The coordinator inside another process, for the `threads` engine."""

from __future__ import annotations

from pathlib import Path

from coordinator.config import CoordinatorFile
from coordinator.service import Coordinator
from secure_fl.events import Listener
from secure_fl.study.settings import Study
from secure_fl.transport.base import FederationService


class LocalCoordinator:
    """One study, no socket."""

    def __init__(self, file: Path, *, listener: Listener) -> None:
        settings = CoordinatorFile.read(file)
        self._coordinator = Coordinator(settings.state_folder, listener=listener, tasks=settings.coordinator.tasks)

    @property
    def service(self) -> FederationService:
        """What nodes connect to."""
        return self._coordinator.hub

    async def run(self, study: Study) -> None:
        """Run the study to its end; the listener hears how it went."""
        self._coordinator.resume()
        self._coordinator.prepare(study)
        try:
            await self._coordinator.run()
            await self._coordinator.hub.drain(5.0)
        finally:
            await self._coordinator.close()
