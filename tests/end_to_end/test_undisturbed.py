"""A study that nobody disturbs needs one attempt for every round, whatever its strategy and its protection.

An attempt that is void costs everybody a round's traffic, and hides a fault: the next attempt works, and nobody asks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secure_fl import simulate

RECOVERY = {"protection.recovery": True}


@pytest.mark.parametrize(
    ("strategy", "protection", "share", "settings"),
    [
        ("fedavg", "masked", "none", {}),
        ("fedper", "masked", "aggregate", RECOVERY),
        ("fedbuff", "masked", "aggregate", {}),
        # The sites' measurements stay with them or go beside the sum: the closing round opens nothing.
        ("fedcca", "sealed", "per-node", {}),
        ("fedamp", "encrypted", "none", {}),
        ("fedamp", "sealed", "aggregate", {}),
        ("fedcca", "none", "per-node", {}),
    ],
)
def test_every_round_needs_one_attempt(
    tmp_path: Path, strategy: str, protection: str, share: str, settings: dict[str, Any]
) -> None:
    run = simulate(
        task="breast-cancer", strategy=strategy, protection=protection, rounds=1, nodes=4, progress=False,
        settings={"metrics.share": share, "strategy.epochs": 1, **settings}, out=tmp_path / "run",
    )  # fmt: skip
    rounds = run.record.rounds
    assert len(rounds) == 2  # with the closing one
    assert [entry.cohort for entry in rounds] == [tuple(run.record.roster)] * 2
    assert [(entry.attempts, *(circle.attempts for circle in entry.circles)) for entry in rounds] == [
        (1, *(1 for _ in entry.circles)) for entry in rounds
    ]
