"""`encrypted` among real processes: whoever is killed in whatever phase and role, the study ends with the right model.

Roles follow from an attempt's transcript, so nobody knows them beforehand: the first member that comes by a place in the
right role stops there, and is killed. The key maker is also an opener, of bodies.

    ./scripts/test -m slow tests/end_to_end/test_encrypted.py     # each phase and role on its own, with and without return
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from secure_fl.results.record import StudyRecord
from secure_fl.rounds import RoundKind
from tests.end_to_end.test_sealed import check_combinations
from tests.faults.test_kill import wait_for
from tests.support.federation import Federation
from tests.support.processes import Processes

ROUNDS = {"deadline": 60, "phase_deadline": 30, "gather": 15}
CIRCLES: dict[str, Any] = {
    "protection": {"kind": "encrypted", "recovery": False},
    "task": {"name": "tests.support.task:Line"},
    "metrics": {"share": "none"},
    "rounds": ROUNDS,
}
GATHERED: dict[str, Any] = {**CIRCLES, "protection": {"kind": "encrypted", "recovery": True}}
PLACES = (
    "advertise@any", "key@maker", "upload@maker", "upload@seeds", "upload@plain", "check@maker", "check@seeds",
    "open@maker", "open@seeds",
)  # fmt: skip


class Killer:
    """Starts a federation whose nodes stop at places of a list, one after the other, and kills whoever did."""

    def __init__(self, fed: Processes, folder: Path, stops: list[str]) -> None:
        self._fed = fed
        self._marks = folder / "marks"
        self._marks.mkdir()
        self._environment = {"SECURE_FL_TEST_STOPS": " ".join(stops), "SECURE_FL_TEST_MARKS": str(self._marks)}

    def start(self) -> None:
        """The coordinator and every node."""
        self._fed.start_coordinator()
        for name in self._fed.names:
            self._fed.start_node(name, **self._environment)

    def kill(self, number: int, *, returns: bool = True, coordinator: bool = False) -> str:
        """Kill −9 whoever stops at the place with this number, and perhaps the coordinator with it; says who it was."""
        mark = self._marks / str(number)
        wait_for(mark)
        victim = mark.read_text()
        self._fed.kill(victim)
        if coordinator:
            self._fed.kill("coordinator")
            self._fed.start_coordinator()
        if returns:
            self._fed.start_node(victim, **self._environment)
        return victim


def calm_model(folder: Path, settings: dict[str, Any]) -> bytes:
    """What the same study makes when nothing happens, without processes."""

    async def scenario() -> bytes:
        fed = Federation(folder, settings, nodes=8)
        for name in fed.names:
            fed.start_node(name)
        record = await fed.coordinate()
        await fed.close()
        assert record is not None
        assert all(entry.cohort == fed.names for entry in record.rounds)
        return fed.model()

    return asyncio.run(asyncio.wait_for(scenario(), 100))


def model(fed: Processes) -> bytes:
    """The last checkpoint."""
    return max((fed.workspace.study_state / "checkpoints").glob("*.safetensors")).read_bytes()


def trained(record: StudyRecord) -> list[int]:
    """The rounds in which there was a new model."""
    assert record.outcome == "finished"
    return [entry.number for entry in record.rounds if entry.kind is RoundKind.TRAIN]


def test_who_is_killed_and_comes_back_changes_nothing(tmp_path: Path) -> None:
    """Two circles of four, a kill in every phase and of every role, every other time together with the coordinator."""
    rounds = 5
    stops = ["1/key@maker", "2/upload@plain", "3/check@seeds", "4/open@maker", "5/upload@maker"]
    settings = {**CIRCLES, "study": {"rounds": rounds}}
    with Processes(tmp_path / "run", settings, nodes=8) as fed:
        killer = Killer(fed, tmp_path, stops)
        killer.start()
        for number in range(len(stops)):
            killer.kill(number, coordinator=bool(number % 2))
        record = fed.finish(seconds=120)
        assert trained(record) == list(range(1, rounds + 1))
        assert all(entry.cohort == fed.names for entry in record.rounds)
        # A killed member has no key any more: its circle tries again, with the same integers.
        assert [max(circle.attempts for circle in entry.circles) for entry in record.rounds[:rounds]] == [2] * rounds
        assert model(fed) == calm_model(tmp_path / "calm", settings)


def test_who_does_not_come_back_is_done_without(tmp_path: Path) -> None:
    """Whoever is there takes part: without a key there is another attempt, and openers have substitutes."""
    settings = {**GATHERED, "study": {"rounds": 3}}
    with Processes(tmp_path / "run", settings, nodes=8, grace=2.0) as fed:
        killer = Killer(fed, tmp_path, ["1/key@maker", "2/check@bodies", "3/open@seeds"])
        killer.start()
        gone = [killer.kill(number, returns=False) for number in range(3)]
        record = fed.finish(seconds=120)
        assert trained(record) == [1, 2, 3]
        assert [entry.attempts for entry in record.rounds] == [2, 1, 1, 1]
        # Who was killed after it had uploaded is in the sum of that round, and in no later one.
        missing = [set(fed.names) - set(entry.cohort) for entry in record.rounds]
        assert missing == [set(gone[:1]), set(gone[:1]), set(gone[:2]), set(gone)]
