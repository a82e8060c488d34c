"""Who is waited for: a coordinator that has just started again gives sites the time to dial."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator.gathering import Gathering
from coordinator.left_out import LeftOutSites
from secure_fl.events import ignore
from secure_fl.study.resolved import ResolvedStudy
from tests.support.federation import Federation


class Line:
    """Sessions that come and go as a test says."""

    def __init__(self) -> None:
        self.there: set[str] = set()

    def ready(self, study_id: str) -> frozenset[str]:
        return frozenset(self.there)

    def send(self, node: str, message: object) -> bool:
        return node in self.there


@pytest.mark.parametrize(("gather", "given_up"), [(60.0, {"site-01"}), (0.0, {"site-01", "site-02"})])
def test_who_was_not_seen_yet_is_given_up_only_after_the_time_to_gather(
    tmp_path: Path, gather: float, given_up: set[str]
) -> None:
    """The first site came and went again; the second has not come yet."""

    async def scenario() -> None:
        fed = Federation(tmp_path / "run", {"rounds": {"gather": gather}})
        line = Line()
        left_out = LeftOutSites(fed.study.id, tmp_path, ignore)
        waits = Gathering(ResolvedStudy.of(fed.study), line, ignore, left_out)
        waits.announce()
        line.there = {"site-01", "site-03", "site-04"}
        waits.changed()
        line.there.remove("site-01")
        waits.changed()
        waits.look()
        assert waits.given_up == given_up
        line.there |= set(fed.names)
        waits.look()
        assert not waits.given_up

    asyncio.run(scenario())
