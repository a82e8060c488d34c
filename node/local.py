"""A node inside another process, for the `threads` engine: same messages, training in a thread."""

from __future__ import annotations

import asyncio
from pathlib import Path

from node.config import NodeFile
from node.jobs import Job, Result
from node.service import Node
from node.training import Trainer
from secure_fl.transport.base import FederationService
from secure_fl.transport.local import LocalConnector


class InlineExecutor:
    """Trains in a thread of this process. A cancelled job ends in the background, unheard."""

    def __init__(self) -> None:
        self._trainer = Trainer()

    async def run(self, job: Job) -> Result:
        """Train in a thread."""
        return await asyncio.to_thread(self._trainer.execute, job)

    async def close(self) -> None:
        """Nothing to stop."""


class LocalNode:
    """One site, no socket."""

    def __init__(self, file: Path, service: FederationService) -> None:
        settings = NodeFile.read(file)
        connector = LocalConnector(settings.credential().certificate)
        connector.service = service
        self._node = Node(settings, connector, InlineExecutor(), until_done=True)

    async def run(self) -> None:
        """Serve until the study is closed."""
        await self._node.run()

    def stop(self) -> None:
        """Leave cleanly."""
        self._node.stop()
