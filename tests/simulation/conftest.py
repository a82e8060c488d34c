"""The table of faults, collected over the tests; tests/conftest.py prints it."""

from __future__ import annotations

import pytest

from tests.support.fault_table import TABLE, FaultTable


@pytest.fixture(scope="session")
def fault_table(pytestconfig: pytest.Config) -> FaultTable:
    """One table for all tests of a process."""
    return pytestconfig.stash.setdefault(TABLE, FaultTable())
