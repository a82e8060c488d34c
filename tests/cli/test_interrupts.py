"""Ctrl-C, at a point that the test chooses: one line, exit code 130, no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# The command line says where it is, and waits there.
BEGIN = """
import sys, time
from importlib.abc import MetaPathFinder

def wait(*_):
    print("here", flush=True)
    time.sleep(60)
"""
WHILE_IMPORTING = """
class Slow(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "typer":
            wait()

sys.meta_path.insert(0, Slow())
"""
IN_A_COMMAND = """
from secure_fl.study.settings import Study

Study.read_table = wait
"""
END = """
from secure_fl.__main__ import main

sys.argv = ["secure-fl", "study", "check", "x.toml"]
main()
"""


@pytest.mark.parametrize("where", [WHILE_IMPORTING, IN_A_COMMAND], ids=["while importing", "in a command"])
def test_ctrl_c_is_one_line_and_exit_code_130(where: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", BEGIN + where + END], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    assert (child.returncode, said) == (130, "secure-fl: interrupted\n")


def test_a_shell_that_has_ctrl_c_ignored_is_obeyed() -> None:
    ignored = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    short = BEGIN.replace("time.sleep(60)", "time.sleep(1)")
    version = END.replace('"study", "check", "x.toml"', '"--version"')
    with subprocess.Popen(
        [sys.executable, "-P", "-c", ignored + short + WHILE_IMPORTING + version],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        child.send_signal(signal.SIGINT)
        told, _ = child.communicate(timeout=60)
    assert (child.returncode, told.split()[0]) == (0, "secure-fl")
