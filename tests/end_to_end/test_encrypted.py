"""`encrypted` among real processes: whoever is killed in whatever phase and role, the study ends with the right model.

Roles follow from an attempt's transcript, so nobody knows them beforehand: the first member that comes by a place in
the right role stops there, and is killed. The key maker is also an opener, of bodies.

    ./scripts/test -m slow tests/end_to_end/test_encrypted.py     # each phase and role on its own
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from secure_fl.identity.authority import Authority
from secure_fl.results.record import StudyRecord
from secure_fl.rounds import RoundKind
from tests.end_to_end.test_sealed import check_combinations
from tests.faults.test_kill import wait_for
from tests.support.federation import Federation
from tests.support.processes import Processes

ROUNDS = {"deadline": 60, "phase_deadline": 30, "gather": 60}
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
SPARE = ("upload@bodies", "check@bodies", "check@plain", "open@bodies")  # whom a circle does not have, or does not ask


class Killer:
    """Starts a federation whose nodes stop at places of a list, one after the other, and kills whoever did."""

    def __init__(self, fed: Processes, folder: Path, stops: list[str], **environment: str) -> None:
        self._fed = fed
        self._marks = folder / "marks"
        self._marks.mkdir()
        stopping = {"SECURE_FL_TEST_STOPS": " ".join(stops), "SECURE_FL_TEST_MARKS": str(self._marks)}
        self._environment = {**stopping, **environment}

    def start(self) -> None:
        """The coordinator and every node."""
        self._fed.start_coordinator()
        for name in self._fed.names:
            self._fed.start_node(name, **self._environment)

    def stopped(self, number: int) -> str:
        """Who stops at the place with this number, once somebody does."""
        mark = self._marks / str(number)
        wait_for(mark)
        return mark.read_text()

    def kill(self, number: int, *, returns: bool = True, coordinator: bool = False) -> str:
        """Kill −9 whoever stops at the place with this number, and perhaps the coordinator with it; says who it was."""
        victim = self.stopped(number)
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
    with Processes(tmp_path / "run", settings, nodes=8, grace=30.0) as fed:
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


@pytest.mark.slow
@pytest.mark.parametrize("coordinator", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_a_circle_and_who_comes_back(tmp_path: Path, place: str, coordinator: bool) -> None:
    settings = {**CIRCLES, "study": {"rounds": 2}}
    with Processes(tmp_path / "run", settings, nodes=8, grace=30.0) as fed:
        killer = Killer(fed, tmp_path, [f"1/{place}"])
        killer.start()
        killer.kill(0, coordinator=coordinator)
        record = fed.finish(seconds=120)
        assert trained(record) == [1, 2]
        assert all(entry.cohort == fed.names for entry in record.rounds)
        assert model(fed) == calm_model(tmp_path / "calm", settings)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_circle_and_who_does_not(tmp_path: Path, place: str) -> None:
    """Its circle is over; the other one goes on."""
    settings = {**CIRCLES, "study": {"rounds": 2}, "rounds": {**ROUNDS, "gather": 25}}
    with Processes(tmp_path / "run", settings, nodes=8, grace=2.0) as fed:
        killer = Killer(fed, tmp_path, [f"1/{place}"])
        killer.start()
        victim = killer.kill(0, returns=False)
        record = fed.finish(seconds=150)
        assert trained(record) == [1, 2]
        others = next(circle for circle in fed.workspace.study.circles() if victim not in circle)
        assert all(entry.cohort == others for entry in record.rounds)


@pytest.mark.slow
@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("place", [*PLACES, *SPARE])
def test_whoever_is_there_and_who_is_killed(tmp_path: Path, place: str, returns: bool) -> None:
    """Alone, for good; or together with the coordinator, and both come back."""
    settings = {**GATHERED, "study": {"rounds": 2}}
    with Processes(tmp_path / "run", settings, nodes=8, grace=30.0 if returns else 2.0) as fed:
        killer = Killer(fed, tmp_path, [f"1/{place}"])
        killer.start()
        victim = killer.kill(0, returns=returns, coordinator=returns)
        record = fed.finish(seconds=150)
        assert trained(record) == [1, 2]
        first, second, _ = record.rounds
        phase = place.partition("@")[0]
        # Only without a key there is nothing to go on with. Who is back before that takes part.
        assert first.attempts == (2 if phase == "key" else 1)
        uploaded = phase in ("check", "open") or (returns and phase in ("advertise", "key"))
        assert set(fed.names) - set(first.cohort) == (set() if uploaded else {victim})
        assert set(fed.names) - set(second.cohort) == (set() if returns else {victim})


@pytest.mark.slow
@pytest.mark.parametrize("recovery", [False, True])
def test_a_site_that_is_revoked_gets_no_later_key(tmp_path: Path, recovery: bool) -> None:
    """It has the key of the attempt in which it is revoked, goes on running, and is given no other."""
    keys = tmp_path / "keys"
    keys.mkdir()
    settings = {**(GATHERED if recovery else CIRCLES), "study": {"rounds": 3}, "rounds": {**ROUNDS, "gather": 15}}
    with Processes(tmp_path / "run", settings, nodes=5 if recovery else 8, grace=2.0) as fed:
        killer = Killer(fed, tmp_path, ["2/upload@plain"], SECURE_FL_TEST_KEYS=str(keys))
        killer.start()
        revoked = killer.stopped(0)
        Authority.open(fed.workspace.folder / "pki").revoke(revoked)
        record = fed.finish(seconds=120)
        assert trained(record) == [1, 2, 3]
        circle = next((circle for circle in fed.workspace.study.circles() if revoked in circle), (revoked,))
        others = tuple(name for name in fed.names if name not in circle)
        assert [entry.cohort for entry in record.rounds] == [fed.names, others, others, others]
        given = {path.stem: path.read_bytes() for path in keys.glob("*.key")}
        mine = {key for name, key in given.items() if name.startswith(revoked)}
        later = {key for name, key in given.items() if name.split("-")[2] in ("3", "4")}
        assert len(mine) == 2
        assert len(later) == 2
        assert not mine & later


COMBINE: dict[str, Any] = {
    **GATHERED,
    "study": {"rounds": 1},
    "strategy": {"name": "fedamp", "more_comparisons": True},  # The test's model is too small to be compared otherwise.
}


def test_combinations_are_right_whoever_is_killed(tmp_path: Path) -> None:
    """One that never uploads, one that does not check, one that does not take what it asked for: in three phases."""
    with Processes(tmp_path / "run", COMBINE, nodes=8, grace=2.0) as fed:
        killer = Killer(fed, tmp_path, ["1/upload@plain", "1/check@any", "1/deliver@any"])
        killer.start()
        gone = [killer.kill(number, returns=number == 0) for number in range(3)]
        record = fed.finish(seconds=120)
        assert (record.outcome, record.rounds[0].attempts) == ("finished", 1)
        uploaded = tuple(name for name in fed.names if name != gone[0])
        assert record.rounds[0].cohort == uploaded
        # Who was killed has no key any more, and keeps its own model, whether it comes back or not.
        assert check_combinations(fed, record, tmp_path, noise=0.0) == set(uploaded) - set(gone)


@pytest.mark.slow
@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("phase", ["advertise", "key", "upload", "score", "row", "check", "deliver"])
def test_combinations_are_right_in_every_phase(tmp_path: Path, phase: str, returns: bool) -> None:
    with Processes(tmp_path / "run", COMBINE, nodes=8, grace=30.0 if returns else 2.0) as fed:
        killer = Killer(fed, tmp_path, [f"1/{phase}@any"])
        killer.start()
        victim = killer.kill(0, returns=returns, coordinator=returns)
        record = fed.finish(seconds=150)
        assert (record.outcome, record.rounds[0].attempts) == ("finished", 2 if phase == "key" else 1)
        back = returns and phase in ("advertise", "key")
        uploaded = set(fed.names) - (set() if back or phase in ("score", "row", "check", "deliver") else {victim})
        assert set(record.rounds[0].cohort) == uploaded
        assert check_combinations(fed, record, tmp_path, noise=0.0) == (uploaded if back else uploaded - {victim})
