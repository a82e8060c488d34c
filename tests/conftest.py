"""The table of faults, printed after the tests, whichever process ran them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fault_table import TABLE

_LINES = pytest.StashKey[list[str]]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of several hands its table to the one that prints."""
    table = session.config.stash.get(TABLE, None)
    lines = table.lines() if table is not None and table.cells else []
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["faults"] = lines
    elif lines:
        session.config.stash[_LINES] = lines


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take a process's table."""
    lines = node.config.stash.setdefault(_LINES, [])
    lines += getattr(node, "workeroutput", {}).get("faults", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what was collected."""
    if lines := config.stash.get(_LINES, []):
        terminalreporter.section("faults by protection and phase")
        for line in lines:
            terminalreporter.write_line(line)
