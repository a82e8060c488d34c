"""The table of faults, collected over the tests and printed after them."""

from __future__ import annotations

import pytest

from tests.support.fault_table import FaultTable

_TABLE = pytest.StashKey[FaultTable]()


@pytest.fixture(scope="session")
def fault_table(pytestconfig: pytest.Config) -> FaultTable:
    """One table for the whole run."""
    return pytestconfig.stash.setdefault(_TABLE, FaultTable())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what was collected."""
    table = config.stash.get(_TABLE, None)
    if table is not None and table.cells:
        terminalreporter.section("faults by protection and phase")
        for line in table.lines():
            terminalreporter.write_line(line)
