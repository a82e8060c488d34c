"""Two ways to run a prepared workspace: real processes over mutual TLS, or everything in this one.

The library imports neither process. `processes` starts them by name; `threads` finds them through the entry points
that the distribution declares, and holds them to the protocols below.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from secure_fl import logs
from secure_fl.errors import SettingsError, StudyAbortedError
from secure_fl.events import Listener
from secure_fl.protect.base import RequestKind
from secure_fl.simulation.workspace import Workspace
from secure_fl.study import Study
from secure_fl.transport.base import FederationService

_LEAVE_SECONDS = 10.0


# --- threads --------------------------------------------------------------------------------------------------


class CoordinatorEngine(Protocol):
    """What `threads` needs of a coordinator."""

    def __init__(self, folder: Path, *, listener: Listener) -> None: ...

    @property
    def service(self) -> FederationService:
        """What nodes connect to."""
        ...

    async def run(self, study: Study) -> None:
        """Run a study to its end."""
        ...


class NodeEngine(Protocol):
    """What `threads` needs of a node."""

    def __init__(self, file: Path, service: FederationService) -> None: ...

    async def run(self) -> None:
        """Serve until the study is closed."""
        ...


async def run_threads(workspace: Workspace, listener: Listener) -> None:
    """Every party in this process: the same messages without sockets, training in threads."""
    import torch

    torch.set_num_threads(1)  # as in `processes`, so that both engines give the same model
    coordinator_class: type[CoordinatorEngine] = _engine("coordinator")
    node_class: type[NodeEngine] = _engine("node")
    coordinator = coordinator_class(workspace.coordinator_state, listener=listener)
    workspace.point_nodes_at(0)
    roster = workspace.study.study.roster
    nodes = [node_class(workspace.node_file(name), coordinator.service) for name in roster]
    with logs.into_file(workspace.folder / "run.log"):
        serving = [asyncio.create_task(node.run()) for node in nodes]
        try:
            await coordinator.run(workspace.study)
        finally:
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)


def _engine(name: str) -> Any:
    for entry in entry_points(group="secure_fl.engines", name=name):
        return entry.load()
    raise SettingsError(
        f"the {name} package is not installed",
        advice="install secure-fl itself (pip install .), not only its library",
    )


# --- processes ------------------------------------------------------------------------------------------------


async def run_processes(workspace: Workspace, listener: Listener) -> None:
    """One coordinator and N node processes over mutual TLS on loopback."""
    watch = _Watch(workspace, listener)
    async with _children() as start:
        folder = workspace.coordinator_file.parent
        command = [
            "-m",
            "coordinator",
            str(workspace.coordinator_file),
            "--until-done",
            "--events",
            "--lifeline",
        ]
        coordinator = await start(command, log=folder / "coordinator.log", events=True)
        async for kind, fields in _events(coordinator):
            listener(kind, fields)
            if kind == "listening":
                workspace.point_nodes_at(fields["port"])
                for name in workspace.study.study.roster:
                    command = ["-m", "node", str(workspace.node_file(name)), "--until-done", "--lifeline"]
                    node = await start(command, log=workspace.node_folder(name) / "node.log")
                    watch.add(name, node, coordinator)
        code = await coordinator.wait()
        if watch.reason is not None:
            raise watch.reason
        if code != 0:
            hint = f"see {folder / 'coordinator.log'}"
            listener("died", {"message": f"the coordinator left with exit code {code}", "hint": hint})


class _Watch:
    """Notices nodes that die; without enough of them the run cannot end and is ended."""

    def __init__(self, workspace: Workspace, listener: Listener) -> None:
        self._workspace = workspace
        self._listener = listener
        self._alive: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.reason: StudyAbortedError | None = None

    def add(self, name: str, node: asyncio.subprocess.Process, coordinator: asyncio.subprocess.Process) -> None:
        """Watch one node."""
        self._alive.add(name)
        task = asyncio.create_task(self._follow(name, node, coordinator))
        self._tasks.add(task)

    async def _follow(
        self, name: str, node: asyncio.subprocess.Process, coordinator: asyncio.subprocess.Process
    ) -> None:
        code = await node.wait()
        self._alive.discard(name)
        if code == 0 or coordinator.returncode is not None:
            return
        self._listener("node-died", {"node": name, "exit_code": code})
        if len(self._alive) < self._workspace.study.min_cohort(RequestKind.SUM):
            log = self._workspace.node_folder(name) / "node.log"
            self.reason = StudyAbortedError(
                f"{name} left with exit code {code} and too few sites remain: {last_complaint(log, '')}",
                advice=f"see {log}",
            )
            with contextlib.suppress(ProcessLookupError):
                coordinator.terminate()


class _Starter(Protocol):
    async def __call__(
        self, arguments: list[str], *, log: Path, events: bool = False
    ) -> asyncio.subprocess.Process: ...


@asynccontextmanager
async def _children() -> AsyncIterator[_Starter]:
    """Start Python processes that end with this block and, through their lifeline, with this process."""
    processes: list[asyncio.subprocess.Process] = []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

    async def start(arguments: list[str], *, log: Path, events: bool = False) -> asyncio.subprocess.Process:
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE if events else file,
                stderr=file,
                env=environment,
                limit=1 << 24,
                start_new_session=True,  # Ctrl-C reaches them through us, in order
            )
        processes.append(process)
        return process

    try:
        yield start
    finally:
        await _end(processes)


async def _end(processes: list[asyncio.subprocess.Process]) -> None:
    alive = [process for process in processes if process.returncode is None]
    for process in alive:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    try:
        async with asyncio.timeout(_LEAVE_SECONDS):
            await asyncio.gather(*(process.wait() for process in alive))
    except TimeoutError:
        for process in alive:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _events(process: asyncio.subprocess.Process) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    if process.stdout is None:
        return
    while line := await process.stdout.readline():
        fields = json.loads(line)
        yield fields.pop("event"), fields


def last_complaint(path: Path, wanted: str) -> str:
    """The last line of a log that says `wanted`, from there on."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    found = next((line for line in reversed(lines) if wanted in line), "")
    return (found.split(wanted, 1)[-1] if wanted else found.split(": ", 1)[-1]).strip()
