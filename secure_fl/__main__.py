"""The console script `secure-fl`, and `python -m secure_fl`. It imports the rest only once Ctrl-C is taken care of."""

from __future__ import annotations

import os
import signal
from types import FrameType

_SAID = "secure-fl: interrupted\n"
_CODE = 130


def main() -> None:
    """Import the command line and run it. Ctrl-C is one line and exit code 130 from the start."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # Where a shell has it ignored, it stays ignored.
        signal.signal(signal.SIGINT, _leave)
    from secure_fl.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _leave(_number: int, _frame: FrameType | None) -> None:
    # An exception in the middle of an import may be swallowed there. Nothing is begun yet, so nothing is lost.
    os.write(2, _SAID.encode())
    os._exit(_CODE)


if __name__ == "__main__":
    main()
