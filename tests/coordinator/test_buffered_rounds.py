"""Circles that do not wait for each other: what is merged when, and what a coordinator that dies remembers of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.store import Attempt, Store
from node.training.jobs import Job, Result
from secure_fl import tasks
from secure_fl.blocks import Blocks
from secure_fl.protect.declarations import Declared, pace_of
from secure_fl.results.record import RoundRecord, StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.strategies.merging import discount
from secure_fl.study.start import start_of
from tests.support.federation import FaultyStore, Federation, Killed
from tests.support.training import FakeTraining, Faults

FIRST = tuple(f"site-0{index}" for index in range(1, 5))
SECOND = tuple(f"site-0{index}" for index in range(5, 9))
ROUNDS = {"mode": "buffered", "deadline": 10, "phase_deadline": 5, "gather": 1, "patience": 30, "merge": "delta"}


class SlowTraining(FakeTraining):
    """Takes its time."""

    def __init__(self, seconds: float, faults: Faults | None = None) -> None:
        super().__init__(faults)
        self._seconds = seconds

    async def run(self, job: Job) -> Result:
        """The same update, later."""
        await asyncio.sleep(self._seconds)
        return await super().run(job)


def play(
    folder: Path,
    scenario: Callable[[Federation], Awaitable[StudyRecord | None]],
    *,
    rounds: dict[str, Any] | None = None,
    protection: str = "masked",
    strategy: dict[str, Any] | None = None,
    turns: int = 20,
) -> tuple[StudyRecord, Federation]:
    """Eight sites in two circles."""

    async def run() -> tuple[StudyRecord | None, Federation]:
        settings = {
            "study": {"rounds": turns},
            "protection": {"kind": protection, "recovery": False},
            "rounds": {**ROUNDS, **(rounds or {})},
            **({} if strategy is None else {"strategy": strategy}),
        }
        fed = Federation(folder / "run", settings, nodes=8)
        assert fed.study.circles() == (FIRST, SECOND)
        try:
            return await asyncio.wait_for(scenario(fed), 100), fed
        finally:
            await fed.close()

    record, fed = asyncio.run(run())
    assert record is not None
    return record, fed


def trained(record: StudyRecord) -> list[RoundRecord]:
    return [entry for entry in record.rounds if entry.kind is RoundKind.TRAIN]


def turns_of(record: StudyRecord) -> list[tuple[str, int, int]]:
    """Per merged turn: its circle's first site, its number, and how stale it was."""
    merged = [circle for entry in trained(record) for circle in entry.circles if circle.opened]
    return [(turn.members[0], turn.turn or 0, turn.staleness or 0) for turn in merged]


@pytest.mark.parametrize("protection", ["none", "masked", "sealed", "encrypted"])
def test_circles_take_turns_and_every_flush_makes_a_version(tmp_path: Path, protection: str) -> None:
    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name)
        return await fed.coordinate()

    record, fed = play(tmp_path, scenario, rounds={"flushes": 5}, protection=protection)
    assert [entry.number for entry in trained(record)] == [1, 2, 3, 4, 5]
    assert record.planned_rounds == 5
    turns = turns_of(record)  # two that are opened at the same moment are in one flush
    assert len(turns) == len({(circle, number) for circle, number, _ in turns}) >= 5
    assert record.rounds[-1].kind is RoundKind.EVALUATE
    assert record.rounds[-1].cohort == fed.names


def oracle(fed: Federation, record: StudyRecord) -> Blocks:
    """The last version, from the first one and the record's turns: what FakeTraining makes of a site, a turn and a
    model is known, and so is what a flush of changes does.
    """
    versions: list[Blocks] = [first_version(fed)]
    for entry in trained(record):
        current = dict(versions[-1])
        for turn in entry.circles:
            assert turn.base is not None
            assert turn.staleness == len(versions) - 1 - turn.base
            changes = [update_of(site, turn.turn or 0, versions[turn.base]) for site in turn.members]
            weight = len(turn.members) / len(fed.names) * discount("root", turn.staleness)
            for name in tuple(current):
                mean = np.mean([change[name] for change in changes], axis=0)
                current[name] = (current[name] + weight * mean).astype(np.float32)
        versions.append(current)
    return versions[-1]


def first_version(fed: Federation) -> Blocks:
    study = fed.study
    return start_of(tasks.create(study.task.name, study.task.settings), study.make_strategy(), study.study.seed).blocks


def last_version(fed: Federation) -> Blocks:
    """As sites would download it."""
    study = fed.study
    start = start_of(tasks.create(study.task.name, study.task.settings), study.make_strategy(), study.study.seed)
    stored = fed.open_store().model(study.id)
    assert stored is not None
    return start.layout.unflatten((fed.workspace.study_state / "objects" / stored.object.hex()).read_bytes())


def update_of(site: str, number: int, received: Blocks) -> Blocks:
    seed = int.from_bytes(hashlib.sha256(f"{site}/{number}".encode()).digest()[:8], "little")
    rng = np.random.default_rng(seed)
    return {
        name: (rng.uniform(-0.5, 0.5, vector.size) - 0.1 * vector).astype("<f4") for name, vector in received.items()
    }


@pytest.mark.parametrize("slow", [FIRST[1]])
def test_a_slow_site_holds_up_its_own_circle_only(tmp_path: Path, slow: str) -> None:
    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name, executor=SlowTraining(1.0 if name == slow else 0.05))
        return await fed.coordinate()

    record, _ = play(tmp_path, scenario, rounds={"flushes": 12})
    turns = turns_of(record)
    fast = [turn for turn in turns if slow not in (FIRST if turn[0] == FIRST[0] else SECOND)]
    assert len(fast) >= 9
    late = [staleness for circle, _, staleness in turns if slow in (FIRST if circle == FIRST[0] else SECOND)]
    assert max(late, default=0) >= 2


def test_what_is_too_stale_is_dropped_and_its_circle_goes_on(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name, executor=SlowTraining(0.8 if name in FIRST else 0.02))
        return await fed.coordinate()

    record, fed = play(tmp_path, scenario, rounds={"flushes": 14, "staleness": 1})
    assert all(staleness <= 1 for _, _, staleness in turns_of(record))
    assert [facts["reason"] for kind, facts in fed.events if kind == "round-void"].count("StaleTurn") >= 1


def test_sites_that_leave_and_return_cost_the_other_circle_nothing(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> StudyRecord | None:
        faults = Faults("announce:commit", 2)
        fed.start_node(FIRST[0], faults)
        for name in fed.names[1:]:
            fed.start_node(name, executor=SlowTraining(0.1))
        study = asyncio.create_task(fed.coordinate(grace=2.0))
        await asyncio.wait_for(faults.fired.wait(), 20)
        await asyncio.sleep(1.0)
        fed.start_node(FIRST[0], executor=SlowTraining(0.1))
        return await study

    record, _ = play(tmp_path, scenario, rounds={"flushes": 16})
    circles = [circle for circle, _, _ in turns_of(record)]
    assert circles.count(SECOND[0]) > circles.count(FIRST[0]) >= 2


@pytest.mark.parametrize("point", ["before:begin_attempt", "after:begin_attempt", "after:add_answer"])
@pytest.mark.parametrize("occurrence", [7])
def test_a_coordinator_killed_in_a_turn_goes_on_with_it(tmp_path: Path, point: str, occurrence: int) -> None:
    _killed_and_resumed(tmp_path, point, occurrence)


@pytest.mark.parametrize(
    ("protection", "point"),
    [
        ("masked", "before:commit_round"),
        ("masked", "after:commit_round"),
        ("masked", "after:close_phase"),
        ("sealed", "before:commit_round"),
        ("encrypted", "before:commit_round"),
        *(
            pytest.param(protection, point, marks=pytest.mark.slow)
            for protection in ("sealed", "encrypted")
            for point in ("after:commit_round", "after:close_phase")
        ),
    ],
)
def test_a_coordinator_killed_in_a_flush_loses_and_repeats_no_turn(tmp_path: Path, point: str, protection: str) -> None:
    record, fed = _killed_and_resumed(tmp_path, point, 3, protection=protection)
    expected = oracle(fed, record)
    found = last_version(fed)
    # Every change is rounded to the study's grid, of 2^15 steps per clip, once per version, and sealed adds its noise.
    step = (fed.study.protection.clip or 1.0) / 2 ** (fed.study.protection.bits - 1)
    for name, vector in found.items():
        assert np.abs(vector - expected[name]).max() <= 2 * step * len(trained(record)) + 1e-5


@pytest.mark.parametrize("point", ["before:commit_round", "after:commit_round"])
def test_a_coordinator_killed_in_a_flush_of_two_turns_loses_and_repeats_neither(tmp_path: Path, point: str) -> None:
    record, fed = _killed_and_resumed(tmp_path, point, 2, buffer=2, flush_after=20)
    assert [len(entry.circles) for entry in trained(record)] == [2] * 6
    expected, step = oracle(fed, record), (fed.study.protection.clip or 1.0) / 2 ** (fed.study.protection.bits - 1)
    for name, vector in last_version(fed).items():
        assert np.abs(vector - expected[name]).max() <= 2 * step * 6 + 1e-5


def test_a_strategys_state_and_the_circles_last_models_survive_a_kill(tmp_path: Path) -> None:
    """Server Adam, over an average of models: both remember, and both are of the version that was committed."""

    def made(name: str, kills: tuple[str, ...]) -> Blocks:
        async def scenario(fed: Federation) -> StudyRecord | None:
            for site in fed.names:
                fed.start_node(site)
            for point in kills:
                with pytest.raises(Killed):
                    await fed.coordinate(Faults(point, 2))
            return await fed.coordinate()

        rounds = {"flushes": 5, "buffer": 2, "flush_after": 20, "merge": "cache"}
        record, fed = play(tmp_path / name, scenario, rounds=rounds, strategy={"name": "fedopt"})
        assert [len(entry.circles) for entry in trained(record)] == [2] * 5
        return last_version(fed)

    undisturbed, killed = made("undisturbed", ()), made("killed", ("before:commit_round", "after:commit_round"))
    for name, vector in undisturbed.items():
        assert np.array_equal(vector, killed[name])


def _killed_and_resumed(
    folder: Path, point: str, occurrence: int, *, protection: str = "masked", **rounds: Any
) -> tuple[StudyRecord, Federation]:
    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name)
        with pytest.raises(Killed):
            await fed.coordinate(Faults(point, occurrence))
        return await fed.coordinate()

    record, fed = play(folder, scenario, rounds={"flushes": 6, **rounds}, protection=protection)
    assert [entry.number for entry in trained(record)] == [1, 2, 3, 4, 5, 6]
    turns = [(circle, number) for circle, number, _ in turns_of(record)]
    assert len(turns) == len(set(turns)) >= 6
    return record, fed


class KilledAtTheEnd(FaultyStore):
    """Its coordinator dies when the closing evaluation has begun with both circles."""

    def begin_attempt(self, attempt: Attempt) -> None:
        super().begin_attempt(attempt)
        if attempt.kind is RoundKind.EVALUATE:
            self.meet("evaluation")


def test_a_coordinator_killed_in_the_closing_evaluation_goes_on_with_it(tmp_path: Path) -> None:
    """What is under way then is no circle's turn."""

    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name)
        fed.open_store().close()  # its folder
        store = KilledAtTheEnd(f"sqlite:///{Store.path_in(fed.workspace.coordinator_state)}", Faults("evaluation", 2))
        with pytest.raises(Killed):
            await fed.coordinate(store=store)
        fed.events.clear()
        return await fed.coordinate()

    record, fed = play(tmp_path, scenario, rounds={"flushes": 3}, turns=3)
    happened = Counter(kind for kind, _ in fed.events)
    assert happened["round-resumed"] == 2
    assert not happened["turn-begun"]
    assert not happened["round-started"]
    assert record.rounds[-1].cohort == fed.names
    assert record.rounds[-1].attempts == 1


def test_a_flush_may_wait_for_several_turns(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name)
        return await fed.coordinate()

    record, _ = play(tmp_path, scenario, rounds={"flushes": 3, "buffer": 2, "flush_after": 20})
    assert [len(entry.circles) for entry in trained(record)] == [2, 2, 2]


def test_a_flush_waits_for_several_turns_only_so_long(tmp_path: Path) -> None:
    """One circle never comes. The other's turns are flushed when the first of them has waited."""

    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            if name != FIRST[0]:
                fed.start_node(name)
        return await fed.coordinate()

    record, _ = play(tmp_path, scenario, rounds={"flushes": 3, "buffer": 2, "flush_after": 0.3, "patience": 60})
    assert [[turn.members for turn in entry.circles] for entry in trained(record)] == [[SECOND]] * 3


@pytest.mark.parametrize("padded", [False, True])
def test_how_long_training_took_is_said_to_a_power_of_two_and_no_better_than_answers_show(
    tmp_path: Path, padded: bool
) -> None:
    """A site that lets answers leave at multiples of a time says no shorter one; whoever is not asked says nothing."""

    async def run(circles: str) -> Declared | None:
        settings = {"protection": {"kind": "masked", "recovery": False, "circles": circles}, "rounds": {**ROUNDS}}
        fed = Federation(tmp_path / circles, settings, nodes=8)
        if padded:
            fed.set_policy(FIRST[0], answer_after=1.0)
        for name in fed.names:
            # Two that declare before the others: nobody waits for the declarations of the slowest.
            fed.start_node(name, executor=SlowTraining({FIRST[0]: 0.01, FIRST[1]: 0.3}.get(name, 1.2)))
        try:
            assert await asyncio.wait_for(fed.coordinate(), 60) is not None
        finally:
            await fed.close()
        said = fed.workspace.study_state / "declared.bin"
        if not said.exists():
            return None
        return Declared.read(said.read_bytes(), study_id=fed.study.id, roster=fed.study.study.roster)

    declared = asyncio.run(run("speed"))
    assert declared is not None
    assert declared.paces[FIRST[1]] >= pace_of(0.3)
    assert declared.paces[FIRST[0]] == (pace_of(1.0) if padded else declared.paces[FIRST[0]])
    assert (declared.paces[FIRST[0]] < pace_of(0.3)) is not padded
    assert asyncio.run(run("auto")) is None
