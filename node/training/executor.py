"""What an attempt asks of training, wherever that happens.

    result = await executor.run(job)     # the update lies in the file job.update_to then

`WorkerProcess` trains in a child process, `InlineExecutor` in a thread; tests have one that trains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from node.training.jobs import Job, Result


class Executor(Protocol):
    """Runs jobs for attempts."""

    async def rehearse(self, job: Job) -> Mapping[str, str]:
        """Load the data and try one batch without a received model, once per study: whatever can fail fails here.

        Returns what the ledger says of data and code. Raises as `run` does.
        """
        ...

    async def run(self, job: Job) -> Result:
        """Do a job: load, measure, train. Several calls may wait; one job runs at a time.

        Returns the number of samples and the measurements; blocks are in the files that the job names. Cancelling the
        call cancels the job. Raises `TrainingError` where training fails or its process dies, `DataError`,
        `SettingsError`, `LayoutMismatchError`; nothing of a failed job is used. What a model does to the
        arithmetic is no failure: the update is finite.
        """
        ...

    async def close(self) -> None:
        """Stop whatever runs. It may be used again."""
        ...
