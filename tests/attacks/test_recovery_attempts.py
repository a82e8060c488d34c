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
from secure_fl.errors import CohortTooSmallError, ProtectionError, StudyAbortedError
from secure_fl.protect.contract import OpenedSums
from tests.support.federation import Federation

VICTIM = "site-01"
SITES = 6
SYNCHRONOUS = {"deadline": 20, "phase_deadline": 20, "gather": 1, "attempts": 3}
BY_SITES = {**SYNCHRONOUS, "mode": "buffered", "unit": "site", "merge": "delta", "buffer": SITES, "patience": 5}


class Cheating:
    """Round by round: every sum it could open."""

    def __init__(self) -> None:
        self.sums: list[dict[str, Any]] = []
        self.refusals: list[dict[str, str]] = []

    def rounds(self) -> Callable[[GatheredRound, Sequence[Attempt]], Awaitable[RoundResult]]:
        """In place of the honest ones."""

        async def run(this: GatheredRound, _under_way: Sequence[Attempt]) -> RoundResult:
            return await self._twice(this)

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
    cheating, given = Cheating(), dict[str, Integers]()
    monkeypatch.setattr(GatheredRound, "run", cheating.rounds())
    remember(monkeypatch, given)
    settings = {"study": {"rounds": 3}, "protection": {"kind": kind, "recovery": True}, "rounds": rounds}

    async def run() -> None:
        fed = Federation(tmp_path / "run", settings, nodes=SITES)
        try:
            for name in fed.names:
                fed.start_node(name)
            assert await asyncio.wait_for(fed.coordinate(), 60) is None
        finally:
            await fed.close()

    asyncio.run(run())
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
