"""Turns of circles, beside each other: what is measured, what is recorded, and what bounds the work that is open."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coordinator.attempt
import coordinator.attempts
import coordinator.shared_model
import node.service
from coordinator.buffered import pause_after_turns
from node.attempt import Participation
from node.config import NodeFile
from node.kept import KeptUpdate
from node.privacy import plan_here
from node.training.jobs import Job, Result
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.errors import RefusedError, SecureFLError
from secure_fl.results.record import RoundRecord, StudyRecord
from secure_fl.results.turns import circle_turns
from secure_fl.rounds import RoundKind
from tests.attacks.test_attacks import EvilCoordinator, against_a_node
from tests.coordinator.test_buffered_rounds import (
    FIRST,
    ROUNDS,
    SECOND,
    SlowTraining,
    first_version,
    last_version,
    play,
    trained,
    turns_of,
    update_of,
)
from tests.support.budgets import PRIVACY, Counting, computed, counted, entries_of
from tests.support.federation import FaultyStore, Federation, Killed
from tests.support.training import FakeTraining, Faults

EVERYBODY = (*FIRST, *SECOND)


def run(
    folder: Path, executors: dict[str, Any], *, share: str = "aggregate", **settings: dict[str, Any]
) -> tuple[StudyRecord, Federation]:
    """Eight sites in two circles, each with a training of its own."""

    async def scenario() -> tuple[StudyRecord | None, Federation]:
        table: dict[str, Any] = {"rounds": {**ROUNDS}, "metrics": {"share": share}, **settings}
        table["protection"] = {"kind": "masked", "recovery": False, **settings.get("protection", {})}
        fed = Federation(folder, table, nodes=8)
        for name in fed.names:
            fed.start_node(name, executor=executors[name])
        try:
            return await asyncio.wait_for(fed.coordinate(), 60), fed
        finally:
            await fed.close()

    record, fed = asyncio.run(scenario())
    assert record is not None
    return record, fed


def test_whoever_was_still_training_at_the_last_flush_is_not_said_to_sit_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its upload is too late, and it says so. That is no news: the study has no use for it."""
    close, late = coordinator.attempt.AttemptRunner.close, []

    async def closed(self: coordinator.attempt.AttemptRunner, error: SecureFLError) -> None:
        await close(self, error)
        for name in self.plan.invited:
            late.append(name)
            self.sit_out(name, error.code)

    monkeypatch.setattr(coordinator.attempt.AttemptRunner, "close", closed)
    executors = {name: SlowTraining(0.0 if name in FIRST else 1.0) for name in EVERYBODY}
    record, fed = run(tmp_path, executors, rounds={**ROUNDS, "flushes": 2})
    assert record.outcome == "finished"
    assert set(SECOND) <= set(late)
    assert "sat-out" not in [kind for kind, _ in fed.events]


class Measuring(FakeTraining):
    """As many samples and as good a model as it is told."""

    def __init__(self, samples: int, accuracy: float) -> None:
        super().__init__()
        self._samples, self._accuracy = samples, accuracy

    async def run(self, job: Job) -> Result:
        result = await super().run(job)
        metrics = replace(result.metrics, samples=self._samples, accuracy=self._accuracy, loss=self._accuracy)
        return replace(result, samples=self._samples, metrics=metrics)


def measuring() -> dict[str, Any]:
    """The first circle has many samples and does badly."""
    return {name: Measuring(90, 0.25) if name in FIRST else Measuring(45, 0.75) for name in EVERYBODY}


@pytest.mark.parametrize("share", ["aggregate", "per-node"])
def test_a_flush_of_several_turns_has_the_mean_of_all_their_sites(tmp_path: Path, share: str) -> None:
    """The same that a synchronous round of the same sites has, whatever the sites weigh in the model."""
    rounds = {**ROUNDS, "flushes": 2, "buffer": 2, "flush_after": 20}
    protection = {"reference_samples": 90}
    found: list[RoundRecord] = []
    for mode in ("buffered", "sync"):
        settings: dict[str, Any] = {
            "rounds": {**(rounds if mode == "buffered" else ROUNDS), "mode": mode},
            "protection": protection,
        }
        record, _ = run(tmp_path / mode, measuring(), share=share, **settings)
        found.append(trained(record)[0])
    buffered, sync = found
    assert [turn.turn for turn in buffered.circles] == [1, 1]
    assert buffered.mean_loss == pytest.approx(sync.mean_loss, abs=1e-12)
    assert buffered.mean_loss is not None
    assert buffered.mean_loss == pytest.approx(0.5, abs=1e-3)  # Of one circle it would be 0.25 or 0.75.


@pytest.mark.parametrize("merge", ["cache", "delta"])
def test_a_flush_of_all_fresh_circles_makes_the_model_of_a_synchronous_round(tmp_path: Path, merge: str) -> None:
    """Sites of the second circle weigh less, and so does the circle."""
    made = {}
    for mode in ("buffered", "sync"):
        rounds = {**ROUNDS, "mode": mode, "merge": merge, "buffer": 2, "flush_after": 20}
        _, fed = run(
            tmp_path / mode,
            measuring(),
            rounds=rounds,
            protection={"reference_samples": 90},
            study={"rounds": 1},
        )
        made[mode] = last_version(fed)
    step = (fed.study.protection.clip or 1.0) / 2 ** (fed.study.protection.bits - 1)
    for name, vector in made["buffered"].items():
        np.testing.assert_allclose(vector, made["sync"][name], rtol=0, atol=2 * step)
    weights = {name: 64 if name in FIRST else 46 for name in EVERYBODY}  # 45 of 90 samples, and the floor of four
    first = first_version(fed)
    changes = [update_of(name, 1, first) for name in EVERYBODY]
    for name, vector in made["buffered"].items():
        mean = np.average([change[name] for change in changes], axis=0, weights=list(weights.values()))
        np.testing.assert_allclose(vector, first[name] + mean, rtol=0, atol=2 * step)
        assert np.abs(mean - np.mean([change[name] for change in changes], axis=0)).max() > 10 * step


def test_a_turn_records_when_it_began_when_uploads_came_and_which_blocks_were_sent(tmp_path: Path) -> None:
    strategy = {"name": "aifed", "gating": "public", "keep": 0.5, "full_every": 3}
    record, fed = run(tmp_path, {name: FakeTraining() for name in EVERYBODY}, strategy=strategy, study={"rounds": 6})
    assert sum(record.blocks.values()) == record.shared_parameters > 0
    asked = Counter(bool(turn.asked) for entry in trained(record) for turn in entry.circles)
    assert asked[True] >= 2
    assert asked[False] >= 2
    everything = [entry for entry in trained(record) if not entry.circles[0].asked]
    some = [entry for entry in trained(record) if all(turn.asked for turn in entry.circles)]
    assert max(max(node.bytes_up for node in entry.nodes) for entry in some) < min(
        min(node.bytes_up for node in entry.nodes) for entry in everything
    )
    before = 0.0
    for entry in trained(record):
        assert entry.blocks_kept == ()  # A block that nobody was asked for was not held back.
        assert entry.committed is not None
        assert entry.committed >= before
        before = entry.committed
        for turn in entry.circles:
            assert set(turn.asked) <= record.blocks.keys()
            came = [node.uploaded for node in entry.nodes if node.name in turn.members]
            assert turn.began is not None
            # A file system's clock may be a little behind.
            assert all(when is not None and turn.began - 0.1 <= when <= entry.committed + 0.1 for when in came)
    assert StudyRecord.load(fed.workspace.study_state / "record.json") == record


# --- what bounds the work that is open --------------------------------------------------------------------------


def test_the_buffer_holds_one_turn_of_each_circle_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much a flush is told to wait for: a circle is free again only when its turn was flushed.

    So uploads of at most one attempt for each circle rest on the coordinator's disk, and each member has one.
    """
    attempts, uploads = [0], [0]
    begin, commit = coordinator.attempts.OpenAttempts.plan, FaultyStore.commit_round

    async def looked(self: Any, number: int, kind: RoundKind, *arguments: Any, **named: Any) -> Any:
        attempt = await begin(self, number, kind, *arguments, **named)
        if kind is RoundKind.TRAIN:
            attempts.append(len(list(self)))
        return attempt

    def looked_at_the_disk(self: Any, *arguments: Any, **named: Any) -> None:
        spools = list((tmp_path / "run").glob("coordinator/**/spool"))
        assert len(spools) == 1
        folders = list(spools[0].iterdir())
        uploads.append(max(len([path for path in folder.rglob("*") if path.is_file()]) for folder in folders))
        assert len(folders) <= 2
        commit(self, *arguments, **named)

    monkeypatch.setattr(coordinator.attempts.OpenAttempts, "plan", looked)
    monkeypatch.setattr(FaultyStore, "commit_round", looked_at_the_disk)

    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name, executor=SlowTraining(0.2 if name in FIRST else 0.0))
        return await fed.coordinate()

    record, _ = play(tmp_path, scenario, rounds={"flushes": 4, "buffer": 50}, turns=4)
    # A flush is due when nobody is left who could bring another turn: that is with one of each circle.
    assert [len(entry.circles) for entry in trained(record)] == [2, 2, 2, 2]
    assert max(attempts) == 2
    assert max(uploads) == 4


@pytest.mark.parametrize("checked", [True, False], ids=["shipped", "without the check"])
def test_a_site_never_trains_for_two_attempts_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """Whatever the coordinator announces in the middle of a training: it ends before the next one begins."""
    if not checked:
        monkeypatch.setattr(node.service, "_after", lambda _, current: current.run())
    running, most, begun = 0, 0, 0

    class Lasting(FakeTraining):
        async def run(self, job: Job) -> Result:
            nonlocal running, most, begun
            running, begun = running + 1, begun + 1
            most = max(most, running)
            try:
                await asyncio.sleep(1.0 if begun < 3 else 0.0)
                return await super().run(job)
            except asyncio.CancelledError:
                await asyncio.sleep(0.3)  # as long as a training process may take to die
                raise
            finally:
                running -= 1

    async def scenario(evil: EvilCoordinator, _task: Any, _node: Any) -> None:
        for attempt in (1, 2, 3):
            evil.announce(attempt=attempt)
            while begun < attempt:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await evil.next_upload(1)

    against_a_node(tmp_path, scenario, training=Lasting())
    assert begun == 3
    assert (most == 1) is checked


# --- what a turn's number and its version are for ---------------------------------------------------------------


def test_training_is_told_the_version_it_begins_from_and_not_only_its_own_turn(tmp_path: Path) -> None:
    jobs: list[Job] = []
    merged = asyncio.Event()  # a turn of the other circle: its second one begins

    class First(FakeTraining):
        async def run(self, job: Job) -> Result:
            if job.round == 2:
                merged.set()
            return await super().run(job)

    class Second(Counting):
        async def run(self, job: Job) -> Result:
            if job.round == 4:
                await merged.wait()
            return await super().run(job)

    executors = {name: Second(jobs) if name in SECOND else First() for name in EVERYBODY}
    record, _ = run(tmp_path, executors, study={"rounds": 8}, rounds={**ROUNDS, "flushes": 8})
    bases = {turn.turn: turn.base for entry in trained(record) for turn in entry.circles if turn.members == SECOND}
    found = {(job.me, job.round): job.version for job in jobs if job.round in bases}
    assert found == {(name, number): base for name in SECOND for number, base in bases.items()}
    assert any(base != number - 1 for number, base in bases.items() if number), "the other circle made no version"


def test_a_private_study_is_planned_for_all_turns_that_a_site_can_take(tmp_path: Path) -> None:
    """Also those that are dropped, because they were too stale, count among them. No number of flushes adds any."""
    turns, jobs = 3, list[Job]()

    class Slow(Counting):
        async def run(self, job: Job) -> Result:
            result = await super().run(job)
            await asyncio.sleep(0.4 if job.me in FIRST else 0.05)
            return result

    rounds = {**ROUNDS, "flushes": 50, "staleness": 0}
    record, fed = run(
        tmp_path,
        {name: Slow(jobs) for name in EVERYBODY},
        share="none",
        study={"rounds": turns},
        rounds=rounds,
        privacy=PRIVACY,
        task={"name": "digits"},
    )
    dropped = [facts for kind, facts in fed.events if kind == "round-void" and facts["reason"] == "StaleTurn"]
    assert dropped
    assert len(turns_of(record)) + len(dropped) == 2 * turns
    for name in EVERYBODY:
        plan = plan_here(NodeFile.read(fed.workspace.node_file(name)), fed.study)
        assert plan is not None
        assert plan.rounds == turns
        mine = [job.round for job in jobs if job.me == name]
        assert sorted(mine) == list(range(1, turns + 1)), "a circle takes every turn, and each once"
        assert computed(jobs, name) == counted(fed, name) == turns * plan.epochs * plan.mechanism.epoch_steps
        assert any(entry.kind == "sent" for entry in entries_of(fed, name))


# --- who is away ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", ["delta", "cache"])
def test_a_turn_whose_attempt_failed_still_has_its_version_after_others_have_made_many(
    tmp_path: Path, merge: str
) -> None:
    """A site is gone for so long that its circle's attempt is over, and has to fetch what the turn began from again."""

    async def scenario(fed: Federation) -> StudyRecord | None:
        faults = Faults("train", 2)
        fed.start_node(FIRST[0], faults)
        for name in fed.names[1:]:
            fed.start_node(name, executor=SlowTraining(0.05))
        study = asyncio.create_task(fed.coordinate(grace=0.2))
        await asyncio.wait_for(faults.fired.wait(), 20)
        committed = versions(fed)
        while versions(fed) < committed + 3 or not void(fed, 2):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        fed.start_node(FIRST[0], executor=SlowTraining(0.05))
        return await study

    record, fed = play(
        tmp_path, scenario, rounds={"flushes": 50, "merge": merge, "patience": 0, "deadline": 40}, turns=12
    )
    assert void(fed, 2)
    ages = {number: age for circle, number, age in turns_of(record) if circle == FIRST[0]}
    assert sorted(ages) == list(range(1, 13))
    assert ages[2] >= 3


def test_a_circle_that_is_not_complete_begins_from_the_newest_version_once_it_is(tmp_path: Path) -> None:
    """What others made while it waited for its sites is not missed, and does not make its turn old."""

    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            if name != FIRST[0]:
                fed.start_node(name, executor=SlowTraining(0.05))
        study = asyncio.create_task(fed.coordinate())
        while versions(fed) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        fed.start_node(FIRST[0], executor=SlowTraining(0.05))
        return await study

    record, _ = play(tmp_path, scenario, rounds={"flushes": 50}, turns=7)
    bases = {turn.turn: turn.base for entry in trained(record) for turn in entry.circles if turn.members == FIRST}
    assert set(bases) == set(range(1, 8))
    assert (bases[1] or 0) >= 4


def test_a_circle_that_is_gone_for_good_does_not_cost_the_study(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            if name != FIRST[0]:
                fed.start_node(name)
        return await fed.coordinate()

    rounds = {"flushes": 50, "patience": 1, "deadline": 2, "phase_deadline": 1}
    record, _ = play(tmp_path, scenario, rounds=rounds, turns=3)
    assert record.outcome == "finished"
    assert [turn.turn for entry in trained(record) for turn in entry.circles] == [1, 2, 3]
    assert record.rounds[-1].kind is RoundKind.EVALUATE
    assert set(record.rounds[-1].cohort) == set(SECOND)
    assert {circle.members: circle.turns for circle in circle_turns(record)} == {FIRST: 0, SECOND: 3}


def test_what_was_too_stale_is_in_the_record_with_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, str, int]] = []  # turn, site, bytes
    count = coordinator.attempt.AttemptRunner._count

    def counted_too(self: Any, node: str, *, up: int = 0, down: int = 0) -> None:
        count(self, node, up=up, down=down)
        if self.plan.kind is RoundKind.TRAIN:
            sent.append((self.plan.number, node, up))

    merge, abort = coordinator.shared_model.SharedModel.merge, FaultyStore.abort_attempt

    def slowly(self: Any, turns: Any) -> Any:
        time.sleep(0.2)  # Turns come to nothing while a version is made.
        return merge(self, turns)

    def aborted_meanwhile(self: Any, *arguments: Any, **named: Any) -> None:
        time.sleep(0.15)
        abort(self, *arguments, **named)

    monkeypatch.setattr(coordinator.attempt.AttemptRunner, "_count", counted_too)
    monkeypatch.setattr(coordinator.shared_model.SharedModel, "merge", slowly)
    monkeypatch.setattr(FaultyStore, "abort_attempt", aborted_meanwhile)

    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name, executor=SlowTraining(0.8 if name in FIRST else 0.02))
        return await fed.coordinate()

    rounds = {"flushes": 20, "staleness": 1, "flush_after": 0.1}
    record, fed = play(tmp_path, scenario, rounds=rounds, turns=19)
    slow = next(circle for circle in circle_turns(record) if circle.members == FIRST)
    dropped = [turn for entry in trained(record) for turn in entry.circles if not turn.opened]
    assert dropped
    assert slow.dropped == len(dropped)
    assert {(turn.members, turn.reason) for turn in dropped} == {(FIRST, "StaleTurn")}
    happened = [(kind, facts.get("round")) for kind, facts in fed.events if kind in ("round-void", "round-committed")]
    versions_made = [place for place, (kind, _) in enumerate(happened) if kind == "round-committed"]
    void = {number for kind, number in happened[: versions_made[-4]] if kind == "round-void"}
    assert void
    assert void <= {turn.turn for turn in dropped}  # whenever it came to nothing, one of the next versions tells of it
    # Bytes of what was dropped count where the circle is heard next.
    heard = [turn.turn or 0 for entry in trained(record) for turn in entry.circles if turn.opened]
    last = max(t.turn or 0 for entry in trained(record) for t in entry.circles if t.opened and t.members == FIRST)
    assert len(heard) < sum(circle.turns + circle.dropped for circle in circle_turns(record))
    for site in FIRST:
        told = sum(node.bytes_up for entry in trained(record) for node in entry.nodes if node.name == site)
        assert told == sum(up for turn, node, up in sent if node == site and turn <= last) > 0
    assert StudyRecord.load(fed.workspace.study_state / "record.json") == record


def test_nobody_trains_on_for_a_turn_that_is_too_old(tmp_path: Path) -> None:
    """As soon as a version makes it so its sites are told, and begin again from the newest."""
    ended: list[int] = []

    class Endless(FakeTraining):
        async def run(self, job: Job) -> Result:
            if job.kind is RoundKind.TRAIN and job.round == 1:
                try:
                    await asyncio.sleep(90)
                finally:
                    ended.append(job.round)
            return await super().run(job)

    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name, executor=Endless() if name == FIRST[0] else SlowTraining(0.05))
        return await fed.coordinate()

    record, _ = play(tmp_path, scenario, rounds={"flushes": 12, "staleness": 2}, turns=12)
    assert ended == [1]
    dropped = [turn for entry in trained(record) for turn in entry.circles if not turn.opened]
    assert (dropped[0].turn, dropped[0].reason) == (1, "StaleTurn")
    assert any(circle == FIRST[0] and number > 1 for circle, number, _ in turns_of(record))


def test_what_was_opened_is_in_the_model_also_if_nobody_else_comes(tmp_path: Path) -> None:
    """A flush is to be of two turns, and one circle is never complete: after `patience` the other's turns do."""

    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            if name != FIRST[0]:
                fed.start_node(name)
        return await fed.coordinate()

    rounds = {"flushes": 50, "buffer": 2, "patience": 0.5, "deadline": 1, "phase_deadline": 0.5, "attempts": 100}
    record, _ = play(tmp_path, scenario, rounds=rounds, turns=2)
    assert record.outcome == "finished"
    assert [(turn.members, turn.turn) for entry in trained(record) for turn in entry.circles] == [
        (SECOND, 1),
        (SECOND, 2),
    ]


def test_turns_are_not_used_up_while_there_is_no_newer_model(tmp_path: Path) -> None:
    """The same turn is tried again, for as long as the study's patience lasts; and no model is no finished study."""

    class Refusing(FakeTraining):
        async def run(self, job: Job) -> Result:
            raise RefusedError("never")

    async def scenario() -> tuple[StudyRecord | None, Federation]:
        rounds = {**ROUNDS, "attempts": 2, "patience": 1.5, "deadline": 1, "phase_deadline": 0.5}
        protection = {"kind": "masked", "recovery": False}
        fed = Federation(tmp_path, {"study": {"rounds": 3}, "rounds": rounds, "protection": protection}, nodes=4)
        for name in fed.names:
            fed.start_node(name, executor=Refusing() if name == FIRST[0] else FakeTraining())
        try:
            return await asyncio.wait_for(fed.coordinate(), 60), fed
        finally:
            await fed.close()

    record, fed = asyncio.run(scenario())
    assert record is None
    assert [facts["code"] for kind, facts in fed.events if kind == "study-failed"] == ["StudyAborted"]
    tried = [facts["round"] for kind, facts in fed.events if kind == "round-void"]
    assert len(tried) > 2
    assert set(tried) == {1}


def test_a_circle_whose_turns_keep_failing_rests_longer_and_longer() -> None:
    assert [pause_after_turns(failed) for failed in range(5)] == [0, 0, 30, 60, 120]
    assert pause_after_turns(10_000) == 3600


def test_a_circle_rests_between_turns_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first three turns fail; each is given up because the other circle has made a newer version meanwhile."""
    sleep, rests = asyncio.sleep, list[float]()

    async def shortened(seconds: float, result: Any = None) -> Any:
        if seconds >= 30:
            rests.append(seconds)
            seconds = 0.0
        return await sleep(seconds, result)

    monkeypatch.setattr(asyncio, "sleep", shortened)
    begun = {number: asyncio.Event() for number in range(1, 5)}

    async def scenario(fed: Federation) -> StudyRecord | None:
        class Refusing(FakeTraining):
            async def run(self, job: Job) -> Result:
                if job.kind is RoundKind.TRAIN:
                    begun[job.round].set()
                    while job.round < 4 and versions(fed) < job.round:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    if job.round < 4:
                        raise RefusedError("not this one")
                return await super().run(job)

        class Following(FakeTraining):
            async def run(self, job: Job) -> Result:
                if job.kind is RoundKind.TRAIN:
                    await begun[job.round].wait()
                return await super().run(job)

        for name in fed.names:
            fed.start_node(name, executor=Refusing() if name == FIRST[0] else Following())
        return await fed.coordinate()

    record, _ = play(tmp_path, scenario, rounds={"flushes": 50, "attempts": 1}, turns=4)
    assert [turn.turn for entry in trained(record) for turn in entry.circles if not turn.opened] == [1, 2, 3]
    assert rests == [30, 60]


def test_a_mean_that_no_sites_can_have_is_not_merged_and_costs_nobody_else_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sites say that they weigh little and send the most that fits. Under masks it shows in what they open alone."""
    half = Participation._encoded_half

    def beyond(self: Participation, kept: KeptUpdate) -> Any:
        if self._number == 1 and self._services.me.certificate.name in FIRST:
            most = 2 ** (self._study.protection.bits - 1) - 1
            blocks = {name: np.full_like(values, most) for name, values in kept.blocks.items()}
            kept = replace(kept, blocks=blocks, weight=WEIGHT_UNITS * 3 // 4)
        return half(self, kept)

    monkeypatch.setattr(Participation, "_encoded_half", beyond)

    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name)
        return await fed.coordinate()

    rounds = {"flushes": 50, "buffer": 2, "flush_after": 0.5, "attempts": 1}
    record, _ = play(tmp_path, scenario, rounds=rounds, turns=3)
    lost = [turn for entry in trained(record) for turn in entry.circles if not turn.opened]
    assert [(turn.members, turn.turn, turn.reason) for turn in lost] == [(FIRST, 1, "OverflowInvariant")]
    merged = [(circle, number) for circle, number, _ in turns_of(record)]
    assert sorted(merged) == [(FIRST[0], 2), (FIRST[0], 3), (SECOND[0], 1), (SECOND[0], 2), (SECOND[0], 3)]


@pytest.mark.parametrize("killed", [False, True], ids=["one life", "killed in between"])
def test_a_circle_that_fails_again_and_again_goes_on_from_a_newer_model(tmp_path: Path, killed: bool) -> None:
    """A site that is there and cannot take part in a turn: its circle does not try it for ever."""

    class Refusing(FakeTraining):
        async def run(self, job: Job) -> Result:
            if job.kind is RoundKind.TRAIN and job.round == 1:
                raise RefusedError("not this one")
            return await super().run(job)

    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name, executor=Refusing() if name == FIRST[0] else SlowTraining(0.3))
        if killed:
            with pytest.raises(Killed):
                await fed.coordinate(Faults("after:abort_attempt", 2))  # its second, and last
        return await fed.coordinate()

    record, _ = play(tmp_path, scenario, rounds={"flushes": 12, "attempts": 2}, turns=12)
    lost = [turn for entry in trained(record) for turn in entry.circles if not turn.opened]
    if not killed:  # Lines that no version has told of yet are not kept.
        (turn,) = lost
        assert (turn.members, turn.turn) == (FIRST, 1)
        assert turn.attempts >= 2  # and as many more as it took the other circle to make a version
    mine = [(number, staleness) for circle, number, staleness in turns_of(record) if circle == FIRST[0]]
    assert [number for number, _ in mine] == list(range(2, 2 + len(mine)))
    assert mine


def void(fed: Federation, number: int) -> bool:
    return any(kind == "round-void" and facts["round"] == number for kind, facts in fed.events)


def versions(fed: Federation) -> int:
    return sum(kind == "round-committed" for kind, _ in fed.events)
