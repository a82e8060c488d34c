"""Sites that do not wait for each other: who is in which flush, with what, and what survives a kill."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node.training.jobs import Job, Result
from secure_fl import tasks
from secure_fl.blocks import Blocks
from secure_fl.results.record import RoundRecord, StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.strategies.merging import discount
from secure_fl.study.start import start_of
from tests.support.federation import Federation, Killed
from tests.support.training import FakeTraining, Faults

SITES = 6
SLOW = "site-03"
ROUNDS = {
    "mode": "buffered", "unit": "site", "merge": "delta", "buffer": 4,
    "deadline": 10, "phase_deadline": 5, "gather": 1, "patience": 30,
}  # fmt: skip


class SlowTraining(FakeTraining):
    """Takes its time, and notes what it trained."""

    def __init__(self, seconds: float, faults: Faults | None = None) -> None:
        super().__init__(faults)
        self._seconds = seconds
        self.trained: list[int] = []  # rounds whose training ended

    async def run(self, job: Job) -> Result:
        """The same update, later."""
        if job.kind is RoundKind.TRAIN:
            await asyncio.sleep(self._seconds)
        result = await super().run(job)
        if job.kind is RoundKind.TRAIN:
            self.trained.append(job.round)
        return result


def play(
    folder: Path,
    scenario: Callable[[Federation], Awaitable[StudyRecord | None]],
    *,
    rounds: dict[str, Any] | None = None,
    protection: dict[str, Any] | None = None,
    flushes: int = 8,
) -> tuple[StudyRecord, Federation]:
    async def run() -> tuple[StudyRecord | None, Federation]:
        settings = {
            "study": {"rounds": flushes},
            "protection": {"kind": "sealed", "recovery": True, **(protection or {})},
            "rounds": {**ROUNDS, **(rounds or {})},
        }
        fed = Federation(folder / "run", settings, nodes=SITES)
        try:
            return await asyncio.wait_for(scenario(fed), 100), fed
        finally:
            await fed.close()

    record, fed = asyncio.run(run())
    assert record is not None
    return record, fed


def flushes_of(record: StudyRecord) -> list[RoundRecord]:
    return [entry for entry in record.rounds if entry.kind is RoundKind.TRAIN]


def entries_of(record: StudyRecord, site: str) -> list[tuple[int, int]]:
    """Per flush that a site is in: the flush, and how many versions old its work was."""
    return [
        (flush.number, one.staleness or 0)
        for flush in flushes_of(record)
        for one in flush.circles
        if one.members == (site,)
    ]


@pytest.mark.parametrize("protection", ["sealed", "encrypted"])
def test_a_slow_site_holds_nobody_up_and_loses_no_work(tmp_path: Path, protection: str) -> None:
    slow = SlowTraining(1.0)

    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name, executor=slow if name == SLOW else SlowTraining(0.05))
        return await fed.coordinate()

    record, fed = play(tmp_path, scenario, protection={"kind": protection}, flushes=10)
    print(record)
    for e in flushes_of(record): print(e.number, e.attempts, round(e.seconds,2), [(c.members, c.staleness) for c in e.circles])
    print(slow.trained)
