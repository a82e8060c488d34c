"""Circles by speed: nobody waits for the declarations of the slowest, and what they train meanwhile is not lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from node.training.jobs import Job, Result
from secure_fl.results.record import CircleRound, StudyRecord
from secure_fl.rounds import RoundKind
from tests.support.federation import Federation
from tests.support.training import FakeTraining

SLOW = "site-02"
SETTINGS = {
    "study": {"rounds": 4},
    "protection": {"kind": "masked", "recovery": False, "circles": "speed"},
    "rounds": {"mode": "buffered", "deadline": 20, "phase_deadline": 10, "gather": 1, "patience": 30, "flushes": 8},
}


class Counting(FakeTraining):
    """Takes its time in the first round, and counts how often a site has begun to train for a round."""

    def __init__(self, begun: Counter[tuple[str, int]], seconds: float) -> None:
        super().__init__()
        self._begun, self._seconds = begun, seconds

    async def run(self, job: Job) -> Result:
        """The same update, later."""
        if job.kind is RoundKind.TRAIN:
            self._begun[job.me, job.round] += 1
        if job.round == 1:
            await asyncio.sleep(self._seconds)
        return await super().run(job)


def play(folder: Path, scenario: Callable[[Federation], Awaitable[StudyRecord | None]]) -> list[CircleRound]:
    """Eight sites in two circles: the turns that were merged, in order."""

    async def run() -> StudyRecord | None:
        fed = Federation(folder / "run", SETTINGS, nodes=8)
        assert fed.study.declares
        try:
            return await asyncio.wait_for(scenario(fed), 80)
        finally:
            await fed.close()

    record = asyncio.run(run())
    assert record is not None
    return [circle for entry in record.rounds if entry.kind is RoundKind.TRAIN for circle in entry.circles]


def test_the_fast_circle_goes_on_while_the_slow_one_trains_for_its_declaration(tmp_path: Path) -> None:
    begun: Counter[tuple[str, int]] = Counter()

    async def scenario(fed: Federation) -> StudyRecord | None:
        for place, name in enumerate(reversed(fed.names)):
            fed.start_node(name, executor=Counting(begun, 6.0 if name == SLOW else 0.53 + 0.04 * place))
        return await fed.coordinate()

    turns = play(tmp_path, scenario)
    (first, *_) = [place for place, turn in enumerate(turns) if SLOW in turn.members]
    assert first > 0  # Its circle's first turn was opened when the other circle had taken some.
    assert (turns[first].turn, turns[first].base) == (1, 0)
    assert turns[first].attempts == 1
    assert begun[SLOW, 1] == 1  # Too late to declare, and yet its training was not in vain.
    # The others had time to declare, and took as long to a power of two: they are divided by name.
    assert turns[first].members == (SLOW, "site-06", "site-07", "site-08")


def test_a_circle_that_is_complete_late_begins_with_what_its_sites_trained_when_they_declared(tmp_path: Path) -> None:
    begun: Counter[tuple[str, int]] = Counter()
    absent = "site-08"

    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            if name != absent:
                fed.start_node(name, executor=Counting(begun, 0.05))
        running = asyncio.create_task(fed.coordinate())
        while not any(name == "round-committed" for name, _ in fed.events):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        fed.start_node(absent, executor=Counting(begun, 0.05))
        return await running

    turns = play(tmp_path, scenario)
    late = [turn for turn in turns if absent in turn.members]
    assert late, "its circle was never opened"
    assert (late[0].turn, late[0].base, late[0].attempts) == (1, 0, 1)
    assert (late[0].staleness or 0) >= 1
    assert all(begun[name, 1] == 1 for name in late[0].members)
