"""Kill a node or the coordinator between phases (within them: `test_fault_table`): no committed round is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from secure_fl.results.record import StudyRecord
from secure_fl.rounds import RoundKind
from tests.support.federation import Federation, Killed
from tests.support.training import Faults

PROTECTIONS = ("masked",)
NODE_POINTS = [(protection, point) for protection in PROTECTIONS for point in ("study_offer", "download", "train")]
COORDINATOR_POINTS = [
    (protection, point, occurrence)
    for protection in PROTECTIONS
    for point, occurrence in (
        ("before:begin_attempt", 1),
        ("after:begin_attempt", 2),
        ("before:commit_round", 1),
        ("after:commit_round", 2),
        ("before:end_study", 1),
    )
]


def federation(folder: Path, protection: str) -> Federation:
    """Four sites, two rounds."""
    return Federation(folder, {"protection": {"kind": protection}, "strategy": {"name": "fedavg"}})


async def undisturbed(folder: Path, protection: str) -> tuple[StudyRecord, bytes]:
    """The same study without faults."""
    fed = federation(folder, protection)
    for name in fed.names:
        fed.start_node(name)
    record = await fed.coordinate()
    await fed.close()
    assert record is not None
    return record, fed.model()


def require_finished(record: StudyRecord | None, fed: Federation) -> StudyRecord:
    """Every planned round is committed, in order."""
    assert record is not None, fed.events[-3:]
    assert record.outcome == "finished"
    assert [r.number for r in record.rounds if r.kind is RoundKind.TRAIN] == [1, 2]
    return record


@pytest.mark.parametrize(("protection", "point"), NODE_POINTS)
def test_a_node_killed_anywhere_rejoins_and_the_study_finishes(tmp_path: Path, protection: str, point: str) -> None:
    async def scenario() -> None:
        fed = federation(tmp_path / "run", protection)
        faults = Faults(point)
        for name in fed.names[1:]:
            fed.start_node(name)
        fed.start_node(fed.names[0], faults)
        study = asyncio.create_task(fed.coordinate())
        await asyncio.wait_for(faults.fired.wait(), 20)
        fed.start_node(fed.names[0])
        record = require_finished(await study, fed)
        assert all(len(r.cohort) >= 3 for r in record.rounds)
        await fed.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize(("protection", "point", "occurrence"), COORDINATOR_POINTS)
def test_a_coordinator_killed_anywhere_resumes_to_the_same_model(
    tmp_path: Path, protection: str, point: str, occurrence: int
) -> None:
    async def scenario() -> None:
        expected, model = await undisturbed(tmp_path / "calm", protection)
        fed = federation(tmp_path / "run", protection)
        for name in fed.names:
            fed.start_node(name)
        with pytest.raises(Killed):
            await fed.coordinate(Faults(point, occurrence))
        committed = len([kind for kind, _ in fed.events if kind == "round-committed"])
        record = require_finished(await fed.coordinate(), fed)
        assert len(record.rounds) >= committed
        assert [r.cohort for r in record.rounds] == [r.cohort for r in expected.rounds]
        # Nothing was lost and nothing counted twice: the same integers were summed, so the model is the same.
        assert fed.model() == model
        # And of what sites uploaded nothing is left.
        assert not list((fed.workspace.study_state / "spool").rglob("*"))
        await fed.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
