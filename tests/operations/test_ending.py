"""What a process that an error ends leaves behind: a line, what to do, and an exit code."""

from __future__ import annotations

import pytest

from secure_fl.errors import SettingsError
from secure_fl.operations.ending import ended_by


@pytest.mark.parametrize(("advice", "more"), [("write 3", "  → write 3\n"), ("", "")])
def test_an_error_that_ends_a_process_is_told_with_its_advice(
    capsys: pytest.CaptureFixture[str], advice: str, more: str
) -> None:
    assert ended_by(SettingsError("rounds is 0", advice=advice), "node") == 3
    assert capsys.readouterr() == ("", f"node: rounds is 0\n{more}")
