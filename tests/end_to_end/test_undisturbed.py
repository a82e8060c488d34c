"""A study that nobody disturbs needs one attempt for every round, whatever its strategy and its protection.

An attempt that is void costs everybody a round's traffic, and hides a fault: the next attempt works, and nobody asks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node.past import PastSums
from secure_fl import simulate

RECOVERY = {"protection.recovery": True}


@pytest.mark.parametrize(
    ("strategy", "protection", "share", "settings", "opens_sums"),
    [
        ("fedavg", "masked", "none", {}, True),
        ("fedper", "masked", "aggregate", RECOVERY, True),
        ("fedbuff", "masked", "aggregate", {}, True),
        # The sites' measurements stay with them or go beside the sum: the closing round opens nothing.
        ("fedcca", "sealed", "per-node", {}, False),
        ("fedamp", "encrypted", "none", {}, False),
        ("fedamp", "sealed", "aggregate", {}, True),
        ("fedcca", "none", "per-node", {}, False),
    ],
)
def test_every_round_needs_one_attempt(
    tmp_path: Path, strategy: str, protection: str, share: str, settings: dict[str, Any], opens_sums: bool
) -> None:
    run = simulate(
        task="breast-cancer", strategy=strategy, protection=protection, rounds=1, nodes=4, progress=False,
        settings={"metrics.share": share, "strategy.epochs": 1, **settings}, out=tmp_path / "run",
    )  # fmt: skip
    rounds = run.record.rounds
    assert len(rounds) == 2  # with the closing one
    assert [entry.cohort for entry in rounds] == [tuple(run.record.roster)] * 2
    # A site remembers sums that were opened, and no others: they decide with whom it may be added up later.
    known = PastSums(tmp_path / "run" / "nodes" / "site-01" / "openings.json").known()
    assert bool(known.rows) == opens_sums
    assert [(entry.attempts, *(circle.attempts for circle in entry.circles)) for entry in rounds] == [
        (1, *(1 for _ in entry.circles)) for entry in rounds
    ]
