"""A round that is opened, called void, and opened again without one site: what sites computed leaves them once.

Nodes are real ones. The coordinator is the real one, too, but for the rounds it plays: it keeps what an attempt opened,
says that nothing came of it, and invites all sites but one to the next attempt. Every attempt at a round has the same
integers, so the difference of the two sums would be that site's update, exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.rounds import GatheredRound, RoundResult
from coordinator.store import Attempt
from node.kept import KeptUpdate
from node.store import StudyStore
from secure_fl.encoding.integers import Integers
from secure_fl.encoding.metrics import METRICS_BLOCK
from secure_fl.errors import CohortTooSmallError, ProtectionError, StudyAbortedError
from secure_fl.protect.contract import OpenedSums
from secure_fl.rounds import RoundKind
from tests.support.federation import Federation

VICTIM = "site-01"
SITES = 6
SYNCHRONOUS = {"deadline": 20, "phase_deadline": 20, "gather": 1, "attempts": 3}
BY_SITES = {**SYNCHRONOUS, "mode": "buffered", "unit": "site", "merge": "delta", "buffer": SITES, "patience": 5}


class Cheating:
    """Every sum that it could open of the first round of a kind."""

    def __init__(self, kind: RoundKind) -> None:
        self._kind = kind
        self.sums: list[dict[str, Any]] = []
        self.refusals: list[dict[str, str]] = []

    def rounds(self) -> Callable[[GatheredRound, Sequence[Attempt]], Awaitable[RoundResult]]:
        """In place of the honest ones."""

        honest = GatheredRound.run

        async def run(this: GatheredRound, under_way: Sequence[Attempt]) -> RoundResult:
            return await (self._twice(this) if this._kind is self._kind else honest(this, under_way))

        return run

    async def _twice(self, this: GatheredRound) -> RoundResult:
        services = this._services
        services.attempts.settle()
        everybody = await services.gathering.invited()
        for invited in (everybody, tuple(name for name in everybody if name != VICTIM)):
            attempt = await services.attempts.plan(this._number, this._kind, invited, services.model)
            try:
                opened = await attempt.collect()
                assert isinstance(opened, OpenedSums)
                self.sums.append({name: block.total.copy() for name, block in opened.blocks.items()})
            except (CohortTooSmallError, ProtectionError):
                self.refusals.append(dict(attempt.left))
            await services.attempts.void(attempt.plan, ProtectionError("nothing came of it"))
        raise StudyAbortedError("enough was seen")


@pytest.mark.parametrize("checked", [True, False], ids=["shipped", "without the check"])
@pytest.mark.parametrize(
    ("kind", "rounds"),
    [("masked", SYNCHRONOUS), ("sealed", SYNCHRONOUS), ("encrypted", SYNCHRONOUS), ("sealed", BY_SITES)],
    ids=["masked", "sealed", "encrypted", "sealed, single sites"],
)
def test_a_round_repeated_without_one_site_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, rounds: dict[str, Any], checked: bool
) -> None:
    if not checked:
        monkeypatch.setattr(StudyStore, "require_first", lambda *_: None)
    settings = {"study": {"rounds": 3}, "protection": {"kind": kind, "recovery": True}, "rounds": rounds}
    cheating, given = attack(tmp_path, monkeypatch, settings, RoundKind.TRAIN)
    judge(cheating, given, checked=checked)


@pytest.mark.parametrize("checked", [True, False], ids=["shipped", "without the check"])
def test_nor_is_the_finished_model_measured_twice_also_after_combinations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """Combinations are judged by what was opened before; the closing measurements are a sum like any other."""
    if not checked:
        monkeypatch.setattr(StudyStore, "require_first", lambda *_: None)
    settings = {
        "study": {"rounds": 1},
        "strategy": {"name": "fedamp"},
        "protection": {"kind": "sealed", "recovery": True},
        "metrics": {"share": "aggregate"},
        "rounds": SYNCHRONOUS,
    }
    cheating, given = attack(tmp_path, monkeypatch, settings, RoundKind.EVALUATE)
    judge(cheating, {METRICS_BLOCK: given[METRICS_BLOCK]}, checked=checked)


def attack(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], kind: RoundKind
) -> tuple[Cheating, dict[str, Integers]]:
    """What the coordinator could open, and what the victim gave."""
    cheating, given = Cheating(kind), dict[str, Integers]()
    monkeypatch.setattr(GatheredRound, "run", cheating.rounds())
    remember(monkeypatch, given)

    async def run() -> None:
        fed = Federation(folder / "run", settings, nodes=SITES)
        try:
            for name in fed.names:
                fed.start_node(name)
            await asyncio.wait_for(fed.coordinate(), 60)
        finally:
            await fed.close()

    asyncio.run(run())
    return cheating, given


def judge(cheating: Cheating, given: dict[str, Integers], *, checked: bool) -> None:
    """Nothing was opened a second time; without the check, the victim's integers are known."""
    first, *second = cheating.sums
    if checked:
        assert second == []
        assert set(cheating.refusals[0].values()) == {"Refused"}
        return
    # The attack works: what it computed is the victim's update.
    for block, integers in given.items():
        assert np.array_equal(first[block] - second[0][block], integers)


def remember(monkeypatch: pytest.MonkeyPatch, given: dict[str, Integers]) -> None:
    """Look at what the victim keeps on its own disk, to compare."""
    save = KeptUpdate.save

    def seen(self: KeptUpdate, path: Path, *, bits: int) -> None:
        save(self, path, bits=bits)
        if VICTIM in path.parts:
            given.update(self.blocks)

    monkeypatch.setattr(KeptUpdate, "save", seen)
