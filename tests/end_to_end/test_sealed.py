"""`sealed` among real processes: every node its own combination, with a kill in every phase."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from secure_fl import tasks
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Layout, Vector
from secure_fl.checkpoints import load_arrays
from secure_fl.protect.release.combinations import row_total, servable
from secure_fl.protect.release.levels import passing_row
from secure_fl.protect.release.sketch import in_units, sketch, squared_distance
from secure_fl.protect.sealed.terms import Terms
from secure_fl.results.record import StudyRecord
from secure_fl.tasks.model_blocks import initial_blocks
from tests.end_to_end.test_masked import update
from tests.faults.test_kill import wait_for
from tests.support.processes import Processes
from tests.support.training import features

SETTINGS = {
    "study": {"rounds": 1},
    "strategy": {"name": "fedamp", "more_comparisons": True},  # The test's model is too small to be compared otherwise.
    "protection": {"kind": "sealed", "recovery": True},
    "metrics": {"share": "none"},
}
VICTIMS = {"upload": 1, "score": 2, "row": 3, "open": 4, "deliver": 5}


@pytest.mark.parametrize("returns", [True, False])
def test_a_kill_in_every_phase_leaves_every_combination_right(tmp_path: Path, returns: bool) -> None:
    """Whoever comes back goes on; with those who do not, five of eight are left, which is as many as must be."""
    # Nobody waits long for those who stay away; those who come back have the time to start.
    with Processes(tmp_path / "run", SETTINGS, nodes=8, grace=8.0 if returns else 2.0) as fed:
        victims = {fed.names[place]: phase for phase, place in VICTIMS.items()}
        if not returns:
            victims = {name: phase for name, phase in victims.items() if phase in ("upload", "score", "deliver")}
        fed.start_coordinator()
        for name in fed.names:
            mark = str(tmp_path / f"paused-{name}")
            fed.start_node(name, SECURE_FL_TEST_PAUSE=victims.get(name, "never"), SECURE_FL_TEST_MARK=mark)
        for name in victims:
            wait_for(tmp_path / f"paused-{name}")
            fed.kill(name)
            if returns:
                fed.start_node(name)
        record = fed.finish(seconds=150)
        assert record.outcome == "finished"
        assert record.rounds[0].attempts == 1
        uploaded = tuple(name for name in fed.names if victims.get(name) != "upload")
        assert record.rounds[0].cohort == uploaded
        served = check_combinations(fed, record, tmp_path)
        gone = set() if returns else {name for name, phase in victims.items() if phase != "upload"}
        assert served == set(uploaded) - gone


def check_combinations(fed: Processes, record: StudyRecord, folder: Path, *, noise: float | None = None) -> set[str]:
    """Every opened combination is the one its node asked for, to within rounding and noise; returns whose there are."""
    study = fed.workspace.study
    task = tasks.create(study.task.name, study.task.settings)
    layout, start = initial_blocks(task, study.study.seed)
    uploaded = record.rounds[0].cohort
    updates = {name: update(name, layout.flatten(start), layout, folder) for name in uploaded}
    rows = wanted_rows(fed, uploaded)
    if noise is None:
        terms = Terms.among(RequestKind.COMBINE, nodes=len(fed.names), bits=study.protection.bits)
        noise = terms.noise / terms.weight_sum
    step = 1 / study.codec().scale
    opened = set()
    for name in uploaded:
        path = fed.workspace.node_folder(name) / "studies" / study.id / "combination-1.safetensors"
        if path.exists():
            opened.add(name)
            mixture(load_arrays(path), layout, updates, rows[name], within=step * (1.01 + noise))
    assert record.combinations_opened == len(opened)
    return opened


def wanted_rows(fed: Processes, uploaded: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """The rows that the strategy makes of the distances between sketches of what the test's training calls features."""
    strategy = fed.workspace.study.make_strategy()
    drawn = {name: sketch(features(name)) for name in uploaded}
    rows = {}
    for me in uploaded:
        squared = {peer: in_units(squared_distance(drawn[me], other)) for peer, other in drawn.items()}
        total = row_total(len(fed.names))
        rows[me] = passing_row(strategy.attend(me, squared), total, me=me, uploaded=uploaded, colluders=1)
    assert servable(rows, nodes=uploaded, colluders=1).keys() == rows.keys()
    return rows


def mixture(
    found: dict[str, Vector],
    layout: Layout,
    updates: dict[str, dict[str, Vector]],
    row: dict[str, int],
    *,
    within: float,
) -> None:
    assert set(found) == set(layout.names)
    for block in layout.names:
        mean = sum(weight * updates[peer][block].astype(np.float64) for peer, weight in row.items()) / sum(row.values())
        assert np.abs(found[block] - mean).max() <= within
        assert np.abs(mean).max() > 100 * within  # the bound would notice a wrong row
