"""Sums of several studies, whose sites differ by few: nobody cheats, and one site would be shown all the same.

Through the real halves of `masked`, each site with its memory on disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.machine import RoundMachine
from node.past import PastSums
from secure_fl.encoding.integers import Integers
from secure_fl.errors import ReleaseRefusedError
from secure_fl.protect.cohort import meeting
from secure_fl.protect.contract import Contribution, OpenedSums
from secure_fl.protect.masked.protection import Masked
from secure_fl.protect.past import CHANGING_COHORTS
from secure_fl.protect.recovery.protection import MaskedWithRecovery
from tests.protect.cohorts import InMemory, context, host, layout

MASKED = Masked()
SIZE = 40


class Sites:
    """Hospitals whose updates hardly change from study to study, as those of small models."""

    def __init__(self, folder: Path, *, agree: Iterable[str] = ()) -> None:
        self._folder = folder
        self._agree = frozenset(agree)
        self._studies = 0

    def update(self, name: str) -> Integers:
        """What a site's training comes to."""
        rng = np.random.default_rng(list(name.encode()))
        return rng.integers(-30_000, 30_000, SIZE).astype(np.int32)

    def study(self, *names: str, protection: Masked | MaskedWithRecovery = MASKED) -> Integers:
        """The sum that a study among these sites opens."""
        self._studies += 1
        about = replace(
            context(*names, blocks=layout(body=SIZE), whole=protection is MASKED),
            study_id=f"{self._studies:064x}",
        )
        nodes = {}
        for name in names:
            here = replace(
                host(name),
                past=PastSums(self._folder / f"{name}.json"),
                exceptions=frozenset({CHANGING_COHORTS}) & {CHANGING_COHORTS if name in self._agree else ""},
            )
            nodes[name] = protection.node(about, Contribution(blocks={"body": self.update(name)}, weight=64), here)
        machine = RoundMachine(protection, about)
        machine.begin()
        while machine.phase:
            phase = machine.phase
            for name in sorted(machine.waiting):
                answer = nodes[name].answer(phase, machine.asked[name])
                machine.accept(name, phase, replace(answer, bulk=b""), InMemory(answer.bulk))
            opened = machine.close()
        assert isinstance(opened, OpenedSums)
        return opened.blocks["body"].total.astype(np.int32)


def test_three_hospitals_and_then_four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = Sites(tmp_path / "shipped")
    sites.study("a", "b", "c")
    with pytest.raises(ReleaseRefusedError, match="d would be shown") as caught:
        sites.study("a", "b", "c", "d")
    assert "changing-cohorts" in caught.value.hint
    # Taken out, the difference of two published sums is the fourth's update, exactly.
    monkeypatch.setattr(meeting, "check_together", lambda *_, **__: None)
    without = Sites(tmp_path / "without")
    shown = without.study("a", "b", "c", "d") - without.study("a", "b", "c")
    assert np.array_equal(shown, without.update("d"))


def test_the_newcomer_itself_refuses_because_the_others_say_what_they_opened(tmp_path: Path) -> None:
    """It has no past of its own; the others' manifests have."""
    sites = Sites(tmp_path)
    sites.study("a", "b", "c")
    for name in "abc":
        (tmp_path / f"{name}.json").rename(tmp_path / f"{name}.kept")
    sites.study("x", "y", "z")  # something else in between
    for name in "bc":  # two forget, or lie; one is honest
        (tmp_path / f"{name}.json").unlink(missing_ok=True)
    (tmp_path / "a.kept").rename(tmp_path / "a.json")
    with pytest.raises(ReleaseRefusedError):
        sites.study("a", "b", "c", "d")


def test_the_same_sites_again_always_pass(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    for _ in range(3):
        sites.study("a", "b", "c", "d")
    assert PastSums(tmp_path / "a.json").known().rows == (("a", "b", "c", "d"),)


def test_three_join_together(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.study("a", "b", "c")
    with pytest.raises(ReleaseRefusedError):
        sites.study("a", "b", "c", "d", "e")
    sites.study("a", "b", "c", "d", "e", "f")


def test_one_leaves(tmp_path: Path) -> None:
    """Nobody can ask it any more: the others refuse on its behalf, unless it said so while it was there."""
    sites = Sites(tmp_path / "silent")
    sites.study("a", "b", "c", "d")
    with pytest.raises(ReleaseRefusedError, match="d would be shown"):
        sites.study("a", "b", "c")
    agreed = Sites(tmp_path / "agreed", agree="d")
    agreed.study("a", "b", "c", "d")
    agreed.study("a", "b", "c")


def test_an_exception_counts_for_whoever_gives_it(tmp_path: Path) -> None:
    willing = Sites(tmp_path / "willing", agree="d")
    willing.study("a", "b", "c")
    willing.study("a", "b", "c", "d")
    others = Sites(tmp_path / "others", agree="abc")
    others.study("a", "b", "c")
    with pytest.raises(ReleaseRefusedError, match="d would be shown"):
        others.study("a", "b", "c", "d")


def test_circles_that_overlap_in_a_ring(tmp_path: Path) -> None:
    """Each pair of studies is harmless; all together they have as many equations as sites."""
    sites = Sites(tmp_path)
    around = [sorted("abcdefabc"[start : start + 4]) for start in range(6)]
    sites.study(*around[0])

    def the_others() -> None:
        for names in around[1:]:
            sites.study(*names)

    with pytest.raises(ReleaseRefusedError):
        the_others()


def test_sums_of_recovering_studies_count(tmp_path: Path) -> None:
    sites = Sites(tmp_path, agree="abcd")
    sites.study("a", "b", "c", "d", protection=MaskedWithRecovery())
    with pytest.raises(ReleaseRefusedError, match="e would be shown"):
        sites.study("a", "b", "c", "d", "e")
