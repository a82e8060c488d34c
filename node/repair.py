"""A site that cannot take part says so once, and says when it can again: the study waits and loses no attempt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from node.training.executor import Executor
from node.training.jobs import Job
from secure_fl.errors import NotReadyError, SecureFLError
from secure_fl.rpc import federation_pb2 as pb

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0

log = logging.getLogger(__name__)


class Repairs:
    """Tries what did not work, now and then, until it does."""

    def __init__(self, executor: Executor, say: Callable[[pb.NodeMessage], None]) -> None:
        self._executor = executor
        self._say = say
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def needed(self, study_id: str, job: Job) -> None:
        """A study's rehearsal `job` failed: this site steps back from the study until it succeeds."""
        if (earlier := self._tasks.get(study_id)) is not None and not earlier.done():
            return
        answer = pb.StudyAnswer(accepted=False, refusal=NotReadyError.code)
        self._say(pb.NodeMessage(study_id=study_id, study_answer=answer))
        self._tasks[study_id] = asyncio.create_task(self._until_it_works(study_id, job))

    def under_way(self, study_id: str) -> bool:
        """Whether a study waits for a repair here."""
        return study_id in self._tasks and not self._tasks[study_id].done()

    def forget(self, study_id: str) -> None:
        """The study is over."""
        if (task := self._tasks.pop(study_id, None)) is not None:
            task.cancel()

    async def close(self) -> None:
        """Try no more."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_it_works(self, study_id: str, job: Job) -> None:
        pause = FIRST_PAUSE
        while True:
            log.warning("study %s waits for a repair at this site; next try in %.0f s", study_id[:12], pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                await self._executor.rehearse(job)
            except SecureFLError as error:
                log.warning("%s%s", error.message, f" → {error.hint}" if error.hint else "")
            except Exception:
                log.exception("a rehearsal failed")
            else:
                log.info("study %s: this site can take part again", study_id[:12])
                self._say(pb.NodeMessage(study_id=study_id, study_answer=pb.StudyAnswer(accepted=True)))
                return
