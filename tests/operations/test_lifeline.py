"""A child process goes when its parent does."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, time
from secure_fl.operations import lifeline
lifeline.read_until_parent_dies(0, lambda line: print(line.decode(), flush=True))
time.sleep(60)
"""


def test_a_child_hears_whole_lines_and_leaves_when_the_pipe_closes() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        said, _ = child.communicate(b"one\ntwo\n\nhalf a li", timeout=20)
    assert said == b"one\ntwo\n\n"
    assert child.returncode == 3
