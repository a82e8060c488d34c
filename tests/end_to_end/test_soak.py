"""Many rounds with real processes over real TLS: memory and file descriptors of every party stay flat."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

from secure_fl.settings import read_toml
from tests.faults.test_kill import children_of
from tests.support.processes import Processes

GROWTH = 0.05

Samples = dict[str, dict[int, tuple[int, int]]]  # party → round → resident bytes, open files


def measure(pid: int) -> tuple[int, int]:
    """Resident memory and number of file descriptors of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def soak(folder: Path, *, nodes: int, rounds: int, training: str, seconds: float) -> Samples:
    """Run a study and measure every party after every round."""
    settings = {
        "study": {"rounds": rounds},
        "protection": {"kind": "none", "recovery": True},
        # Eight trainers that load torch at once on two busy cores take their time.
        "rounds": {"deadline": 300, "phase_deadline": 60, "gather": 120},
    }
    samples: Samples = {}
    with Processes(folder / "run", settings, nodes=nodes, training=training) as fed:
        _beat_slowly(fed.workspace.coordinator_file)
        fed.start_all()
        for number in range(1, rounds + 1):
            fed.wait_event("round-committed", number=number, seconds=seconds)
            for party, child in fed.children.items():
                samples.setdefault(party, {})[number] = measure(child.pid)
                for worker in children_of(child.pid) if training == "real" and number % 5 == 0 else ():
                    samples.setdefault(f"{party} trainer", {})[number] = measure(worker)
        record = fed.finish()
        assert record.outcome == "finished"
        assert [done.number for done in record.rounds if done.cohort != fed.names or done.attempts != 1] == []
        for name in ("coordinator", *fed.names):
            assert "Traceback" not in fed.log(name)
    return samples


def _beat_slowly(file: Path) -> None:
    """A machine under load must not cost sessions here; reconnecting is tested elsewhere."""
    table = read_toml(file)
    table["limits"] = {"heartbeat": 10.0, "grace": 60.0}
    file.write_bytes(tomli_w.dumps(table).encode())


def compare(samples: Samples, early: range, late: range, say: Callable[[str], None]) -> dict[str, tuple[float, int]]:
    """Per party: relative growth of memory, and of file descriptors, between two spans of rounds."""
    growth = {}
    say(f"{'party':22} {'MiB':>7} {'MiB':>7} {'growth':>7} {'files':>5} {'files':>5}   (rounds {early} and {late})")
    for party, rows in samples.items():
        before, after = (
            tuple(statistics.median(row[which] for number, row in rows.items() if number in span) for which in (0, 1))
            for span in (early, late)
        )
        growth[party] = (after[0] / before[0] - 1, int(after[1] - before[1]))
        say(
            f"{party:22} {before[0] / 2**20:7.1f} {after[0] / 2**20:7.1f} {growth[party][0]:+7.2%} "
            f"{before[1]:5.0f} {after[1]:5.0f}"
        )
    return growth


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("training", ["fake", "real"])
def test_soak_two_hundred_rounds_among_eight_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], training: str
) -> None:
    started = time.monotonic()
    samples = soak(tmp_path, nodes=8, rounds=200, training=training, seconds=180)
    with capsys.disabled():
        print(f"\nsoak: 200 rounds, 8 nodes, {training} training, {time.monotonic() - started:.0f} s")
        growth = compare(samples, range(60, 81), range(180, 201), print)
    assert len(growth) == (9 if training == "fake" else 17)
    assert {party: by for party, (by, _) in growth.items() if by > GROWTH} == {}
    assert {party: by for party, (_, by) in growth.items() if by > 0} == {}


@pytest.mark.slow
def test_forty_rounds_leave_no_file_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = soak(tmp_path, nodes=4, rounds=40, training="fake", seconds=120)
    lines: list[str] = []
    growth = compare(samples, range(8, 16), range(33, 41), lines.append)
    print("\n".join(lines))
    assert len(growth) == 5
    assert {party: by for party, (_, by) in growth.items() if by > 0} == {}, "\n".join(lines)
