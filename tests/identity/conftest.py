"""One authority per test, on disk, with a clock that can be moved."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from secure_fl.identity.authority import Authority

START = datetime.now(UTC).replace(microsecond=0)


@dataclass
class Clock:
    """Time that passes when told to."""

    now: datetime = START

    def __call__(self) -> datetime:
        return self.now

    def forward(self, **span: float) -> datetime:
        self.now += timedelta(**span)
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authority(tmp_path: Path, clock: Clock) -> Authority:
    return Authority.create(tmp_path / "authority", consortium="Heart Study", now=clock)


@pytest.fixture
def stranger(tmp_path: Path, clock: Clock) -> Authority:
    """An authority under the same name, with another key."""
    return Authority.create(tmp_path / "stranger", consortium="Heart Study", now=clock)
