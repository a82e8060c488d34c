"""A site that cannot take part says so once, and says when it can again: the study waits and loses no attempt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from secure_fl.errors import CodeChangedError, NotReadyError, SecureFLError
from secure_fl.rpc import federation_pb2 as pb

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
APPROVAL_PAUSE = 10.0  # the longest, while somebody only has to approve: that costs nothing to look at

log = logging.getLogger(__name__)


class Repairs:
    """Tries what did not work, now and then, until it does."""

    def __init__(self, say: Callable[[pb.NodeMessage], None]) -> None:
        self._say = say
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._words: dict[str, str] = {}

    def needed(self, study_id: str, try_again: Callable[[], Awaitable[object]], error: Exception) -> None:
        """What comes before a round failed with `error`: this site steps back until `try_again` does not raise."""
        if (earlier := self._tasks.get(study_id)) is not None and not earlier.done():
            return
        self._tell(study_id, error)
        self._tasks[study_id] = asyncio.create_task(self._until_it_works(study_id, try_again, error))

    def under_way(self, study_id: str) -> str:
        """For which kind of repair a study waits here; empty for none."""
        waits = study_id in self._tasks and not self._tasks[study_id].done()
        return self._words.get(study_id, "") if waits else ""

    def _tell(self, study_id: str, error: Exception) -> None:
        """Say why once, and again if the reason is another one by now."""
        word = _word(error)
        if self._words.get(study_id) != word:
            self._words[study_id] = word
            answer = pb.StudyAnswer(accepted=False, refusal=word)
            self._say(pb.NodeMessage(study_id=study_id, study_answer=answer))

    def forget(self, study_id: str) -> None:
        """The study is over."""
        self._words.pop(study_id, None)
        if (task := self._tasks.pop(study_id, None)) is not None:
            task.cancel()

    async def close(self) -> None:
        """Try no more."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_it_works(
        self, study_id: str, try_again: Callable[[], Awaitable[object]], error: Exception
    ) -> None:
        pause = FIRST_PAUSE
        while True:
            longest = APPROVAL_PAUSE if isinstance(error, CodeChangedError) else LONGEST_PAUSE
            log.warning("study %s waits for a repair at this site; next try in %.0f s", study_id[:12], pause)
            await asyncio.sleep(min(pause, longest))
            pause = min(2 * pause, longest)
            try:
                await try_again()
            except SecureFLError as again:
                error = again
                log.warning("%s%s", error.message, f" → {error.hint}" if error.hint else "")
                self._tell(study_id, error)
            except Exception as again:
                error = again
                log.exception("a rehearsal failed")
                self._tell(study_id, error)
            else:
                log.info("study %s: this site can take part again", study_id[:12])
                self._words.pop(study_id, None)
                self._say(pb.NodeMessage(study_id=study_id, study_answer=pb.StudyAnswer(accepted=True)))
                return


def _word(error: Exception) -> str:
    """Whether code was approved depends on no record. All else that can fail is one word."""
    return CodeChangedError.code if isinstance(error, CodeChangedError) else NotReadyError.code
