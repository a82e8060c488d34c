"""Every strategy where circles do not wait for each other: it trains, or says before anything starts why it cannot.

./scripts/test -m slow tests/end_to_end/test_buffered_strategies.py     # all of them
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secure_fl import Study, simulate, strategies
from secure_fl.aggregation import RequestKind
from secure_fl.errors import SettingsError

# State at the coordinator, a model and state at sites, a part of the model, nothing of it.
DIFFERENT = ("fedopt", "pflda", "fedper", "local")
COMBINING = ("fedamp", "fedcca")


def buffered(strategy: str) -> Study:
    """Two circles of four, the quicker one twice."""
    settings: dict[str, Any] = {
        "rounds.mode": "buffered",
        "rounds.flushes": 3,
        "strategy.epochs": 1,
        "simulation.nodes": 8,
    }
    task = "bearings" if strategy == "fedasa" else "breast-cancer"
    if task == "bearings":
        settings |= {"task.windows": 8, "task.network": "cells", "simulation.partition": "iid"}
    return Study.of(settings, task=task, strategy=strategy, rounds=2)


@pytest.mark.parametrize(
    "strategy",
    [
        name if name in DIFFERENT else pytest.param(name, marks=pytest.mark.slow)
        for name in strategies.known()
        if name not in COMBINING
    ],
)
def test_a_strategy_with_sums_trains(tmp_path: Path, strategy: str) -> None:
    run = simulate(buffered(strategy), out=tmp_path / "run", progress=False)
    assert run.record.outcome == "finished"
    turns = [circle.turn for entry in run.record.rounds for circle in entry.circles if circle.turn is not None]
    assert len(turns) >= 3
    assert run.summary["mean_accuracy"] > (0.1 if strategy == "fedasa" else 0.5)


@pytest.mark.parametrize("strategy", COMBINING)
def test_one_that_combines_sites_says_why_not(tmp_path: Path, strategy: str) -> None:
    study = buffered(strategy)
    assert study.make_strategy().asks is RequestKind.COMBINE
    with pytest.raises(SettingsError, match="have to be there together"):
        simulate(study, out=tmp_path / "run", progress=False)
