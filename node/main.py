"""`python -m node FILE`: the node process."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from node.config import NodeFile
from node.events import each
from node.link import GrpcConnector
from node.monitoring import Metrics
from node.round_log import RoundLog
from node.service import Node
from node.training.worker import WorkerProcess
from secure_fl import logs
from secure_fl.errors import SecureFLError
from secure_fl.files import keep_files_private, only_process
from secure_fl.identity.certificates import utc_now
from secure_fl.operations import lifeline
from secure_fl.operations.allocator import give_memory_back
from secure_fl.operations.ending import ended_by
from secure_fl.operations.loop_lag import LoopLag
from secure_fl.operations.monitoring import monitored
from secure_fl.operations.process_name import name_process
from secure_fl.operations.stop_signals import stopped_by_signals

if TYPE_CHECKING:
    from secure_fl.simulation.forks import Forks


def main(arguments: list[str] | None = None, *, forks: Forks | None = None) -> int:
    """Serve until stopped, or with `--until-done` until every study is closed. A simulation has `forks` to train in."""
    parser = argparse.ArgumentParser(prog="python -m node", description=__doc__)
    parser.add_argument("file", type=Path, help="the node's TOML file")
    parser.add_argument("--until-done", action="store_true", help="exit when every study is closed")
    parser.add_argument("--lifeline", action="store_true", help="exit when standard input closes")
    options = parser.parse_args(arguments)
    name_process("fl-node")
    keep_files_private()
    give_memory_back()
    if options.lifeline:
        lifeline.read_until_parent_dies(0, lambda _line: None)
    try:
        file = NodeFile.read(options.file)
        logs.configure(level=file.log.level, style=file.log.format)
        asyncio.run(_serve(file, until_done=options.until_done, forks=forks))
    except SecureFLError as error:
        return ended_by(error, "node")
    return 0


async def _serve(file: NodeFile, *, until_done: bool, forks: Forks | None) -> None:
    # The coordinator would refuse these too, but only as a broken handshake; here the reason has a name.
    file.check_identity("node", now=utc_now())
    # Two processes on one folder would answer an attempt twice and tear the ledger, which a node opens as it is made.
    with only_process(file.state_folder):
        await _serve_alone(file, until_done=until_done, forks=forks)


async def _serve_alone(file: NodeFile, *, until_done: bool, forks: Forks | None) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    training = WorkerProcess() if forks is None else WorkerProcess(forks=forks)
    node = Node(file, GrpcConnector(file), training, until_done=until_done, listener=each(metrics, RoundLog()))
    lag = LoopLag()
    metrics.watch(lambda: node.connected, lag, node.budgets)
    with stopped_by_signals(node.stop), monitored(file.monitoring.address, registry, lambda: node.connected):
        async with lag.watched():
            await node.run()
