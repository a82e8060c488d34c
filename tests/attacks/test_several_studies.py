"""Sums of several studies, whose sites differ by few: nobody cheats, and one site would be shown all the same.

Through the real halves of `masked`, each site with its memory on disk.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.machine import RoundMachine
from node.past import PastSums
from secure_fl.aggregation import RequestKind
from secure_fl.encoding.integers import Integers
from secure_fl.errors import ProtectionError, ReleaseRefusedError
from secure_fl.protect.cohort import meeting
from secure_fl.protect.combining import CombiningNodeHalf, node_half
from secure_fl.protect.contract import Contribution, NodeHalf, OpenedSums
from secure_fl.protect.masked.protection import Masked
from secure_fl.protect.past import CHANGING_COHORTS, Known
from secure_fl.protect.recovery.protection import MaskedWithRecovery
from tests.protect.cohorts import InMemory, context, contribution, host, layout
from tests.protect.sealed.table import SEALED

MASKED = Masked()
SIZE = 40


@dataclass
class Table:
    """The coordinator's machine, and everybody's half."""

    machine: RoundMachine
    nodes: dict[str, NodeHalf]


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

    def table(self, *names: str, protection: Masked | MaskedWithRecovery = MASKED, weighting: str = "equal") -> Table:
        """An attempt of a study among these sites, before its first phase."""
        self._studies += 1
        about = replace(
            context(*names, blocks=layout(body=SIZE), whole=protection is MASKED),
            study_id=f"{self._studies:064x}",
            weighting=weighting,
        )
        nodes = {}
        for name in names:
            exceptions = frozenset({CHANGING_COHORTS}) if name in self._agree else frozenset()
            here = replace(host(name), past=PastSums(self._folder / f"{name}.json"), exceptions=exceptions)
            nodes[name] = protection.node(about, Contribution(blocks={"body": self.update(name)}, weight=64), here)
        machine = RoundMachine(protection, about)
        machine.begin()
        return Table(machine, nodes)

    def study(
        self, *names: str, protection: Masked | MaskedWithRecovery = MASKED, weighting: str = "equal"
    ) -> Integers:
        """The sum that a study among these sites opens."""
        table = self.table(*names, protection=protection, weighting=weighting)
        machine = table.machine
        while machine.phase:
            phase = machine.phase
            for name in sorted(machine.waiting):
                answer = table.nodes[name].answer(phase, machine.asked[name])
                machine.accept(name, phase, replace(answer, bulk=b""), InMemory(answer.bulk))
            opened = machine.close()
        assert isinstance(opened, OpenedSums)
        return opened.blocks["body"].total.astype(np.int32)


def combination(sites: Sites, folder: Path, *names: str) -> Integers:
    """What a study of combinations opens at the first of these sites: everybody's update, weighed alike."""
    about = replace(
        context(*names, blocks=layout(body=SIZE), kind=RequestKind.COMBINE, min_cohort=4, protection=SEALED),
        study_id="c" * 64,
    )
    values = {name: contribution(64, dict.fromkeys(names, 1), body=sites.update(name).tolist()) for name in names}
    halves = {
        name: node_half(SEALED, about, values[name], replace(host(name), past=PastSums(folder / f"{name}.json")))
        for name in names
    }
    machine = RoundMachine(SEALED, about)
    machine.begin()
    for phase in SEALED.phases(RequestKind.COMBINE):
        for name in sorted(machine.waiting):
            answer = halves[name].answer(phase, machine.asked[name])
            machine.accept(name, phase, replace(answer, bulk=b""), InMemory(answer.bulk))
        machine.close()
    recipient = halves[names[0]]
    assert isinstance(recipient, CombiningNodeHalf)
    return recipient.combination()["body"].total


def test_a_combination_of_five_and_then_a_sum_of_four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = Sites(tmp_path / "shipped")
    (tmp_path / "shipped").mkdir()
    (tmp_path / "without").mkdir()
    combination(sites, tmp_path / "shipped", *"abcde")
    with pytest.raises(ReleaseRefusedError, match="e would be shown"):
        sites.study(*"abcd")
    sites.study(*"abcde")
    # Forgotten, what the first recipient holds and the sum of the others tell the fifth's update between them: of 64
    # units, four sites have 13 and the fifth has 12.
    monkeypatch.setattr(meeting, "_judged_combination", lambda *_: lambda known: known)
    without = Sites(tmp_path / "without")
    mixed = combination(without, tmp_path / "without", *"abcde")
    shown = mixed - 13 * without.study(*"abcd").astype(np.int64)
    assert np.corrcoef(shown, without.update("e"))[0, 1] > 0.99


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


def test_sums_of_recovering_studies_count(tmp_path: Path) -> None:
    sites = Sites(tmp_path, agree="abcd")
    sites.study("a", "b", "c", "d", protection=MaskedWithRecovery())
    with pytest.raises(ReleaseRefusedError, match="e would be shown"):
        sites.study("a", "b", "c", "d", "e")


# --- what nobody of them knows alone ------------------------------------------------------------------------------


def test_a_circle_that_is_cut_into_two(tmp_path: Path) -> None:
    """Nine, then four and four of them: each of the two knows a row that it does not contain, and the ninth is left."""
    sites = Sites(tmp_path)
    sites.study(*"abcdefghi")
    with pytest.raises(ReleaseRefusedError, match="was added up with some of these sites before"):
        sites.study(*"abcd")
    with pytest.raises(ReleaseRefusedError):
        sites.study(*"efgh")


def test_circles_that_overlap_without_knowing_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """abcd + efg − bcdefg is a; without the rule that rows only grow each step passes."""
    sites = Sites(tmp_path / "shipped")
    sites.study(*"abcd")
    with pytest.raises(ReleaseRefusedError):
        sites.study(*"bcdefg")
    monkeypatch.setattr(meeting, "check_together", lambda *_, **__: None)
    without = Sites(tmp_path / "without")
    shown = without.study(*"abcd") + without.study(*"efg") - without.study(*"bcdefg")
    assert np.array_equal(shown, without.update("a"))


def test_circles_grow(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.study(*"abc")
    sites.study(*"def")
    sites.study(*"abcdef")
    sites.study(*"abcdefghi")
    assert PastSums(tmp_path / "a.json").known().rows == (tuple("abc"), tuple("abcdef"), tuple("abcdefghi"))


def test_the_same_sites_with_other_weights(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.study(*"abcde")
    with pytest.raises(ReleaseRefusedError, match="weighed otherwise"):
        sites.study(*"abcde", weighting="4000 samples, at least 37")


def test_recovery_after_a_circle_with_somebody_who_never_agreed(tmp_path: Path) -> None:
    Sites(tmp_path).study(*"abcd")
    willing = Sites(tmp_path, agree="bcd")
    with pytest.raises(ReleaseRefusedError, match="a would be shown"):
        willing.study(*"bcd", protection=MaskedWithRecovery())


def test_a_word_can_be_taken_back(tmp_path: Path) -> None:
    Sites(tmp_path, agree="d").study(*"abcd")
    sites = Sites(tmp_path)  # d has removed the exception, and takes part once more
    sites.study(*"abcd")
    with pytest.raises(ReleaseRefusedError, match="d "):
        sites.study(*"abc")


def test_manifests_that_are_older_than_what_was_opened_since(tmp_path: Path) -> None:
    """The coordinator collects manifests of one study, opens another in between, and goes on with the first."""
    sites = Sites(tmp_path)
    table = sites.table(*"abcd")
    for name, node in table.nodes.items():
        answer = node.answer("advertise", table.machine.asked[name])
        table.machine.accept(name, "advertise", replace(answer, bulk=b""), InMemory(answer.bulk))
    table.machine.close()
    sites.study(*"bcd")
    with pytest.raises(ProtectionError, match="meanwhile"):
        table.nodes["b"].answer("commit", table.machine.asked["b"])


def test_two_studies_at_once_do_not_both_pass(tmp_path: Path) -> None:
    """Both are judged before either is noted; each is judged again, and noted, in one step before its upload."""
    sites = Sites(tmp_path)
    tables = [sites.table(*"abcd"), sites.table(*"bcd")]
    for phase in ("advertise", "commit"):
        for table in tables:
            for name, node in table.nodes.items():
                answer = node.answer(phase, table.machine.asked[name])
                table.machine.accept(name, phase, replace(answer, bulk=b""), InMemory(answer.bulk))
            table.machine.close()
    first, second = tables
    assert first.nodes["b"].answer("upload", first.machine.asked["b"]).bulk
    with pytest.raises(ProtectionError):
        second.nodes["b"].answer("upload", second.machine.asked["b"])


def test_a_circle_that_never_uploaded_is_not_remembered(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    table = sites.table(*"abcd")
    for name, node in table.nodes.items():
        answer = node.answer("advertise", table.machine.asked[name])
        table.machine.accept(name, "advertise", replace(answer, bulk=b""), InMemory(answer.bulk))
    table.machine.close()
    for name in "abc":  # d says no more
        table.nodes[name].answer("commit", table.machine.asked[name])
    assert PastSums(tmp_path / "a.json").known().rows == ()
    sites.study(*"abc")


def test_rows_of_strangers_cost_nobody_anything(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    lies = PastSums(tmp_path / "d.json")
    strangers = tuple(sorted(f"stranger-{index:04d}" for index in range(1000)))
    lies.decide(lambda _: Known(rows=(strangers, tuple(sorted((*strangers, "d"))))))
    begun = time.monotonic()
    with pytest.raises((ReleaseRefusedError, ProtectionError)):
        sites.study(*"abcd")
    assert time.monotonic() - begun < 5
