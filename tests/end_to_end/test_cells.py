"""Twelve real processes, real training, cells of their own depth, sealed; one of them is killed in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_fl.rounds import RoundKind
from tests.support.processes import Processes

SETTINGS = {
    "study": {"rounds": 3},
    "task": {"name": "bearings", "network": "cells", "windows": 4},
    "strategy": {
        "name": "fedasa", "epochs": 1, "optimizer": "adam", "learning_rate": 0.001, "auxiliary_epochs": 2,
        "depths": [0, 2, 4],
    },
    "protection": {"kind": "sealed"},
    "rounds": {"deadline": 300, "phase_deadline": 120, "gather": 120},
    "simulation": {"nodes": 12, "partition": "natural"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fedasa_over_sealed_survives_a_killed_and_restarted_node(tmp_path: Path) -> None:
    with Processes(tmp_path / "run", SETTINGS, nodes=12, training="real") as fed:
        fed.start_all()
        fed.wait_event("round-committed", seconds=300)
        fed.wait_event("answered", seconds=300, round=2, phase="advertise")
        fed.kill(fed.names[4])
        fed.start_node(fed.names[4])
        record = fed.finish(seconds=500)
        assert record.outcome == "finished"
        trained = [entry for entry in record.rounds if entry.kind is RoundKind.TRAIN]
        assert [entry.number for entry in trained] == [1, 2, 3]
        assert all(len(entry.cohort) >= 11 for entry in trained)
        assert fed.names[4] in trained[2].cohort
        assert len(trained[0].cohort) == 12
