"""What the tests of the template fork: says how it came into the world, then does as it is told, line by line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from secure_fl.simulation.forks import Forks

IMPORTED_IN = os.getpid()


def main(*, forks: Forks | None = None) -> int:
    """Report, then obey: `exit N`, `raise`, `quit`, `fork`, `rush`."""
    _say(
        argv=sys.argv,
        pid=os.getpid(),
        imported_in=IMPORTED_IN,
        session=os.getsid(0),
        threads=threading.active_count(),
        descriptors=_descriptors(),
        blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        drawn=float(np.random.rand()),  # from the global generator
    )
    order = os.read(0, 100).decode().split()
    match order:
        case ["exit", code]:
            return int(code)
        case ["raise"]:
            raise RuntimeError("as told")
        case ["quit"]:
            sys.exit("a last word")
        case ["fork"] if forks is not None:
            return asyncio.run(_fork(forks))
        case ["rush"] if forks is not None:
            request = {"module": __name__, "arguments": [], "forks": False}
            socket.send_fds(forks._connection, [json.dumps(request).encode()], [0, 1, 2])
            select.select([forks._connection], [], [])
            os._exit(5)  # with the answer unread
        case []:
            return 9  # the other end is gone
    return 1


async def _fork(forks: Forks) -> int:
    child = await forks.start(__name__, "grandchild", stderr=2)
    if child.stdout is None:
        return 1
    _say(grandchild=json.loads(await child.stdout.readline()))
    return await child.wait()  # for ever: nobody tells it anything


def _descriptors() -> dict[str, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists the folder
            found[entry.name] = str(entry.readlink())
    return found


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)
