"""Every fault in every phase of a circle: the other circle goes on, and who comes back is in the same round."""

from __future__ import annotations

import pytest

from tests.faults import test_fault_table as table
from tests.faults.test_fault_table import COLUMNS, PHASES, Rows, rows, studies
from tests.support.fault_table import FaultTable

__all__ = ["rows", "studies"]

ROWS = [("masked", phase) for phase in PHASES["masked"]]

_several_chunks = table._several_chunks


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(("protection", "phase"), ROWS)
def test_a_fault_in_a_phase(rows: Rows, fault_table: FaultTable, protection: str, phase: str, column: str) -> None:
    """As of whoever is there."""
    table.test_a_fault_in_a_phase(rows, fault_table, protection, phase, column)


@pytest.mark.parametrize("column", table._for_too_many("", ""))
@pytest.mark.parametrize(("protection", "phase"), ROWS)
def test_a_fault_at_one_circle_for_too_long(
    rows: Rows, fault_table: FaultTable, protection: str, phase: str, column: str
) -> None:
    """Two sites of one circle, every time."""
    table.test_a_fault_at_too_many_sites_for_too_long(rows, fault_table, protection, phase, column)
