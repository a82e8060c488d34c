"""A node inside another process, for the `threads` engine: same messages, training in a thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from node.config import NodeFile
from node.policy import require_terms
from node.service import Node
from node.training.jobs import Job, Result
from node.training.trainer import Trainer
from secure_fl.study.settings import Study
from secure_fl.tasks.model_blocks import GENERATOR
from secure_fl.transport.base import FederationService
from secure_fl.transport.local import LocalConnector

# One thread for all nodes of the process, since a trainer does one job at a time anyway. Not one of the loop's own: a
# dozen sites that wait for their turn there would leave none for anything else.
_TRAINING = ThreadPoolExecutor(1, thread_name_prefix="training")


class InlineExecutor:
    """Trains in a thread of this process. A cancelled job ends in the background, unheard; `close` waits for it."""

    def __init__(self) -> None:
        self._trainer = Trainer()

    async def rehearse(self, job: Job) -> Mapping[str, str]:
        """Try in the thread."""
        return (await self.run(replace(job, rehearsal=True))).found

    async def run(self, job: Job) -> Result:
        """Train in the thread."""
        # With this run's context, by which its log lines are told from those of another in this process.
        run = partial(contextvars.copy_context().run, self._execute, job)
        return await asyncio.get_running_loop().run_in_executor(_TRAINING, run)

    async def close(self) -> None:
        """Wait for a cancelled job that still runs: it uses torch's generator, which is its caller's again then."""
        await asyncio.get_running_loop().run_in_executor(_TRAINING, _nothing)

    def _execute(self, job: Job) -> Result:
        # Training seeds torch's generators, and this may be the process of somebody who has seeded them before.
        with GENERATOR, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            return self._trainer.execute(job)


def _nothing() -> None:
    pass


class LocalNode:
    """One site, no socket."""

    def __init__(self, file: Path, service: FederationService) -> None:
        settings = NodeFile.read(file)
        connector = LocalConnector(settings.credential().certificate)
        connector.service = service
        self._node = Node(settings, connector, InlineExecutor(), until_done=True)

    @staticmethod
    def check_terms(settings: Mapping[str, Any], study: Study) -> None:
        """Raise `RefusedError` or `SettingsError` if a site whose file says this would refuse the study."""
        require_terms(NodeFile.parse(settings), study)

    async def run(self) -> None:
        """Serve until the study is closed."""
        await self._node.run()

    def stop(self) -> None:
        """Leave cleanly."""
        self._node.stop()
