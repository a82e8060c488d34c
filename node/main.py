"""`python -m node FILE`: the node process."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

from node.config import NodeFile
from node.link import GrpcConnector
from node.monitoring import Metrics
from node.service import Node
from node.worker import WorkerProcess
from secure_fl import lifeline, logs
from secure_fl.errors import SecureFLError
from secure_fl.files import only_process
from secure_fl.identity.certificates import utc_now
from secure_fl.monitoring import monitored


def main(arguments: list[str] | None = None) -> int:
    """Serve until stopped, or with `--until-done` until every study is closed."""
    parser = argparse.ArgumentParser(prog="python -m node", description=__doc__)
    parser.add_argument("file", type=Path, help="the node's TOML file")
    parser.add_argument("--until-done", action="store_true", help="exit when every study is closed")
    parser.add_argument("--lifeline", action="store_true", help="exit when standard input closes")
    options = parser.parse_args(arguments)
    if options.lifeline:
        lifeline.read_until_parent_dies(0, lambda _line: None)
    try:
        file = NodeFile.read(options.file)
        logs.configure(level=file.log.level, style=file.log.format)
        asyncio.run(_serve(file, until_done=options.until_done))
    except SecureFLError as error:
        sys.stderr.write(f"node: {error.message}\n" + (f"  → {error.hint}\n" if error.hint else ""))
        return error.exit_code
    return 0


async def _serve(file: NodeFile, *, until_done: bool) -> None:
    # The coordinator would refuse these too, but only as a broken handshake; here the reason has a name.
    file.trust().check(file.credential().certificate, role="node", now=utc_now())
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    node = Node(file, GrpcConnector(file), WorkerProcess(), until_done=until_done, listener=metrics)
    metrics.watch(lambda: node.connected)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, node.stop)
    # Two processes on one folder would answer an attempt twice and tear the ledger.
    with only_process(file.state_folder), monitored(file.monitoring.address, registry, lambda: node.connected):
        await node.run()
