"""`python -m coordinator FILE`: the coordinator process."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from prometheus_client import CollectorRegistry

from coordinator.config import CoordinatorFile
from coordinator.monitoring import Metrics
from coordinator.round_log import RoundLog
from coordinator.server import start_server
from coordinator.service import Coordinator
from secure_fl import logs
from secure_fl.errors import SecureFLError
from secure_fl.events import CoordinatorFailed, Listener, Listening, each, ignore, print_json_lines
from secure_fl.files import keep_files_private, only_process
from secure_fl.operations import lifeline
from secure_fl.operations.allocator import give_memory_back
from secure_fl.operations.ending import ended_by
from secure_fl.operations.loop_lag import LoopLag
from secure_fl.operations.monitoring import monitored
from secure_fl.operations.process_name import name_process
from secure_fl.operations.stop_signals import stopped_by_signals
from secure_fl.study.settings import Study

_DRAIN_SECONDS = 10.0
_STORAGE_PAUSE_SECONDS = 30.0


def main(arguments: list[str] | None = None) -> int:
    """Serve until stopped, or with `--until-done` until the last study has ended."""
    parser = argparse.ArgumentParser(prog="python -m coordinator", description=__doc__)
    parser.add_argument("file", type=Path, help="the coordinator's TOML file")
    parser.add_argument("--until-done", action="store_true", help="exit when every study has ended")
    parser.add_argument("--events", action="store_true", help="write progress to standard output as JSON lines")
    parser.add_argument("--lifeline", action="store_true", help="exit when standard input closes")
    options = parser.parse_args(arguments)
    name_process("fl-coordinator")
    keep_files_private()
    give_memory_back()
    if options.lifeline:
        lifeline.read_until_parent_dies(0, lambda _line: None)
    try:
        file = CoordinatorFile.read(options.file)
        logs.configure(level=file.log.level, style=file.log.format)
        asyncio.run(_serve(file, events=options.events, until_done=options.until_done))
    except SecureFLError as error:
        if options.events:
            print_json_lines(CoordinatorFailed.of(error))
        return ended_by(error, "coordinator")
    return 0


async def _serve(file: CoordinatorFile, *, events: bool, until_done: bool) -> None:
    with only_process(file.state_folder):
        await _serve_alone(file, events=events, until_done=until_done)


async def _serve_alone(file: CoordinatorFile, *, events: bool, until_done: bool) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    listener = each(metrics, RoundLog(), print_json_lines if events else ignore)
    coordinator = Coordinator(
        file.state_folder,
        listener=listener,
        heartbeat=file.limits.heartbeat,
        grace=file.limits.grace,
        model_bytes=file.limits.model_bytes,
        tasks=file.coordinator.tasks,
        storage_pause=None if until_done else _STORAGE_PAUSE_SECONDS,
    )
    lag = LoopLag()
    metrics.watch(coordinator, lag)
    coordinator.resume()
    for path in file.studies:
        coordinator.prepare(Study.read(file.path(path)))
    with monitored(file.monitoring.address, registry, lambda: True):
        async with lag.watched():
            await _serve_studies(coordinator, file, listener, until_done=until_done)


async def _serve_studies(
    coordinator: Coordinator, file: CoordinatorFile, listener: Listener, *, until_done: bool
) -> None:
    server, port = await start_server(coordinator, file, listener=listener)
    listener(Listening(port=port))
    work = asyncio.create_task(coordinator.run())
    stop = asyncio.Event()
    with stopped_by_signals(stop.set):
        if until_done:
            work.add_done_callback(lambda _task: stop.set())
        await stop.wait()
        if work.done():
            await coordinator.hub.drain(_DRAIN_SECONDS)
        work.cancel()
        await coordinator.close()
        await server.stop(grace=2)
