"""Sites that do not wait for each other: who is in which flush, with what, and what survives a kill."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node.config import NodeFile
from node.own_ledger import own_entries
from node.store import NodeStore
from node.training.jobs import Job, Result
from secure_fl import tasks
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Blocks
from secure_fl.encoding.weights import weight_floor
from secure_fl.privacy.spending import Plan, plans
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


class PacedTraining(FakeTraining):
    """Training that ends when a test says so, whatever the machine is busy with. It notes what it trained."""

    def __init__(self, may_end: Callable[[int], bool] = lambda _: True) -> None:
        super().__init__()
        self._may_end = may_end  # the training of this round
        self.trained: list[int] = []  # rounds whose training ended

    async def run(self, job: Job) -> Result:
        """The same update, later."""
        training = job.kind is RoundKind.TRAIN
        while training and not self._may_end(job.round):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        result = await super().run(job)
        if training:
            self.trained.append(job.round)
        return result


def committed(fed: Federation) -> int:
    """How many versions were made."""
    return sum(name == "round-committed" for name, _ in fed.events)


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


def oracle(fed: Federation, record: StudyRecord) -> Blocks:
    """The last version, from the first one and what the record says of each flush.

    What FakeTraining makes of a site, a round and a model is known, and so is what a flush does.
    """
    study = fed.study
    start = start_of(tasks.create(study.task.name, study.task.settings), study.make_strategy(), study.study.seed)
    versions: list[Blocks] = [start.blocks]
    floor = weight_floor(study.min_cohort(RequestKind.SUM), study.protection.colluders)
    for flush in flushes_of(record):
        newest, current = len(versions) - 1, dict(versions[-1])
        weights, changes = [], []
        for one in flush.circles:
            assert one.base is not None
            assert one.staleness == newest - one.base
            weights.append(max(floor, round(64 * discount("root", newest - one.base))))
            changes.append(update_of(one.members[0], one.base + 1, versions[one.base]))
        for name in tuple(current):
            mean = np.average([change[name] for change in changes], axis=0, weights=weights)
            current[name] = (current[name] + len(changes) / SITES * mean).astype(np.float32)
        versions.append(current)
    return versions[-1]


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


def require_oracle(fed: Federation, record: StudyRecord) -> None:
    expected = oracle(fed, record)
    # Every change is rounded to the study's grid twice at most, once per version, and sealed adds its noise.
    step = (fed.study.protection.clip or 1.0) / 2 ** (fed.study.protection.bits - 1)
    for name, vector in last_version(fed).items():
        assert np.abs(vector - expected[name]).max() <= 4 * step * len(flushes_of(record)) + 1e-5


def own_plans(fed: Federation, site: str) -> tuple[Plan, ...]:
    """What a site's ledger says; `LedgerError` where that makes no sense."""
    file = NodeFile.read(fed.workspace.node_file(site))
    return plans(own_entries(file, NodeStore(file.state_folder)))


def require_sent_once(fed: Federation, record: StudyRecord) -> None:
    """In the record, and in every site's ledger, which makes no sense otherwise: each training is in one flush."""
    for site in fed.names:
        bases = [one.base for flush in flushes_of(record) for one in flush.circles if one.members == (site,)]
        assert len(bases) == len(set(bases))
        assert own_plans(fed, site)


@pytest.mark.parametrize("protection", ["sealed", "encrypted"])
def test_a_slow_site_holds_nobody_up_and_loses_no_work(tmp_path: Path, protection: str) -> None:
    running: list[Federation] = []
    slow = PacedTraining(lambda number: committed(running[0]) > number)  # two versions later

    async def scenario(fed: Federation) -> StudyRecord | None:
        running.append(fed)
        for name in fed.names:
            fed.start_node(name, executor=slow if name == SLOW else FakeTraining())
        return await fed.coordinate()

    # Five of six, and so many that old work may weigh less.
    record, fed = play(
        tmp_path, scenario, protection={"kind": protection, "min_cohort": 5}, rounds={"buffer": 5}, flushes=6
    )
    late = entries_of(record, SLOW)
    assert late
    assert all(age >= 2 for _, age in late)
    assert [flush - age for flush, age in late] == slow.trained[: len(late)]  # whatever it trained has entered, once
    without = [flush for flush in flushes_of(record) if SLOW not in flush.cohort]
    assert without
    for flush in without:
        assert [node.reason for node in flush.nodes if node.name == SLOW] == ["StillTraining"]
    for flush in flushes_of(record):
        assert len(flush.cohort) >= 5
        assert flush.attempts == 1
    assert record.rounds[-1].kind is RoundKind.EVALUATE
    assert record.rounds[-1].cohort == fed.names
    require_oracle(fed, record)
    require_sent_once(fed, record)


@pytest.mark.parametrize(
    ("protection", "point"),
    [
        ("sealed", "before:commit_round"),
        *(
            pytest.param(protection, point, marks=pytest.mark.slow)
            for protection in ("sealed", "encrypted")
            for point in ("before:commit_round", "after:commit_round", "after:close_phase", "after:begin_attempt")
        ),
    ],
)
def test_a_coordinator_killed_in_a_flush_uses_no_work_twice(tmp_path: Path, protection: str, point: str) -> None:
    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            late = PacedTraining(lambda number: committed(fed) >= number)
            fed.start_node(name, executor=late if name == SLOW else FakeTraining())
        with pytest.raises(Killed):
            await fed.coordinate(Faults(point, 2))
        return await fed.coordinate()

    record, fed = play(tmp_path, scenario, protection={"kind": protection}, flushes=3)
    assert [flush.number for flush in flushes_of(record)] == [1, 2, 3]
    require_oracle(fed, record)
    require_sent_once(fed, record)


def test_work_that_waits_survives_its_node(tmp_path: Path) -> None:
    """A node that dies in training trains anew; one that dies with its work done goes on with that work."""
    first, second, back = PacedTraining(), PacedTraining(), asyncio.Event()

    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            if name != SLOW:  # The others do not get to the end of the study before it is back.
                fed.start_node(name, executor=PacedTraining(lambda number: number < 3 or back.is_set()))
        dying = Faults("train")
        fed.start_node(SLOW, dying)
        study = asyncio.create_task(fed.coordinate(grace=0.5))
        await asyncio.wait_for(dying.fired.wait(), 20)
        # Its second life ends when what it trained is kept and about to be said.
        faults = Faults("before:advertise")
        fed.start_node(SLOW, faults, executor=first)
        await asyncio.wait_for(faults.fired.wait(), 20)
        fed.start_node(SLOW, executor=second)
        while not fed.nodes[SLOW].connected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        back.set()
        return await study

    record, fed = play(tmp_path, scenario, flushes=6)
    entered = entries_of(record, SLOW)
    assert first.trained
    assert entered
    assert entered[0][0] - entered[0][1] == first.trained[0]  # trained in its second life, sent in its third
    assert first.trained[0] not in second.trained
    require_sent_once(fed, record)


def test_a_flush_waits_for_more_than_the_fewest_only_so_long(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name, executor=PacedTraining(lambda _: False) if name == SLOW else FakeTraining())
        return await asyncio.wait_for(fed.coordinate(), 25)

    # No deadline and no patience ends this: a flush that waits for the sixth waits longer than the test does.
    record, _ = play(
        tmp_path, scenario, rounds={"buffer": 6, "flush_after": 0.3, "deadline": 300, "patience": 300}, flushes=2
    )
    assert all(3 <= len(flush.cohort) <= 5 for flush in flushes_of(record))


def test_whoever_comes_while_a_flush_waits_is_in_it(tmp_path: Path) -> None:
    """Five are needed and five are there when the flush begins. One of them leaves, and the sixth comes."""

    async def scenario(fed: Federation) -> StudyRecord | None:
        leaving = Faults("train")
        fed.start_node(fed.names[0], leaving)
        for name in fed.names[1:5]:
            fed.start_node(name)
        study = asyncio.create_task(fed.coordinate(grace=0.3))
        await asyncio.wait_for(leaving.fired.wait(), 20)
        while ("waiting-for-holders", 1) not in [(name, facts.get("missing")) for name, facts in fed.events]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert not committed(fed)
        fed.start_node(fed.names[5])
        return await study

    # With no time to spare between the deadline and the end of all patience another attempt would not come either.
    record, fed = play(
        tmp_path, scenario, protection={"min_cohort": 5}, rounds={"buffer": 5, "patience": 90}, flushes=2
    )
    there = tuple(fed.names[1:])
    assert [(flush.cohort, flush.attempts) for flush in flushes_of(record)] == [(there, 1), (there, 1)]
    require_oracle(fed, record)


def test_a_flush_does_not_wait_for_who_was_never_there(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names[1:]:
            fed.start_node(name)
        return await fed.coordinate(grace=60)

    record, fed = play(tmp_path, scenario, rounds={"buffer": 6, "gather": 60, "patience": 90}, flushes=3)
    for flush in flushes_of(record):
        assert flush.cohort == fed.names[1:]
        assert [(node.outcome, node.reason) for node in flush.nodes if node.name == fed.names[0]] == [("absent", "")]
