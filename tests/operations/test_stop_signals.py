"""A process is told to end, and told again while it does."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, os, signal
from secure_fl.operations.stop_signals import stopped_by_signals

def tell() -> None:
    os.kill(os.getpid(), signal.SIGTERM)

class Closing(asyncio.SelectorEventLoop):
    def _close_self_pipe(self) -> None:
        super()._close_self_pipe()
        tell()  # in the middle of the loop's end

async def serve() -> None:
    stop = asyncio.Event()
    with stopped_by_signals(stop.set):
        tell()
        await stop.wait()
        tell()
    print("ended")

with asyncio.Runner(loop_factory=Closing) as runner:
    runner.run(serve())
tell()  # and once more, when there is no loop any more
print("at the end")
"""


def test_a_signal_that_comes_while_a_process_ends_changes_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\nat the end\n", "")
