"""A coordinator without its network: store, hub and one task per study."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path

from coordinator import first_models
from coordinator.bulk_files import BulkFiles
from coordinator.sessions import Hub
from coordinator.store import Owner, Store
from coordinator.study_runner import StudyRunner
from coordinator.submission_room import SubmissionRoom
from secure_fl import logs
from secure_fl.errors import OverflowInvariantError, SecureFLError, SettingsError, StorageError
from secure_fl.events import Listener, StudyFailed, StudyPaused, ignore
from secure_fl.limits import OBJECT_BYTES
from secure_fl.study.first_model import FirstModel
from secure_fl.study.settings import Study
from secure_fl.threads import in_thread

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
        storage_pause: float | None = None,
        model_bytes: int = OBJECT_BYTES,
        tasks: Collection[str] = (),
    ) -> None:
        self.hub = Hub(heartbeat=heartbeat)
        self.runners: dict[str, StudyRunner] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._submitting = asyncio.Lock()
        self._folder = folder
        self._store = store or Store.in_folder(folder)
        self._listener = listener
        self._grace = grace
        self._now = now
        self._model_bytes = model_bytes
        self.room = SubmissionRoom(model_bytes)
        self._allowed_tasks = tasks  # `module:attribute`, for studies that come without their first model
        self._storage_pause = storage_pause  # before a study goes on after a storage error; None: it does not

    def resume(self) -> None:
        """Take up every study in the store, finished ones too: their nodes may still ask."""
        shutil.rmtree(self.incoming, ignore_errors=True)  # what was being submitted when the last process ended
        for stored in self._store.studies():
            try:
                study = Study.from_canonical(stored.settings)
                if stored.state == "running":  # One that has ended needs no model to go on from.
                    self._first_model(study)
                self._runner(study, stored.state, stored.reason)
            except (SettingsError, OverflowInvariantError) as error:
                # An upgrade must not keep the other studies from going on.
                log.error("study %s is not taken up: %s → %s", stored.id[:12], error.message, error.hint)

    def prepare(self, study: Study) -> StudyRunner:
        """Take up a study of the coordinator's own file, whose task is here; one that is known stays as it is."""
        if study.id in self.runners:
            return self.runners[study.id]
        first_models.require_allowed(study, self._allowed_tasks)  # before `check` imports it
        study.check()
        self.examine(study, self._first_model(study))
        self._store.add_study(study.id, study.canonical(), now=self._now())
        return self._runner(study, "running", "")

    def examine(self, study: Study, first: FirstModel) -> None:
        """Raise `SettingsError` unless this coordinator can run the study, which starts from the model `first`."""
        first_models.require_fit(study, first, model_bytes=self._model_bytes)

    async def submit(
        self, study: Study, first: FirstModel, content: Path, *, owner: Owner | None = None
    ) -> StudyRunner:
        """Take up a study while others run, with its first model in the file `content`; for the one who may stop it.

        Only the check is left to a thread: sessions belong to the event loop's.
        """
        async with self._submitting:  # The same study may come twice at once.
            if study.id not in self.runners:
                await in_thread(self._admit, study, first, content, owner)
            runner = self.runners.get(study.id) or self._runner(study, "running", "")
        self.start(runner)
        return runner

    def _admit(self, study: Study, first: FirstModel, content: Path, owner: Owner | None) -> None:
        self.examine(study, first)
        first_models.keep(self._files(study), first, content)
        self._store.add_study(study.id, study.canonical(), now=self._now(), owner=owner)

    def _first_model(self, study: Study) -> FirstModel:
        """As it was submitted or, for a study that nobody submitted, as its task makes it here."""
        files = self._files(study)
        return first_models.load(files) or first_models.make_here(files, study, self._allowed_tasks)

    def _files(self, study: Study) -> BulkFiles:
        return BulkFiles(self._folder / "studies" / study.id)

    @property
    def incoming(self) -> Path:
        """Where models rest that are being submitted."""
        return self._folder / "incoming"

    def start(self, runner: StudyRunner) -> None:
        """Run an unfinished study in the background."""
        if runner.outcome == "running" and runner.id not in self._tasks:
            self._tasks[runner.id] = asyncio.create_task(self._run(runner))

    async def run(self) -> None:
        """Start everything unfinished and wait until nothing runs any more."""
        for runner in list(self.runners.values()):
            self.start(runner)
        while running := [task for task in self._tasks.values() if not task.done()]:
            await asyncio.wait(running)

    async def owner(self, runner: StudyRunner) -> Owner | None:
        """Who submitted a study, if it is known."""
        return await in_thread(self._store.owner, runner.id)

    async def stop(self, runner: StudyRunner) -> None:
        """End a study early; what it has committed stays."""
        task = self._tasks.pop(runner.id, None)
        if task is not None:
            await _cancelled(task)
        elif runner.outcome != "running":
            return  # It ended before this process began. Stopping it would load it, and with it its task.
        await runner.stop()

    async def close(self) -> None:
        """Interrupt what runs (the store knows how far it is), hang up and let go of the store."""
        for task in self._tasks.values():
            await _cancelled(task)
        self.hub.hang_up()
        self._store.close()

    async def _run(self, runner: StudyRunner) -> None:
        with logs.about(study=runner.id):
            await self._run_through_pauses(runner)

    async def _run_through_pauses(self, runner: StudyRunner) -> None:
        try:
            while True:
                try:
                    await runner.run()
                    return
                except StorageError as error:
                    # A full disk is no reason to end a study: the store knows how far it is.
                    if self._storage_pause is None:
                        raise
                    log.error("the study pauses: %s", error)
                    self._listener(StudyPaused.of(error, study_id=runner.id))
                    await asyncio.sleep(self._storage_pause)
        except SecureFLError as error:
            log.error("the study ended: %s", error)
            self._listener(StudyFailed.of(error, study_id=runner.id))
        except Exception:
            log.exception("study %s ended by an unexpected error", runner.id[:12])
            unexpected = SecureFLError(
                "an unexpected error; see the log", advice="start again: nothing committed is lost"
            )
            self._listener(StudyFailed.of(unexpected, study_id=runner.id))

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
        runner.recall(outcome, reason)
        self.runners[runner.id] = runner
        self.hub.add(runner)
        return runner


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
