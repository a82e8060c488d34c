"""Two ways to run a prepared workspace: real processes over mutual TLS, or everything in this one.

The library imports neither process. `processes` has them forked by name; `threads` finds them through the entry points
that the distribution declares, and holds them to the protocols below.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Protocol

from secure_fl import logs
from secure_fl.errors import RefusedError, SettingsError, StudyAbortedError
from secure_fl.events import CoordinatorFailed, Event, Listener, Listening, NodeDied, from_json
from secure_fl.files import only_process
from secure_fl.simulation.forks import Forked, Forks
from secure_fl.simulation.one_thread import one_thread
from secure_fl.simulation.workspace import Workspace
from secure_fl.study.settings import Study
from secure_fl.transport.base import FederationService

_LEAVE_SECONDS = 10.0
_EVENT_BYTES = 1 << 24


class Engine(Protocol):
    """Runs a prepared workspace."""

    async def __call__(self, workspace: Workspace, listener: Listener, /) -> None: ...


# --- threads --------------------------------------------------------------------------------------------------


class CoordinatorEngine(Protocol):
    """What `threads` needs of a coordinator."""

    def __init__(self, file: Path, *, listener: Listener) -> None: ...

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

    @staticmethod
    def check_terms(settings: Mapping[str, Any], study: Study) -> None:
        """Raise `RefusedError` or `SettingsError` if a site whose file says this would refuse the study."""
        ...

    async def run(self) -> None:
        """Serve until the study is closed."""
        ...


@contextmanager
def threads() -> Iterator[Engine]:
    """Every party in this process: the same messages without sockets, training in threads."""
    yield _run_threads


async def _run_threads(workspace: Workspace, listener: Listener) -> None:
    # One thread as in `processes`: both engines give the same model. Two runs in one folder would spoil their files.
    with one_thread(), only_process(workspace.coordinator_state), logs.into_file(workspace.folder / "run.log"):
        await _run_here(workspace, listener)


async def _run_here(workspace: Workspace, listener: Listener) -> None:
    coordinator_class: type[CoordinatorEngine] = _engine("coordinator")
    node_class: type[NodeEngine] = _engine("node")
    coordinator = coordinator_class(workspace.coordinator_file, listener=listener)
    workspace.point_nodes_at(0)
    roster = workspace.study.study.roster
    nodes = [node_class(workspace.node_file(name), coordinator.service) for name in roster]
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


def require_willing(workspace: Workspace) -> None:
    """Raise `SettingsError` where the sites' own policy, all of whose files say the same, refuses the study."""
    node_class: type[NodeEngine] = _engine("node")
    try:
        node_class.check_terms(workspace.first_node(), workspace.study)
    except RefusedError as error:
        raise SettingsError(
            f"the simulated sites would refuse this study: {error.message}",
            advice="change the policy (--set policy.KEY=VALUE; in Python policy={...}), or the study",
        ) from None


# --- processes ------------------------------------------------------------------------------------------------

# What the parties and their training processes import: once, in the template that they are all forked from.
# torch imports its compiler with the first optimizer, whoever compiles nothing: a second and 100 MB.
_COORDINATOR, _NODE = "coordinator.main", "node.main"
_PRELOADED = (_COORDINATOR, _NODE, "node.training.worker", "node.training.trainer", "torch._dynamo")
# Many processes share the cores, and glibc's arenas of many threads the memory. Read when an interpreter starts.
_FRUGAL = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Template:
    forks: Forks
    errors: IO[bytes]

    def death(self) -> StudyAbortedError:
        """Why there is no template any more, in its last words."""
        self.errors.seek(0)
        *_, said = [b"it was killed", *self.errors.read().strip().splitlines()]
        return StudyAbortedError(
            f"the process that all others are forked from has died: {said.decode(errors='replace')}",
            advice="`secure-fl doctor` checks the installation; --engine threads needs no other process",
        )


@contextmanager
def processes() -> Iterator[Engine]:
    """One coordinator and N node processes over mutual TLS on loopback. Their imports begin here, before the run."""
    if sys.platform != "linux":
        raise SettingsError("the engine 'processes' needs Linux", advice="use --engine threads")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, TemporaryFile() as errors:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "secure_fl.simulation.template", *_PRELOADED],
                stdin=theirs.fileno(),
                stdout=errors,
                stderr=errors,
                env={**os.environ, **_FRUGAL},
                start_new_session=True,  # Ctrl-C reaches it, and those forked from it, through us and in order
            )
        try:
            yield partial(_run_processes, _Template(forks=Forks(ours), errors=errors))
        finally:
            ours.close()
            process.terminate()  # while it imports; once it serves it leaves, with those that are left, because we did
            process.wait()


async def _run_processes(template: _Template, workspace: Workspace, listener: Listener) -> None:
    watch = _Watch(workspace, listener)
    async with _children(template) as start:
        folder = workspace.coordinator_file.parent
        arguments = [str(workspace.coordinator_file), "--until-done", "--events", "--lifeline"]
        coordinator = await start(_COORDINATOR, arguments, log=folder / "coordinator.log", events=True)
        async for event in _events(coordinator):
            listener(event)
            if isinstance(event, Listening):
                workspace.point_nodes_at(event.port)
                for name in workspace.study.study.roster:
                    arguments = [str(workspace.node_file(name)), "--until-done", "--lifeline"]
                    log = workspace.node_folder(name) / "node.log"
                    watch.add(name, await start(_NODE, arguments, log=log), coordinator)
        code = await coordinator.wait()
        if template.forks.lost:
            raise template.death()
        if watch.reason is not None:
            raise watch.reason
        if code != 0:
            error = StudyAbortedError(
                f"the coordinator left with exit code {code}", advice=f"see {folder / 'coordinator.log'}"
            )
            listener(CoordinatorFailed.of(error))


class _Watch:
    """Notices nodes that die; without enough of them the run cannot end and is ended."""

    def __init__(self, workspace: Workspace, listener: Listener) -> None:
        self._workspace = workspace
        self._listener = listener
        self._alive: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.reason: StudyAbortedError | None = None

    def add(self, name: str, node: Forked, coordinator: Forked) -> None:
        """Watch one node."""
        self._alive.add(name)
        task = asyncio.create_task(self._follow(name, node, coordinator))
        self._tasks.add(task)

    async def _follow(self, name: str, node: Forked, coordinator: Forked) -> None:
        code = await node.wait()
        self._alive.discard(name)
        if code == 0 or coordinator.returncode is not None:
            return
        self._listener(NodeDied(node=name, exit_code=code))
        if not self._workspace.study.can_go_on(self._alive):
            log = self._workspace.node_folder(name) / "node.log"
            self.reason = StudyAbortedError(
                f"{name} left with exit code {code} and too few sites remain: {last_complaint(log, '')}",
                advice=f"see {log}",
            )
            coordinator.terminate()


class _Starter(Protocol):
    async def __call__(self, module: str, arguments: list[str], *, log: Path, events: bool = False) -> Forked: ...


@asynccontextmanager
async def _children(template: _Template) -> AsyncIterator[_Starter]:
    """Start processes that end with this block and, through their lifeline, with this process."""
    started: list[Forked] = []

    async def start(module: str, arguments: list[str], *, log: Path, events: bool = False) -> Forked:
        with log.open("ab") as file:
            out = None if events else file.fileno()
            try:
                child = await template.forks.start(
                    module, *arguments, stdout=out, stderr=file.fileno(), forks=module == _NODE, limit=_EVENT_BYTES
                )
            except ConnectionError as error:
                raise template.death() from error
        started.append(child)
        return child

    try:
        yield start
    finally:
        await _end(started)


async def _end(processes: list[Forked]) -> None:
    alive = [process for process in processes if process.returncode is None]
    for process in alive:
        process.terminate()
    try:
        async with asyncio.timeout(_LEAVE_SECONDS):
            await asyncio.gather(*(process.wait() for process in alive))
    except TimeoutError:
        for process in alive:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _events(process: Forked) -> AsyncIterator[Event]:
    if process.stdout is None:
        return
    while line := await process.stdout.readline():
        yield from_json(line)


def last_complaint(path: Path, wanted: str) -> str:
    """The last line of a log that says `wanted`, from there on."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    found = next((line for line in reversed(lines) if wanted in line), "")
    return (found.split(wanted, 1)[-1] if wanted else found.split(": ", 1)[-1]).strip()
