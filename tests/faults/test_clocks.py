"""Wall clocks that jump or disagree: deadlines are durations, so no round notices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from node import service
from secure_fl.errors import CertificateError
from secure_fl.identity.certificates import utc_now
from secure_fl.privacy.ledger import Ledger, read_ledger, read_site_ledger
from secure_fl.results.record import StudyRecord
from tests.support.federation import Federation, Killed
from tests.support.outcomes import ending
from tests.support.training import Faults

DAY = 86_400.0
SETTINGS = {
    "task": {"name": "tests.support.task:Line"},
    "rounds": {"deadline": 20, "phase_deadline": 20, "gather": 3},
}


class Jumping:
    """A clock that is right at first and off by some seconds from its n-th reading on."""

    def __init__(self, seconds: float, *, after: int) -> None:
        self._seconds = seconds
        self._after = after
        self.read = 0

    def __call__(self) -> float:
        self.read += 1
        return time.time() + (self._seconds if self.read > self._after else 0.0)


def run(fed: Federation, now: Callable[[], float], faults: Faults | None = None) -> StudyRecord | None:
    """A study with everybody, under this clock; killed once where there are faults, and resumed."""

    async def scenario() -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name)
        if faults is not None:
            with pytest.raises(Killed):
                await fed.coordinate(faults, now=now)
        record = await fed.coordinate(now=now)
        await fed.close()
        return record

    return asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("seconds", [DAY, -DAY])
@pytest.mark.parametrize("after", [2, 3, 4])  # before a round, and within the first and the second
def test_the_coordinators_clock_jumps_by_a_day(tmp_path: Path, seconds: float, after: int) -> None:
    clock = Jumping(seconds, after=after)
    started = time.monotonic()
    fed = Federation(tmp_path / "run", SETTINGS)
    record = run(fed, clock)
    elapsed = time.monotonic() - started
    assert clock.read > after
    assert record is not None
    assert [round_.cohort for round_ in record.rounds] == [fed.names] * 3
    assert [round_.attempts for round_ in record.rounds] == [1, 1, 1]
    # A round takes as long as it takes, whatever the clock on the wall says.
    assert all(0 <= round_.seconds <= elapsed for round_ in record.rounds)


@pytest.mark.parametrize("seconds", [DAY, -DAY])
def test_the_clock_jumps_while_the_coordinator_is_dead(tmp_path: Path, seconds: float) -> None:
    fed = Federation(tmp_path / "run", SETTINGS)
    clock = Jumping(seconds, after=4)  # The second round starts on the right day
    record = run(fed, clock, Faults("after:add_answer", 6))
    assert record is not None
    assert [round_.cohort for round_ in record.rounds] == [fed.names] * 3
    assert all(round_.seconds >= 0 for round_ in record.rounds)
    assert ending(fed).lost == 0


def test_a_clock_before_the_certificate_s_first_day_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written would never verify: nobody vouched for the site at that time."""

    class Early(Ledger):
        def __init__(self, path: Path, **keywords: object) -> None:
            super().__init__(path, **{**keywords, "now": lambda: utc_now() - timedelta(days=1)})  # type: ignore[arg-type]

    monkeypatch.setattr(service, "Ledger", Early)
    fed = Federation(tmp_path / "run", SETTINGS)
    with pytest.raises(CertificateError, match="not valid before"):
        run(fed, time.time)
    assert not (fed.workspace.node_folder(fed.names[0]) / "ledger.jsonl").exists()


def test_nodes_and_coordinator_disagree_on_the_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes' ledgers are written under another date than the coordinator's records, and still verify."""

    def elsewhere() -> datetime:
        return utc_now() + timedelta(days=1)

    class Skewed(Ledger):
        def __init__(self, path: Path, **keywords: object) -> None:
            super().__init__(path, **{**keywords, "now": elsewhere})  # type: ignore[arg-type]

    monkeypatch.setattr(service, "Ledger", Skewed)
    fed = Federation(tmp_path / "run", SETTINGS)
    record = run(fed, time.time)
    assert record is not None
    assert [round_.cohort for round_ in record.rounds] == [fed.names] * 3
    for name in fed.names:
        entries = list(read_ledger(fed.workspace.node_folder(name) / "ledger.jsonl"))
        assert [entry.kind for entry in entries] == ["opened", "approved", *["planned", "sent"] * 3]
        assert all(abs(datetime.fromisoformat(entry.time) - elsewhere()) < timedelta(hours=1) for entry in entries)


def test_a_ledger_whose_clock_runs_backwards_still_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Backwards(Ledger):
        def __init__(self, path: Path, **keywords: object) -> None:
            times = iter([utc_now() - timedelta(days=n) for n in range(100)])
            super().__init__(path, **{**keywords, "now": lambda: next(times)})  # type: ignore[arg-type]

    monkeypatch.setattr(service, "Ledger", Backwards)
    fed = Federation(tmp_path / "run", SETTINGS)
    assert run(fed, time.time) is not None
    for name in fed.names:
        path = fed.workspace.node_folder(name) / "ledger.jsonl"
        ca = (fed.workspace.folder / "ca.pem").read_bytes()
        assert len(read_site_ledger(path, authority=ca, site=name)) == 8
