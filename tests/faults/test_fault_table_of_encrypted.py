"""Every fault in every phase of `encrypted`, of whoever is there and in circles.

    ./scripts/test -m slow tests/faults/test_fault_table_of_encrypted.py

The victim is always the key maker, and an opener: it is asked in every phase.
"""

from __future__ import annotations

from functools import partial

import pytest

from node import session
from secure_fl import limits
from secure_fl.protect.encrypted import sides
from secure_fl.transport.pace import Backoff
from tests.faults import test_fault_table as table
from tests.faults.test_fault_table import COLUMNS, PHASES, Rows, rows, studies
from tests.support.fault_table import FaultTable

__all__ = ["rows", "studies"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = [(name, phase) for name in ("encrypted+recovery", "encrypted") for phase in PHASES[name]]


@pytest.fixture(autouse=True)
def _by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Roles go by name: the first site makes the key, it and the third have bodies, the second and the fourth seeds."""
    monkeypatch.setattr(sides, "_rank", lambda _rho, name: name.encode())
    monkeypatch.setattr(session, "Backoff", partial(Backoff, first=0.05))
    monkeypatch.setattr(limits, "CHUNK_BYTES", 4096)  # The smallest upload is 20 kB: five chunks.


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(("protection", "phase"), ROWS)
def test_a_fault_in_a_phase(rows: Rows, fault_table: FaultTable, protection: str, phase: str, column: str) -> None:
    """As of the other protections."""
    table.test_a_fault_in_a_phase(rows, fault_table, protection, phase, column)


@pytest.mark.parametrize("column", table._for_too_many("", ""))
@pytest.mark.parametrize(("protection", "phase"), ROWS)
def test_a_fault_for_too_long(rows: Rows, fault_table: FaultTable, protection: str, phase: str, column: str) -> None:
    """Of the key maker where it makes the key, elsewhere of two sites."""
    table.test_a_fault_at_too_many_sites_for_too_long(rows, fault_table, protection, phase, column)
