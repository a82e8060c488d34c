"""A study stopped at the very moment a round commits: the round is committed for everybody, or for nobody."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from coordinator.service import Coordinator
from secure_fl.results.record import StudyRecord
from tests.support.federation import FaultyStore, Federation
from tests.support.outcomes import ending

SETTINGS: dict[str, Any] = {
    "task": {"name": "tests.support.task:Line"},
    "rounds": {"deadline": 20, "phase_deadline": 20, "gather": 2},
}


def test_a_stop_waits_for_the_commit_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()
    commit = FaultyStore.commit_round

    def pausing(self: FaultyStore, *arguments: Any, **named: Any) -> None:
        if entered.is_set() or arguments[0][0].number == 1:
            commit(self, *arguments, **named)
            return
        entered.set()
        leave.wait(10)
        commit(self, *arguments, **named)

    monkeypatch.setattr(FaultyStore, "commit_round", pausing)

    async def run() -> None:
        fed = Federation(tmp_path / "run", SETTINGS)
        for name in fed.names:
            fed.start_node(name)
        study = asyncio.create_task(fed.coordinate())
        assert await asyncio.to_thread(entered.wait, 20)
        assert fed.coordinator is not None
        runner = fed.coordinator.runners[fed.study.id]
        stop = asyncio.create_task(fed.coordinator.stop(runner))
        await asyncio.sleep(0.2)
        leave.set()
        await stop
        await study
        await fed.close()
        end = ending(fed)
        assert str(end) == "aborted: StudyStopped"
        assert end.lost == 0
        assert not [fields for kind, fields in fed.events if kind == "round-void"]
        assert [record.number for record in end.records] == [1, 2]
        assert StudyRecord.load(fed.workspace.study_state / "record.json").rounds == end.records

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_study_can_be_stopped_before_it_has_begun(tmp_path: Path) -> None:
    async def run() -> None:
        fed = Federation(tmp_path / "run", SETTINGS)
        coordinator = Coordinator(fed.workspace.coordinator_state, tasks=[fed.study.task.name])
        runner = coordinator.prepare(fed.study)
        coordinator.start(runner)
        await coordinator.stop(runner)
        await coordinator.close()
        assert str(ending(fed)) == "aborted: StudyStopped"
        assert StudyRecord.load(fed.workspace.study_state / "record.json").outcome == "aborted"

    asyncio.run(asyncio.wait_for(run(), 60))
