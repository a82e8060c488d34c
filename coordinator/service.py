"""A coordinator without its network: store, hub and one task per study."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from coordinator.events import Listener, failure, ignore
from coordinator.hub import Hub
from coordinator.rounds import StudyRunner
from coordinator.store import Store
from secure_fl.errors import SecureFLError
from secure_fl.record import StudyRecord
from secure_fl.study import Study

log = logging.getLogger(__name__)


class Coordinator:
    """Runs studies for whoever connects to `hub`."""

    def __init__(
        self,
        folder: Path,
        *,
        store: Store | None = None,
        listener: Listener = ignore,
        heartbeat: float = 10.0,
        grace: float = 20.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.hub = Hub(heartbeat=heartbeat)
        self._folder = folder
        self._store = store or Store.in_folder(folder)
        self._listener = listener
        self._grace = grace
        self._now = now

    def resume(self) -> list[StudyRunner]:
        """Runners for every study in the store, finished ones too: their nodes may still ask."""
        return [
            self._runner(Study.from_canonical(stored.settings), stored.state, stored.reason)
            for stored in self._store.studies()
        ]

    def add(self, study: Study) -> StudyRunner | None:
        """A runner for a new study; None when the store knows it already."""
        if any(stored.id == study.id for stored in self._store.studies()):
            return None
        study.check()
        self._store.add_study(study.id, study.canonical(), now=self._now())
        return self._runner(study, "running", "")

    async def run(self, runners: list[StudyRunner]) -> list[StudyRecord]:
        """Run all unfinished studies to their end."""
        running = [runner for runner in runners if runner.outcome == "running"]
        results = await asyncio.gather(*(self._run(runner) for runner in running))
        return [record for record in results if record is not None]

    def close(self) -> None:
        """Hang up and let go of the store."""
        self.hub.hang_up()
        self._store.close()

    async def _run(self, runner: StudyRunner) -> StudyRecord | None:
        try:
            return await runner.run()
        except SecureFLError as error:
            log.error("study %s ended: %s", runner.id[:12], error)
            self._listener("study-failed", {"study_id": runner.id, **failure(error)})
            return None

    def _runner(self, study: Study, outcome: str, reason: str) -> StudyRunner:
        runner = StudyRunner(
            study,
            store=self._store,
            folder=self._folder / "studies" / study.id,
            sessions=self.hub,
            listener=self._listener,
            now=self._now,
            grace=self._grace,
        )
        runner.outcome, runner.reason = outcome, reason
        self.hub.add(runner)
        return runner
