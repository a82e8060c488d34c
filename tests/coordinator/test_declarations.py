"""Sites that share a model to different depths: they declare how deep, once, and circles are formed from that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from node.training.jobs import Job, Result
from secure_fl.checkpoints import load_arrays, save_arrays
from secure_fl.results.record import RoundRecord, StudyRecord
from secure_fl.rounds import RoundKind
from tests.support.federation import Federation, Killed
from tests.support.training import FakeTraining, Faults

SETTINGS = {
    "study": {"rounds": 2},
    "task": {"name": "bearings", "network": "cells"},
    "strategy": {"name": "fedasa", "auxiliary_epochs": 0, "auxiliary_samples": 2},
    "protection": {"kind": "masked", "recovery": False},
    "rounds": {"deadline": 10, "phase_deadline": 4, "gather": 1, "attempts": 2, "patience": 20},
}
# Every other site shares one cell, the others all of them: by name, each circle would share one.
DEEP, SHALLOW = tuple(f"site-0{index}" for index in (1, 3, 5, 7)), tuple(f"site-0{index}" for index in (2, 4, 6, 8))


class Depth(FakeTraining):
    """Trains as deep as its site shares."""

    def __init__(self, trained: list[tuple[str, int]], faults: Faults | None = None) -> None:
        super().__init__(faults)
        self._trained = trained

    async def run(self, job: Job) -> Result:
        """Once, and note it."""
        result = await super().run(job)
        if job.kind is RoundKind.TRAIN:
            self._trained.append((job.me, job.round))
            path = Path(job.update_to)
            shared = {name: vector for name, vector in load_arrays(path).items() if not name.startswith("@")}
            save_arrays(path, shared if job.me in DEEP else {"stem": shared["stem"]})
        return result


def play(
    folder: Path, scenario: Callable[[Federation, list[tuple[str, int]]], Awaitable[StudyRecord | None]]
) -> tuple[StudyRecord, list[tuple[str, int]], Federation]:
    """Eight sites, and who trained for which round."""
    trained: list[tuple[str, int]] = []

    async def run() -> tuple[StudyRecord | None, Federation]:
        fed = Federation(folder / "run", SETTINGS, nodes=8)
        assert fed.study.declares
        try:
            return await asyncio.wait_for(scenario(fed, trained), 80), fed
        finally:
            await fed.close()

    record, fed = asyncio.run(run())
    assert record is not None
    return record, trained, fed


def circles(record: StudyRecord) -> set[tuple[str, ...]]:
    """All that any round had."""
    return {circle.members for entry in record.rounds for circle in entry.circles}


def test_sites_of_one_depth_are_in_one_circle(tmp_path: Path) -> None:
    async def scenario(fed: Federation, trained: list[tuple[str, int]]) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name, executor=Depth(trained))
        return await fed.coordinate()

    record, trained, fed = play(tmp_path, scenario)
    assert circles(record) == {DEEP, SHALLOW}
    # Divided by name, no circle would have shared more than one cell.
    assert record.blocks_never_opened == ()
    assert len(record.blocks_declared or ()) == 5
    # What was trained for the declaration is the first round's: nobody trains twice.
    assert sorted(trained) == sorted((name, number) for name in fed.names for number in (1, 2))
    assert [entry.number for entry in record.rounds] == [1, 2, 3]
    # The declaration has no record: the model that sites fetched for it counts in the first round, once.
    model = 4 * record.shared_parameters
    for entry in record.rounds[:2]:
        assert all(model < node.bytes_down < 2 * model for node in entry.nodes), entry.number


@pytest.mark.parametrize(
    ("point", "occurrence"),
    [
        ("before:add_answer", 3),
        ("after:add_answer", 8),
        ("after:close_phase", 1),
        ("before:abort_attempt", 1),
        ("after:abort_attempt", 1),
        ("before:begin_attempt", 2),
    ],
)
def test_the_coordinator_is_killed_while_sites_declare(tmp_path: Path, point: str, occurrence: int) -> None:
    async def scenario(fed: Federation, trained: list[tuple[str, int]]) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name, executor=Depth(trained))
        with pytest.raises(Killed):
            await fed.coordinate(Faults(point=point, occurrence=occurrence))
        return await fed.coordinate()

    record, trained, fed = play(tmp_path, scenario)
    assert circles(record) == {DEEP, SHALLOW}
    assert len(trained) == 2 * len(fed.names)


def test_a_site_that_was_absent_comes_last_and_still_takes_part(tmp_path: Path) -> None:
    """Nobody knows what it shares, so it is in the circle of those who share least."""

    async def scenario(fed: Federation, trained: list[tuple[str, int]]) -> StudyRecord | None:
        for name in fed.names[1:]:
            fed.start_node(name, executor=Depth(trained))
        running = asyncio.create_task(fed.coordinate())
        while not any(name == "round-started" and facts["round"] == 1 for name, facts in fed.events):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        fed.start_node(fed.names[0], executor=Depth(trained))
        return await running

    record, _, fed = play(tmp_path, scenario)
    first, second = sorted(circles(record), key=lambda circle: "site-01" in circle)
    assert first == ("site-02", "site-03", "site-05", "site-07")
    assert second == ("site-01", "site-04", "site-06", "site-08")
    assert record.rounds[-1].cohort == fed.names


def test_a_node_that_restarts_keeps_its_circle(tmp_path: Path) -> None:
    async def scenario(fed: Federation, trained: list[tuple[str, int]]) -> StudyRecord | None:
        faults = Faults(point="announce:commit")
        for name in fed.names[1:]:
            fed.start_node(name, executor=Depth(trained))
        fed.start_node(fed.names[0], faults, executor=Depth(trained, faults))
        running = asyncio.create_task(fed.coordinate(grace=1.0))
        await faults.fired.wait()
        fed.start_node(fed.names[0], executor=Depth(trained))
        return await running

    record, _, fed = play(tmp_path, scenario)
    assert circles(record) == {DEEP, SHALLOW}
    assert record.rounds[1].cohort == fed.names


def test_what_some_circle_declared_and_no_round_opened_is_missing(tmp_path: Path) -> None:
    kept = RoundRecord(
        number=1, kind=RoundKind.TRAIN, attempts=1, seconds=1.0, nodes=(), blocks_kept=("b", "c")
    )  # fmt: skip
    record = StudyRecord(
        study="s", study_id="0" * 64, task="t", strategy="fedasa", protection="masked", planned_rounds=1, roster=(),
        rounds=(kept,), partial=True, blocks_declared=("a", "b"),
    )  # fmt: skip
    record.save(tmp_path / "record.json")
    assert StudyRecord.load(tmp_path / "record.json") == record
    assert record.blocks_missing == ("b",)  # Nobody chose c, and that is as it should be.
    assert replace(record, partial=False).blocks_missing == ("b", "c")
