"""One of a thing is not several."""

from __future__ import annotations

from secure_fl.counting import counted


def test_one_and_several() -> None:
    assert [counted(number, "round") for number in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
    assert [counted(number, "study", "studies") for number in (1, 3)] == ["1 study", "3 studies"]
