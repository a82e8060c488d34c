"""Training in a process of its own: it can take hours and be cancelled while heartbeats go on.

The parent writes one job per line to the worker's standard input and reads one result per line. When the parent
dies the pipe closes and the worker leaves at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import queue
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from node.training.jobs import Job, Result
from secure_fl import logs
from secure_fl.errors import SecureFLError, TrainingError, rebuild
from secure_fl.files import keep_files_private
from secure_fl.operations import lifeline
from secure_fl.operations.allocator import give_memory_back
from secure_fl.operations.process_name import name_process

if TYPE_CHECKING:
    from node.training.trainer import Trainer
    from secure_fl.simulation.forks import Forked, Forks

log = logging.getLogger(__name__)

_RESULT_BYTES = 1 << 20
_MODULE = "node.training.worker"
_FRESH = (sys.executable, "-P", "-m", _MODULE)


class WorkerProcess:
    """In a child process, started when first needed and kept while all is well.

    It is a fresh interpreter or, in a node that was itself forked from a simulation's template, forked from that.
    """

    def __init__(self, command: tuple[str, ...] = _FRESH, *, forks: Forks | None = None) -> None:
        self._command = command
        self._forks = forks
        self._process: Forked | asyncio.subprocess.Process | None = None
        self._one_at_a_time = asyncio.Lock()  # several studies share the process

    async def rehearse(self, job: Job) -> Mapping[str, str]:
        """Try in the child."""
        return (await self.run(replace(job, rehearsal=True))).found

    async def run(self, job: Job) -> Result:
        """Train in the child, one job at a time; cancelling kills it."""
        async with self._one_at_a_time:
            try:
                return _unpack(await self._ask(job.to_json()), job.to_json())
            except asyncio.CancelledError:
                log.info("training is cancelled")
                await self.close()
                raise
            except SecureFLError:
                raise
            except Exception as error:
                # Whatever is left in the pipe must not become the answer to the next job.
                await self.close()
                raise TrainingError("the training process broke off", advice="see the node's log") from error

    async def _ask(self, line: str) -> bytes:
        process = await self._started()
        if process.stdin is None or process.stdout is None:
            raise TrainingError("the training process has no pipes")
        process.stdin.write(line.encode() + b"\n")
        await process.stdin.drain()
        answer = await process.stdout.readline()
        if not answer:
            code = await process.wait()
            self._process = None
            raise TrainingError(
                f"the training process died with exit code {code}",
                advice="if it was killed for lack of memory (-9), lower strategy.batch_size",
            )
        return answer

    async def close(self) -> None:
        """Kill the child, whatever it does."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _started(self) -> Forked | asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        if self._forks is not None:
            self._process = await self._forks.start(_MODULE, stderr=sys.stderr.fileno(), limit=_RESULT_BYTES)
        else:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_RESULT_BYTES,
            )
        return self._process


def _unpack(line: bytes, job: str) -> Result:
    values = json.loads(line)
    if values["job"] != _digest(job.encode()):
        raise ValueError("an answer to another job")
    if "error" in values:
        raise rebuild(values["error"], values["message"], advice=values["hint"])
    return Result.from_json(values["result"])


def main() -> None:
    """The worker: jobs from standard input, results to the original standard output."""
    # Whatever a task or a library prints must not end up among the results.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name_process("fl-worker")
    keep_files_private()
    give_memory_back()
    logs.configure(level="warning", style="text")
    jobs: queue.Queue[bytes] = queue.Queue()
    lifeline.read_until_parent_dies(0, jobs.put)
    from node.training.trainer import (
        Trainer as Trained,
    )  # torch: needed here, and not in the process that holds the session

    trainer = Trained()
    while True:
        answers.write(_answer(trainer, jobs.get()) + "\n")
        answers.flush()


def _answer(trainer: Trainer, line: bytes) -> str:
    return json.dumps({"job": _digest(line), **_attempt(trainer, line)})


def _attempt(trainer: Trainer, line: bytes) -> dict[str, Any]:
    try:
        return {"result": json.loads(trainer.execute(Job.from_json(line)).to_json())}
    except SecureFLError as error:
        return {"error": error.code, "message": error.message, "hint": error.hint}


def _digest(line: bytes) -> str:
    return hashlib.sha256(line.strip()).hexdigest()


if __name__ == "__main__":
    main()
