"""Rounds of circles: each at its own pace, and the study goes on with those that can come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from secure_fl.protect.contract import Message
from secure_fl.protect.masked.node import CircleNode
from secure_fl.results.record import StudyRecord
from secure_fl.rounds import RoundKind
from tests.support.federation import Federation
from tests.support.training import Faults

FIRST = tuple(f"site-0{index}" for index in range(1, 5))
SECOND = tuple(f"site-0{index}" for index in range(5, 9))
ROUNDS = {"deadline": 6, "phase_deadline": 2, "gather": 1, "attempts": 2, "patience": 20}


def play(
    folder: Path,
    scenario: Callable[[Federation], Awaitable[StudyRecord | None]],
    *,
    rounds: dict[str, Any] | None = None,
    protection: str = "masked",
) -> tuple[StudyRecord | None, Federation]:
    """Eight sites in two circles."""

    async def run() -> tuple[StudyRecord | None, Federation]:
        settings = {"protection": {"kind": protection, "recovery": False}, "rounds": {**ROUNDS, **(rounds or {})}}
        fed = Federation(folder / "run", settings, nodes=8)
        assert fed.study.circles() == (FIRST, SECOND)
        try:
            return await asyncio.wait_for(scenario(fed), 80), fed
        finally:
            await fed.close()

    return asyncio.run(run())


def opened(record: StudyRecord | None) -> list[list[bool]]:
    """Per training round: which circles were opened."""
    assert record is not None
    return [[circle.opened for circle in entry.circles] for entry in record.rounds if entry.kind is RoundKind.TRAIN]


@pytest.mark.parametrize("protection", ["none", "masked", "sealed"])
def test_both_circles_are_in_every_round(tmp_path: Path, protection: str) -> None:
    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name)
        return await fed.coordinate()

    record, fed = play(tmp_path, scenario, protection=protection)
    assert record is not None
    assert opened(record) == [[True, True]] * 2
    assert all(entry.cohort == fed.names and entry.attempts == 1 for entry in record.rounds)


def test_the_model_is_the_same_whatever_hides_the_updates(tmp_path: Path) -> None:
    models = []
    for protection in ("none", "masked"):

        async def scenario(fed: Federation) -> StudyRecord | None:
            for name in fed.names:
                fed.start_node(name)
            return await fed.coordinate()

        _, fed = play(tmp_path / protection, scenario, protection=protection)
        models.append(fed.model())
    assert models[0] == models[1]


def test_a_site_that_comes_late_is_still_in_the_round(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names[1:]:
            fed.start_node(name)
        study = asyncio.create_task(fed.coordinate())
        await asyncio.sleep(1.5)  # The second circle has long uploaded.
        assert not [kind for kind, _ in fed.events if kind == "round-committed"]
        fed.start_node(fed.names[0])
        return await study

    record, _ = play(tmp_path, scenario, rounds={"gather": 5})
    assert opened(record) == [[True, True]] * 2


def test_a_site_that_stays_away_delays_its_circle_alone(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names[1:]:
            fed.start_node(name)
        return await fed.coordinate()

    begun = time.monotonic()
    record, _ = play(tmp_path, scenario)
    assert opened(record) == [[False, True]] * 2
    assert record is not None
    assert {node.name: node.outcome for node in record.rounds[0].nodes} == {
        **dict.fromkeys(FIRST, "absent"),
        **dict.fromkeys(SECOND, "took part"),
    }
    # It was waited for once, before the first round, for as long as `gather` says.
    assert record.rounds[1].seconds < 1
    assert time.monotonic() - begun < 12


@pytest.mark.parametrize(
    "point", ["announce:commit", "before:commit", "after:commit", "announce:upload", "before:upload"]
)
def test_a_site_that_is_killed_and_comes_back_is_in_the_same_round(tmp_path: Path, point: str) -> None:
    """Its mask key is gone, its integers are not: another attempt of its circle alone, and the same model."""

    async def calm(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name)
        return await fed.coordinate()

    async def killed(fed: Federation) -> StudyRecord | None:
        faults = Faults(point, 2)
        fed.start_node(fed.names[0], faults)
        for name in fed.names[1:]:
            fed.start_node(name)
        study = asyncio.create_task(fed.coordinate(grace=15.0))
        await asyncio.wait_for(faults.fired.wait(), 20)
        fed.start_node(fed.names[0])
        return await study

    _, quiet = play(tmp_path / "calm", calm)
    record, fed = play(tmp_path / "killed", killed)
    assert record is not None
    assert opened(record) == [[True, True]] * 2
    assert [circle.attempts for circle in record.rounds[1].circles] == [2, 1]
    assert fed.model() == quiet.model()


def test_a_liar_keeps_its_own_circle_closed_and_the_record_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = CircleNode._commit

    def nonsense(self: CircleNode, message: Message) -> Message:
        if self._me.name == "site-02":
            self._weight = 2**40
        return commit(self, message)

    monkeypatch.setattr(CircleNode, "_commit", nonsense)

    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name)
        return await fed.coordinate()

    record, _ = play(tmp_path, scenario, protection="masked")
    assert opened(record) == [[False, True]] * 2
    assert record is not None
    assert record.outcome == "finished"
    assert [circle.reason for circle in record.rounds[0].circles] == ["Protection", ""]


def test_without_any_circle_the_study_waits_and_then_says_so(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in (*FIRST[1:], *SECOND[1:]):
            fed.start_node(name)
        return await fed.coordinate()

    begun = time.monotonic()
    record, fed = play(tmp_path, scenario, rounds={"patience": 0.5, "deadline": 0.5, "phase_deadline": 0.5})
    assert record is None
    assert time.monotonic() - begun > 2
    assert [fields["reason"] for kind, fields in fed.events if kind == "study-ended"] == ["StudyAborted"]
