"""Simulated machines: training takes a least time, and at a slow site as much longer as it is slower."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from node.attempt import _paused
from node.config import NodeFile
from secure_fl import simulate
from secure_fl.errors import SettingsError

MEASURED = 0.5


def node_file(**simulation: Any) -> NodeFile:
    """A file with this [simulation], or none."""
    node = {
        "name": "north", "coordinator": "127.0.0.1:1", "fingerprint": "0" * 64, "certificate": "n.pem", "ca": "ca.pem",
    }  # fmt: skip
    section = {"simulation": {"seed": 0, **simulation}} if simulation else {}
    return NodeFile.parse({"node": node, **section})


@pytest.mark.parametrize(
    ("simulation", "trained", "slept", "taken"),
    [
        ({}, True, 0.0, MEASURED),
        ({"seconds": 2.0}, True, 1.5, 2.0),
        ({"seconds": 0.1}, True, 0.0, MEASURED),  # It took longer by itself.
        ({"slowdown": 5.0}, True, 2.0, 2.5),
        ({"seconds": 2.0, "slowdown": 5.0}, True, 9.5, 10.0),
        ({"seconds": 2.0, "slowdown": 5.0}, False, 2.0, 2.5),  # A measurement takes no least time.
    ],
)
def test_the_rest_is_slept(
    monkeypatch: pytest.MonkeyPatch, simulation: dict[str, Any], trained: bool, slept: float, taken: float
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert asyncio.run(_paused(node_file(**simulation), MEASURED, trained=trained)) == taken
    assert sum(pauses) == slept


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), 1e9])
def test_a_time_that_makes_no_sense_is_refused(seconds: float) -> None:
    with pytest.raises(SettingsError, match=r"simulation\.seconds"):
        node_file(seconds=seconds)


def test_a_round_waits_for_the_slow_site(tmp_path: Path) -> None:
    settings = {"simulation.seconds": 0.3, "simulation.slow": {"site-02": 3.0}}
    run = simulate(task="breast-cancer", nodes=3, rounds=1, settings=settings, out=tmp_path / "run", progress=False)
    assert run.record.rounds[0].seconds >= 3 * 0.3
