"""Buffered rounds among real processes: eight nodes in two circles, one of them slow, two of them killed and back, and
the coordinator killed at every step of a flush.

    ./scripts/test -m slow tests/end_to_end/test_buffered.py     # every protection, every step, digits and torch
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.store import Store
from secure_fl import tasks
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Blocks
from secure_fl.encoding.metrics import METRICS_BLOCK
from secure_fl.encoding.update import decode_sums
from secure_fl.encoding.weights import WEIGHT_UNITS, whole_weight
from secure_fl.protect.sealed.terms import Terms
from secure_fl.results.record import CircleRound, RoundRecord, StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.strategies.merging import Arrival, own_part, with_own_part
from secure_fl.strategies.state import State
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.start import start_of
from tests.support.processes import Processes
from tests.support.watched_party import Copies

FIRST = tuple(f"site-0{index}" for index in range(1, 5))
SECOND = tuple(f"site-0{index}" for index in range(5, 9))
SLOW, LEAVING = FIRST[1], (FIRST[0], FIRST[2])
# In the order in which a coordinator comes by: the last answer, the end of a phase (which may be the last one: the sum
# is open then), the next version's files, its transaction, what is tidied up, the next turn.
EVERY_STEP = (
    "after:add_answer/9", "after:close_phase/3", "before:put_model/1", "after:put_model/1", "after:put_state/1",
    "before:commit_round/1", "after:commit_round/1", "after:clear_uploads/1", "before:prune/1", "after:prune/1",
    "before:save_record/1", "after:save_record/1", "before:begin_attempt/1", "after:begin_attempt/1",
)  # fmt: skip


class Buffered:
    """One study, and what its parties opened and trained."""

    def __init__(self, folder: Path, settings: dict[str, Any], *, turns: int, training: str = "fake") -> None:
        opened, kept = folder / "opened", folder / "kept"
        for made in (opened, kept):
            made.mkdir()
        self.opened, self.kept = Copies(opened), Copies(kept)
        self._node = {
            "SECURE_FL_TEST_KEPT": str(kept), "SECURE_FL_TEST_SECONDS": "0.2", "SECURE_FL_TEST_KNOCK": "0.5"
        }  # fmt: skip
        self._coordinator = {"SECURE_FL_TEST_OPENED": str(opened)}
        table = {
            "study": {"rounds": turns},
            # Not the end of the study: that is when both circles have taken all their turns.
            "rounds": {"mode": "buffered", "flushes": 3 * turns, "deadline": 60, "phase_deadline": 30, "gather": 60},
            "metrics": {"share": "aggregate"},
            "simulation": {"nodes": 8, "slow": {SLOW: 5.0}},
            **settings,
        }
        self.fed = Processes(folder / "run", table, nodes=8, training=training, grace=2.0)
        self.study = self.fed.workspace.study
        assert self.study.circles() == (FIRST, SECOND)

    def start(self, names: tuple[str, ...]) -> None:
        """The coordinator and these nodes."""
        self.fed.start_coordinator(**self._coordinator)
        self.start_nodes(names)

    def start_nodes(self, names: tuple[str, ...]) -> None:
        """Start nodes, or start them again."""
        for name in names:
            self.fed.start_node(name, **self._node)

    def next_version(self) -> CircleRound:
        """Wait for one; returns the turn that it is made of, or the last one of several."""
        fields = self.fed.wait_event("round-committed", seconds=150)["circles"][-1]
        return CircleRound(**{**fields, "members": tuple(fields["members"])})

    def die_at(self, point: str) -> None:
        """Have the coordinator killed at a step, whatever it is doing now, and wait until it is dead."""
        if self.fed.children["coordinator"].poll() is None:
            self.fed.kill("coordinator")
        child = self.fed.start_coordinator(**self._coordinator, SECURE_FL_TEST_DIE=point)
        assert child.wait(150) == -9, f"{point}: {self.fed.log('coordinator')[-2000:]}"

    def finish(self) -> StudyRecord:
        """Start the coordinator for the last time, and wait for the end of the study."""
        self.fed.start_coordinator(**self._coordinator)
        return self.fed.finish(seconds=240)


def play(run: Buffered, points: tuple[str, ...], *, versions_alone: int) -> StudyRecord:
    """Two sites leave in the middle of a turn and return; then the coordinator dies at one step after the other."""
    with run.fed:
        run.start(FIRST)
        run.fed.wait_event("answered", seconds=150, node=LEAVING[0])
        for name in LEAVING:
            run.fed.kill(name)
        run.start_nodes(SECOND)  # not before: on a busy machine it might have no turns left when the others are gone
        wait_for_the_other_circle(run, versions_alone)
        run.start_nodes(LEAVING)
        while run.next_version().members != FIRST:
            pass
        for point in points:
            run.die_at(point)
        record = run.finish()
        check(run, record, restarts=len(points) + 1)
        return record


def wait_for_the_other_circle(run: Buffered, versions: int) -> None:
    """While a circle is not complete, the other one makes version after version. The first may have been complete when
    its sites were killed: then one of its turns is still merged, and no other.
    """
    alone: list[CircleRound] = []
    late = 0
    while len(alone) < versions:
        turn = run.next_version()
        if turn.members == FIRST:
            late += 1
            alone.clear()
        else:
            alone.append(turn)
    assert late <= 1
    assert all(turn.staleness == 0 for turn in alone[1:])


def check(run: Buffered, record: StudyRecord, *, restarts: int) -> None:
    """No turn is lost or merged twice, nobody waited for the other circle, and every version is what it should be."""
    assert record.outcome == "finished"
    merged = [(entry.number, circle) for entry in trained(record) for circle in entry.circles if circle.opened]
    turns = run.study.study.rounds
    for members in (FIRST, SECOND):
        assert [turn.turn for _, turn in merged if turn.members == members] == list(range(1, turns + 1))
    assert not [path for path in (run.fed.workspace.study_state / "spool").rglob("*") if path.is_file()]
    went_on = [version == following.base for version, following in in_one_life(run, merged)]
    assert all(went_on), "the faster circle did not go on at once"
    assert len(went_on) >= turns - 1 - restarts >= 3  # a restart comes between two turns of the circle, or none
    for turn in (turn for _, turn in merged):
        check_sum(run, turn)
    check_versions(run, record)


def in_one_life(run: Buffered, merged: list[tuple[int, CircleRound]]) -> list[tuple[int, CircleRound]]:
    """Of the faster circle: each version that it made, and its next turn, where the coordinator lived through both.

    After a restart the circle waits, until its own sites have dialled again.
    """
    fast = [(version, turn) for version, turn in merged if turn.members == SECOND]
    lives = [run.opened.lives(SECOND[0], turn.turn or 0) for _, turn in fast]
    return [
        (version, following)
        for (version, _), (_, following), before, after in zip(fast, fast[1:], lives, lives[1:], strict=False)
        if after == before[-1:]
    ]


def check_sum(run: Buffered, turn: CircleRound) -> None:
    """What a turn opened is the sum of what its sites kept for it: each of them once."""
    assert turn.turn is not None
    opened = run.opened.opened(turn.members[0], turn.turn)
    kept = [run.kept.kept(site, turn.turn) for site in turn.members]
    noise = 0
    if run.study.protection.kind == "sealed":
        noise = Terms.among(RequestKind.SUM, nodes=len(turn.members), bits=run.study.protection.bits).noise
    for name, block in opened.items():
        expected = np.sum([blocks[name].astype(np.int64) for blocks, _ in kept], axis=0)
        assert np.abs(block.total - expected).max() <= noise
        assert block.weight == sum(weight for _, weight in kept)
        assert block.contributors == len(turn.members)
        # The bound would notice a site that is missing, or that counts twice.
        least = min(np.abs(blocks[name]).max() for blocks, _ in kept)
        assert noise < least or name == METRICS_BLOCK


def check_versions(run: Buffered, record: StudyRecord) -> None:
    """Each version, recomputed from what the turns opened, is the one in the store, bit for bit."""
    study, resolved = run.study, ResolvedStudy.of(run.study)
    strategy = resolved.strategy
    start = start_of(tasks.create(study.task.name, study.task.settings), strategy, study.study.seed)
    merging = strategy.merging(study.rounds.merging, largest=resolved.largest_mean)
    versions: list[Blocks] = [start.blocks]
    state = State()
    store = Store.in_folder(run.fed.workspace.coordinator_state)
    for entry in trained(record):
        arrivals = [_arrival(run, resolved, turn, version=len(versions) - 1) for turn in entry.circles if turn.opened]
        means, remembered = merging.merged(versions[-1], arrivals, versions.__getitem__, state)
        blocks, own = strategy.step(versions[-1], means, own_part(remembered))
        versions.append(blocks)
        state = with_own_part(remembered, own)
        stored = store.model(study.id, version=len(versions) - 1)
        assert stored is not None
        assert stored.digest == start.layout.digest(blocks), f"version {len(versions) - 1}"
    store.close()


def _arrival(run: Buffered, resolved: ResolvedStudy, turn: CircleRound, *, version: int) -> Arrival:
    assert turn.turn is not None
    assert turn.base is not None
    assert turn.staleness == version - turn.base
    sums = run.opened.opened(turn.members[0], turn.turn)
    sums.pop(METRICS_BLOCK, None)
    return Arrival(
        circle=(FIRST, SECOND).index(turn.members),
        base=turn.base,
        staleness=turn.staleness,
        share=len(turn.members) / 8,
        weight=whole_weight(sums, sites=len(turn.members)) / (WEIGHT_UNITS * len(turn.members)),
        change=decode_sums(sums, resolved.codec),
    )


def trained(record: StudyRecord) -> list[RoundRecord]:
    return [entry for entry in record.rounds if entry.kind is RoundKind.TRAIN]


def test_no_turn_is_lost_or_used_twice_and_the_other_circle_never_waits(tmp_path: Path) -> None:
    settings = {"protection": {"kind": "masked", "recovery": False}}
    points = ("before:commit_round/1", "after:commit_round/1")
    play(Buffered(tmp_path, settings, turns=7), points, versions_alone=2)


@pytest.mark.slow
@pytest.mark.timeout(600)  # a restart for every step
@pytest.mark.parametrize("protection", ["masked", "sealed", "encrypted"])
def test_the_coordinator_may_die_at_every_step_of_a_flush(tmp_path: Path, protection: str) -> None:
    settings = {"protection": {"kind": protection, "recovery": False}}
    play(Buffered(tmp_path, settings, turns=24), EVERY_STEP, versions_alone=4)


@pytest.mark.slow
@pytest.mark.timeout(600)  # a restart for every step
@pytest.mark.parametrize("protection", ["masked", "sealed", "encrypted"])
def test_so_it_is_with_models_that_learn(tmp_path: Path, protection: str) -> None:
    settings = {"protection": {"kind": protection, "recovery": False}, "task": {"name": "digits"}}
    points = ("after:close_phase/3", "after:put_state/1", "before:commit_round/1", "after:commit_round/1")
    record = play(Buffered(tmp_path, settings, turns=12, training="real"), points, versions_alone=4)
    last = record.rounds[-1]
    assert last.kind is RoundKind.EVALUATE
    assert last.global_accuracy is not None
    assert last.global_accuracy > 0.5
