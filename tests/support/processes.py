"""A federation of real processes over real mutual TLS, for tests that kill them."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import tomli_w

from secure_fl.results.record import StudyRecord
from secure_fl.settings import read_toml
from secure_fl.simulation.workspace import Workspace, prepare
from secure_fl.study.settings import Study

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """A port nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Processes:
    """One coordinator and its nodes as child processes; use as a context manager."""

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        *,
        nodes: int = 4,
        training: str = "fake",  # spares every node the seconds that importing torch takes
        grace: float = 8.0,
    ) -> None:
        self._training = training
        self._grace = grace  # how long the coordinator waits for a node that vanished
        table = {
            "study": {"rounds": 2},
            "task": {"name": "tests.support.task:Line"},
            "protection": {"kind": "double", "recovery": True},
            "rounds": {"deadline": 60, "phase_deadline": 30, "gather": 30},
            "metrics": {"share": "per-node"},
            "simulation": {"nodes": nodes},
            **settings,
        }
        from secure_fl import protect

        protect.register("double", "tests.support.party:PausingPad")
        self.workspace: Workspace = prepare(folder, Study.parse(table), policy={})
        self.names = tuple(self.workspace.study.study.roster)
        self.port = free_port()
        self._configure_coordinator()
        self.workspace.point_nodes_at(self.port)
        self.events: list[dict[str, Any]] = []
        self._queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children.values():
            if child.poll() is None:
                child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()

    def start_coordinator(self, **environment: str) -> subprocess.Popen[bytes]:
        """Start, or start again, the coordinator."""
        arguments = ["coordinator", str(self.workspace.coordinator_file), "--until-done", "--events", "--lifeline"]
        child = self._start(
            "coordinator", arguments, environment, self.workspace.coordinator_file.parent / "coordinator.log"
        )
        threading.Thread(target=self._read, args=(child,), daemon=True).start()
        return child

    def start_node(self, name: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start, or start again, a node."""
        arguments = ["node", str(self.workspace.node_file(name)), "--until-done", "--lifeline"]
        return self._start(name, arguments, environment, self.workspace.node_folder(name) / "node.log")

    def start_all(self) -> None:
        """The coordinator and every node."""
        self.start_coordinator()
        for name in self.names:
            self.start_node(name)

    def kill(self, name: str) -> None:
        """Kill −9."""
        child = self.children[name]
        os.kill(child.pid, signal.SIGKILL)
        child.wait()

    def wait_event(self, kind: str, *, seconds: float = 60, **fields: Any) -> dict[str, Any]:
        """The next event of a kind whose fields match."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                event = self._queue.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {kind} {fields}; log: {self.log('coordinator')[-2000:]}") from None
            if event["event"] == kind and all(event.get(key) == value for key, value in fields.items()):
                return event

    def finish(self, *, seconds: float = 90) -> StudyRecord:
        """Wait for the coordinator to leave, and read the study's record."""
        code = self.children["coordinator"].wait(seconds)
        assert code == 0, self.log("coordinator")[-3000:]
        return StudyRecord.load(self.workspace.study_state / "record.json")

    def log(self, name: str) -> str:
        """What a party logged."""
        if name == "coordinator":
            return (self.workspace.coordinator_file.parent / "coordinator.log").read_text()
        return (self.workspace.node_folder(name) / "node.log").read_text()

    def edit_node(self, name: str, section: str, **values: Any) -> None:
        """Change a node's file."""
        path = self.workspace.node_file(name)
        table = read_toml(path)
        table.setdefault(section, {}).update(values)
        path.write_bytes(tomli_w.dumps(table).encode())

    def log_everything(self) -> None:
        """From the next start on, also what is worth no line in production."""
        for path in (self.workspace.coordinator_file, *map(self.workspace.node_file, self.names)):
            table = read_toml(path)
            table["log"] = {**table.get("log", {}), "level": "debug"}
            path.write_bytes(tomli_w.dumps(table).encode())

    def _configure_coordinator(self) -> None:
        path = self.workspace.coordinator_file
        table = read_toml(path)
        table["coordinator"]["address"] = f"127.0.0.1:{self.port}"
        table["limits"] = {"heartbeat": 1.0, "grace": self._grace}
        path.write_bytes(tomli_w.dumps(table).encode())

    def _start(
        self, name: str, arguments: list[str], environment: dict[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.support.party", *arguments],
                cwd=ROOT,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": str(ROOT),
                    "SECURE_FL_TEST_TRAINING": self._training,
                    **environment,
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if name == "coordinator" else file,
                stderr=file,
            )
        self.children[name] = child
        return child

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        if child.stdout is None:
            return
        for line in child.stdout:
            event = json.loads(line)
            event |= event.pop("record", {})  # a committed round's record as fields
            self.events.append(event)
            self._queue.put(event)
