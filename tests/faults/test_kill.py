"""Kill −9 in every phase, with real processes: the study finishes and no committed round is lost.

Every test run kills in one phase here, in others in tests/end_to_end, and in every phase of every protection within one
process (`test_fault_table`).

    ./scripts/test -m slow tests/faults/test_kill.py     # the other phases
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.processes import Processes

PHASES = [
    pytest.param("advertise", marks=pytest.mark.slow),
    "upload",
    pytest.param("reveal", marks=pytest.mark.slow),
]


def wait_for(path: Path, *, seconds: float = 60) -> None:
    """Until a file is there."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


@pytest.mark.parametrize("phase", PHASES)
def test_a_node_killed_in_a_phase_restarts_and_rejoins(tmp_path: Path, phase: str) -> None:
    with Processes(tmp_path / "run", {}) as fed:
        marker = tmp_path / "paused"
        fed.start_coordinator()
        victim = fed.names[0]
        for name in fed.names[1:]:
            fed.start_node(name)
        fed.start_node(victim, SECURE_FL_TEST_PAUSE=phase, SECURE_FL_TEST_MARK=str(marker))
        wait_for(marker)
        fed.kill(victim)
        fed.start_node(victim)
        record = fed.finish()
        assert record.outcome == "finished"
        assert [r.number for r in record.rounds] == [1, 2, 3]
        assert victim in record.rounds[1].cohort
        assert all(len(r.cohort) >= 3 for r in record.rounds)


@pytest.mark.parametrize("phase", PHASES)
def test_a_coordinator_killed_in_a_phase_resumes_the_round(tmp_path: Path, phase: str) -> None:
    with Processes(tmp_path / "run", {}) as fed:
        fed.start_all()
        fed.wait_event("round-committed", number=1)
        fed.wait_event("answered", round=2, phase=phase)
        fed.kill("coordinator")
        fed.start_coordinator()
        record = fed.finish()
        assert record.outcome == "finished"
        assert [r.number for r in record.rounds] == [1, 2, 3]
        assert all(r.cohort == fed.names for r in record.rounds)
        # Resumed, not repeated: the attempt that was under way is the one that committed.
        assert record.rounds[1].attempts == 1


@pytest.mark.slow  # Every test run does this under differential privacy: `test_budgets`.
def test_a_node_killed_while_training_is_waited_for(tmp_path: Path) -> None:
    marker = tmp_path / "marks" / "m"
    marker.parent.mkdir()
    settings = {"task": {"name": "tests.support.task:Line", "pause": 3.0, "marker": str(marker)}}
    with Processes(tmp_path / "run", settings, training="real") as fed:
        fed.start_all()
        wait_for(marker.parent / "training-01")
        fed.kill(fed.names[0])
        fed.start_node(fed.names[0])
        record = fed.finish()
        assert [r.cohort for r in record.rounds] == [fed.names] * 3


def test_children_do_not_outlive_a_killed_node(tmp_path: Path) -> None:
    marker = tmp_path / "marks" / "m"
    marker.parent.mkdir()
    settings = {"task": {"name": "tests.support.task:Line", "pause": 60.0, "marker": str(marker)}}
    with Processes(tmp_path / "run", settings, training="real") as fed:
        fed.start_all()
        wait_for(marker.parent / "training-01")
        node = fed.children[fed.names[0]].pid
        workers = children_of(node)
        assert workers
        fed.kill(fed.names[0])
        deadline = time.monotonic() + 10
        while any(alive(pid) for pid in workers):
            assert time.monotonic() < deadline, "a training process outlived its node"
            time.sleep(0.05)


def children_of(pid: int) -> list[int]:
    """Process ids whose parent is `pid`."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(status.parent.name))
    return found


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_a_killed_node_left_is_erased_at_its_next_start_whoever_is_there(tmp_path: Path) -> None:
    with Processes(tmp_path / "run", {}) as fed:
        marker, victim = tmp_path / "paused", fed.names[0]
        fed.start_coordinator()
        for name in fed.names[1:]:
            fed.start_node(name)
        fed.start_node(victim, SECURE_FL_TEST_PAUSE="advertise", SECURE_FL_TEST_MARK=str(marker))
        wait_for(marker)
        fed.kill(victim)
        fed.kill("coordinator")
        folder = fed.workspace.node_folder(victim) / "studies" / fed.workspace.study.id
        update = folder / "scratch-1-1-update.safetensors"
        assert update.stat().st_size > 0  # the site's update, as it was trained
        cursor = (folder / "cursor.json").read_bytes()
        said = len(fed.log(victim))
        fed.start_node(victim)
        deadline = time.monotonic() + 60
        while "connection refused" not in fed.log(victim)[said:]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert list(folder.glob("scratch-*")) == []
        assert (folder / "cursor.json").read_bytes() == cursor
