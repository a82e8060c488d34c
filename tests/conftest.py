"""What tests of several rooms share: two sites of one consortium, and the table of faults, printed at the end."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from secure_fl import strategies
from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import Credential
from tests.support.fault_table import TABLE, FaultTable

_LINES = pytest.StashKey[list[str]]()

# Files that take longest, in this order. They begin first: a long one that begins last leaves one of two cores idle.
# `--durations=80` says which they are.
LONGEST = (
    "operations/test_operations_page.py",
    "faults/test_fault_table.py",
    "faults/test_fault_table_of_circles.py",
    "end_to_end/test_run.py",
    "end_to_end/test_loop_lag.py",
    "fuzz/test_servicers.py",
    "faults/test_kill.py",
    "coordinator/test_study_runner.py",
    "simulation/test_processes.py",
    "end_to_end/test_sealed.py",
    "end_to_end/test_encrypted.py",
    "faults/test_random_faults.py",
    "faults/test_budgets.py",
    "api/test_notebooks.py",
    "operations/test_readme.py",
)


def pytest_configure() -> None:
    """Tests that are started with `&` interrupt what they start all the same: children inherit what is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first and leave everything else in its order."""
    here = Path(__file__).parent
    place = {here / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture(scope="session")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Made once: certificates cost time, and no test changes them. tests/identity has an `authority` per test."""
    return Authority.create(tmp_path_factory.mktemp("authority"), consortium="Heart Study")


@pytest.fixture(scope="session")
def north(consortium: Authority) -> Credential:
    """One of its sites."""
    return consortium.issue("node", "north")


@pytest.fixture(scope="session")
def south(consortium: Authority) -> Credential:
    """Another one."""
    return consortium.issue("node", "south")


@pytest.fixture(scope="session")
def fault_table(pytestconfig: pytest.Config) -> FaultTable:
    """One table for all tests of a process."""
    return pytestconfig.stash.setdefault(TABLE, FaultTable())


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


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """The commands of a process, carried out in this one, set up logging for good."""
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)


@pytest.fixture(autouse=True)
def _strategies_as_they_were() -> Iterator[None]:
    """A strategy that a test adds is nobody else's: some tests look at all there are."""
    tables: tuple[dict[str, Any], ...] = (strategies._BUILT_IN, strategies._HERE)
    before = [dict(table) for table in tables]
    yield
    for table, kept in zip(tables, before, strict=True):
        if table != kept:
            table.clear()
            table.update(kept)
