"""A simulation of processes: what they are called, and how a run goes on, or ends, when one of them is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli_w

from secure_fl.settings import read_toml
from secure_fl.simulation.workspace import prepare
from secure_fl.study.settings import Study
from tests.end_to_end.test_run import command
from tests.faults.test_kill import alive, children_of
from tests.support.processes import ROOT

FRUGAL = {"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "MALLOC_ARENA_MAX=1"}


class Running:
    """A run under way, and its processes by name."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def named(self, name: str) -> list[int]:
        """The processes that go by a name."""
        return [pid for pid in self.family() if _read(pid, "comm") == f"{name}\n"]

    def family(self) -> list[int]:
        """Everybody below the run."""
        found = children_of(self.process.pid)
        for pid in found:
            found.extend(children_of(pid))
        return found

    def until(self, condition: Callable[[], object]) -> None:
        """Wait, while the run goes on. How long that takes is the machine's business; pytest has a limit."""
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)


@contextmanager
def running(out: Path, *arguments: str) -> Iterator[Running]:
    """Four sites that train for long enough to be disturbed."""
    line = command("--task", "breast-cancer", "--nodes", "4", "--json", "--out", str(out), *arguments)
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        run = Running(process)
        try:
            run.until(lambda: len(run.named("fl-worker")) == 4)
            yield run
        finally:
            process.kill()


def _read(pid: int, file: str) -> str:
    try:
        return Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return ""


def test_everybody_has_a_name_and_a_session_and_little_of_the_machine(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--rounds", "1000") as run:
        (template,), (_,) = run.named("fl-template"), run.named("fl-coordinator")
        assert len(run.named("fl-node")) == len(run.named("fl-worker")) == 4
        family = run.family()
        assert len(family) == 10
        assert len(list(Path(f"/proc/{template}/task").iterdir())) == 1
        for pid in family:
            assert os.getsid(pid) == pid
            assert set(_read(pid, "environ").split("\0")) >= FRUGAL
        # A site's own log, and nothing of the others'.
        for index in range(1, 5):
            text = (tmp_path / "out" / "nodes" / f"site-0{index}" / "node.log").read_text()
            assert text.count("connected to the coordinator") == 1


def test_a_killed_training_process_is_replaced(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--rounds", "20") as run:
        victim, *others = run.named("fl-worker")
        os.kill(victim, signal.SIGKILL)
        run.until(lambda: len(set(run.named("fl-worker")) - {victim, *others}) == 1)
        said, _ = run.process.communicate()
        assert run.process.returncode == 0
        assert json.loads(said)["rounds"] == 20
        logs = [path.read_text() for path in (tmp_path / "out").glob("nodes/*/node.log")]
        assert not any("Traceback" in text for text in logs)


def impatient(out: Path, *, rounds: int, recovery: bool) -> None:
    """The folder of `running`, not begun yet, whose coordinator waits for lost sites for less than the usual 20 s."""
    study = {
        "study": {"rounds": rounds},
        "task": {"name": "breast-cancer"},
        "protection": {"recovery": recovery},
        "metrics": {"share": "per-node"},
        "simulation": {"nodes": 4},
    }
    file = prepare(out, Study.parse(study), policy={}).coordinator_file
    file.write_text(tomli_w.dumps({**read_toml(file), "limits": {"grace": 3.0}}))


def test_a_killed_node_is_noticed_and_takes_its_training_along(tmp_path: Path) -> None:
    impatient(tmp_path / "out", rounds=40, recovery=True)
    with running(tmp_path / "out", "--rounds", "40", "--set", "protection.recovery=true") as run:
        os.kill(run.named("fl-node")[0], signal.SIGKILL)
        run.until(lambda: len(run.named("fl-worker")) == 3)
        said, _ = run.process.communicate()
        assert run.process.returncode == 0
        assert sorted(node["rounds_taken"] == 40 for node in json.loads(said)["nodes"]) == [False, True, True, True]


def test_too_many_killed_nodes_end_the_run(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--rounds", "1000") as run:
        family = run.family()
        for pid in run.named("fl-node")[:3]:
            os.kill(pid, signal.SIGKILL)
        _, said = run.process.communicate()
        assert run.process.returncode not in (0, 70)
        assert "left with exit code -9 and too few sites remain" in said
        assert not any(alive(pid) for pid in family)


def test_a_killed_template_ends_the_run_and_is_named(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--rounds", "1000") as run:
        family = run.family()
        os.kill(run.named("fl-template")[0], signal.SIGKILL)
        _, said = run.process.communicate()
        assert run.process.returncode not in (0, 70)
        assert "forked from has died" in said
        while any(alive(pid) for pid in family):
            time.sleep(0.05)
