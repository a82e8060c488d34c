"""Data that cannot be read cost a study time and not its attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
import tomli_w

import node.repair
from node.service import Node
from node.training.jobs import Job
from secure_fl.errors import DataError
from secure_fl.results.record import StudyRecord
from secure_fl.settings import read_toml
from tests.support.federation import Federation
from tests.support.training import FakeTraining


class Broken(FakeTraining):
    """Has no data until somebody brings them."""

    def __init__(self, repaired: asyncio.Event) -> None:
        super().__init__()
        self.repaired = repaired
        self.tries = 0

    async def rehearse(self, job: Job) -> Mapping[str, str]:
        self.tries += 1
        if not self.repaired.is_set():
            raise DataError("the file is gone")
        return {}


@pytest.mark.parametrize("steps_back", [True, False], ids=["shipped", "without it"])
def test_a_study_waits_for_a_repair_and_does_not_use_up_its_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_back: bool
) -> None:
    """Three sites, all of them needed, one without data: attempts follow each other within milliseconds."""
    monkeypatch.setattr(node.repair, "FIRST_PAUSE", 0.1)
    if not steps_back:
        monkeypatch.setattr(Node, "_step_back", lambda *_: None)

    async def run() -> StudyRecord | None:
        fed = Federation(
            tmp_path / "run", {"rounds": {"deadline": 20, "phase_deadline": 20, "gather": 1, "attempts": 2}}, nodes=3
        )
        for name in fed.names:  # No simulation: somebody may be there who repairs.
            path = fed.workspace.node_file(name)
            table = read_toml(path)
            del table["simulation"]
            path.write_bytes(tomli_w.dumps(table).encode())
        repaired = asyncio.Event()
        broken = Broken(repaired)
        fed.start_node("site-01", executor=broken)
        for name in fed.names[1:]:
            fed.start_node(name)
        study = asyncio.create_task(fed.coordinate())
        while broken.tries < 3 and not study.done():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        if steps_back:
            assert ("refused", "NotReady") in [(kind, fields.get("reason")) for kind, fields in fed.events]
            kinds = [kind for kind, _ in fed.events]
            assert "waiting" in kinds[kinds.index("refused") :]
        repaired.set()
        try:
            return await study
        finally:
            await fed.close()

    record = asyncio.run(asyncio.wait_for(run(), 60))
    if not steps_back:
        assert record is None  # aborted
        return
    assert record is not None
    assert record.outcome == "finished"
    assert all("site-01" in entry.cohort for entry in record.rounds)
