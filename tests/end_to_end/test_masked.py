"""`masked` among real processes: sites that are killed at the worst moments leave the right sum over the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from node.training.jobs import Job, layout_to_json
from secure_fl import tasks
from secure_fl.blocks import Layout, Vector
from secure_fl.checkpoints import load_arrays
from secure_fl.rounds import RoundKind
from secure_fl.tasks.model_blocks import initial_blocks
from tests.faults.test_kill import wait_for
from tests.support.processes import Processes
from tests.support.training import FakeTraining


def test_two_killed_before_the_upload_and_one_after_it(tmp_path: Path) -> None:
    settings = {
        "study": {"rounds": 1},
        "protection": {"kind": "masked", "recovery": True},
        "metrics": {"share": "none"},
    }
    with Processes(tmp_path / "run", settings, nodes=8, grace=2.0) as fed:  # They stay away.
        before, after = fed.names[1:3], fed.names[5]
        fed.start_coordinator()
        for name in fed.names:
            phase = "upload" if name in before else "consistency" if name == after else "never"
            mark = str(tmp_path / f"paused-{name}")
            fed.start_node(name, SECURE_FL_TEST_PAUSE=phase, SECURE_FL_TEST_MARK=mark)
        for name in before:
            wait_for(tmp_path / f"paused-{name}")
            fed.kill(name)
        wait_for(tmp_path / f"paused-{after}")
        fed.kill(after)
        record = fed.finish(seconds=150)
        assert (record.outcome, record.rounds[0].attempts) == ("finished", 1)
        survivors = tuple(name for name in fed.names if name not in before)
        assert record.rounds[0].cohort == survivors  # the one killed after its upload is in the sum
        check_model(fed, survivors, tmp_path)


# In one process every test run kills a site in each phase of a circle: `test_fault_table_of_circles`.
@pytest.mark.parametrize("phase", [pytest.param("commit", marks=pytest.mark.slow), "upload"])
def test_a_site_of_a_circle_is_killed_and_comes_back(tmp_path: Path, phase: str) -> None:
    """Ten processes in two circles of five: the killed one's circle opens in the same round, with the same integers."""
    settings = {"study": {"rounds": 1}, "protection": {"kind": "masked"}, "metrics": {"share": "none"}}
    with Processes(tmp_path / "run", settings, nodes=10) as fed:
        victim, mark = fed.names[1], tmp_path / "paused"
        fed.start_coordinator()
        for name in fed.names:
            pause = phase if name == victim else "never"
            fed.start_node(name, SECURE_FL_TEST_PAUSE=pause, SECURE_FL_TEST_MARK=str(mark))
        wait_for(mark)
        fed.kill(victim)
        fed.start_node(victim)
        record = fed.finish(seconds=150)
        assert record.outcome == "finished"
        assert record.rounds[0].cohort == fed.names
        assert [(len(circle.members), circle.attempts) for circle in record.rounds[0].circles] == [(5, 2), (5, 1)]
        check_model(fed, fed.names, tmp_path)


def check_model(fed: Processes, survivors: tuple[str, ...], folder: Path) -> None:
    """The model moved by the mean of the survivors' updates, to within the study's rounding."""
    study = fed.workspace.study
    task = tasks.create(study.task.name, study.task.settings)
    layout, start = initial_blocks(task, study.study.seed)
    updates = [update(name, layout.flatten(start), layout, folder) for name in survivors]
    made = load((fed.workspace.study_state / "checkpoints" / "000001.safetensors").read_bytes())
    tensors = layout.tensors(
        {block: start[block] + np.mean([one[block] for one in updates], axis=0) for block in layout.names}
    )
    for name, expected in tensors.items():
        assert np.abs(made[name] - expected).max() <= 1.1 / study.codec().scale
        assert np.abs(made[name] - layout.tensors(start)[name]).max() > 0.01


def update(name: str, received: bytes, layout: Layout, folder: Path) -> dict[str, Vector]:
    """What the test's training makes of the initial model at one site."""
    (folder / "received").write_bytes(received)
    job = Job(
        kind=RoundKind.TRAIN, study="", round=1, attempt=1, seed=1, me=name, dataset={}, folder="", device="cpu",
        threads=1, layout=layout_to_json(layout), received=str(folder / "received"), personal="", combination="",
        state="", features_to="", update_to=str(folder / "update"), personal_to="", state_to="", model_to="",
    )  # fmt: skip
    asyncio.run(FakeTraining().run(job))
    return load_arrays(folder / "update")
