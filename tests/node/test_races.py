"""A node does its work in threads: what overlaps there must not show.

Each of these was possible. Threads are made slow where a busy disk or a large model makes them slow.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import node.store
from node.attempt import Participation
from node.config import NodeFile
from node.kept import KeptUpdate
from node.service import Node
from node.store import StudyStore
from node.training.jobs import Job, Result
from secure_fl.errors import RefusedError
from secure_fl.files import write_atomically
from secure_fl.privacy.accountant import SiteAccountant
from secure_fl.privacy.ledger import read_ledger
from secure_fl.protect.contract import NodeHalf
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from tests.attacks.test_attacks import INITIAL, EvilCoordinator, _Fixed
from tests.support.federation import Federation
from tests.support.training import FakeTraining

Scenario = Callable[[Federation, EvilCoordinator, Node], Awaitable[None]]


class Slow(FakeTraining):
    """Never ends in the first attempt."""

    async def run(self, job: Job) -> Result:
        """Train, or not."""
        if job.attempt == 1:
            await asyncio.Event().wait()
        return await super().run(job)


def play(
    folder: Path,
    scenario: Scenario,
    training: FakeTraining | None = None,
    *,
    rounds: dict[str, Any] | None = None,
    protection: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None,
) -> None:
    """One real node against a coordinator that the test plays."""

    async def run() -> None:
        settings = {
            "study": {"rounds": 2, "initial": INITIAL},
            "rounds": {"attempts": 9, "deadline": 20, "phase_deadline": 20, **(rounds or {})},
            "protection": protection or {},
        }
        fed = Federation(folder / "run", settings)
        fed.set_policy("site-01", **(policy or {}))
        evil = EvilCoordinator(fed)
        file = NodeFile.read(fed.workspace.node_file("site-01"))
        here = Node(file, _Fixed(evil, file), training or FakeTraining())
        task = asyncio.create_task(here.run())
        try:
            assert (await asyncio.wait_for(evil.said.get(), 5)).study_answer.accepted
            await asyncio.wait_for(scenario(fed, evil, here), 40)
        finally:
            here.stop()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def close_round(evil: EvilCoordinator, attempt: int) -> None:
    body = pb.RoundClosed(round=1, attempt=attempt, committed=False, reason="")
    evil.outbox.put_nowait(pb.CoordinatorMessage(study_id=evil.fed.study.id, round_closed=body))


def close_study(evil: EvilCoordinator) -> None:
    evil.outbox.put_nowait(pb.CoordinatorMessage(study_id=evil.fed.study.id, study_closed=pb.StudyClosed()))


def offer_study(evil: EvilCoordinator) -> None:
    offer = pb.StudyOffer(settings=evil.fed.study.canonical())
    evil.outbox.put_nowait(pb.CoordinatorMessage(study_id=evil.fed.study.id, study_offer=offer))


async def until(condition: Callable[[], object], seconds: float = 5.0) -> bool:
    for _ in range(int(seconds / 0.02)):
        if condition():
            return True
        await asyncio.sleep(0.02)
    return False


def test_a_deadline_that_strikes_twice_does_not_make_a_node_deaf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = SiteAccountant.release

    def slow(self: SiteAccountant, *given: Any, **named: Any) -> None:
        time.sleep(1.0)
        release(self, *given, **named)

    monkeypatch.setattr(SiteAccountant, "release", slow)

    async def scenario(_fed: Federation, evil: EvilCoordinator, _node: Node) -> None:
        evil.announce(deadline_ms=300)
        await asyncio.sleep(0.6)
        evil.announce(deadline_ms=300)  # as to a node that has just come back, while the first deadline is struck
        await asyncio.sleep(1.5)
        evil.announce(attempt=2)
        assert await until(lambda: evil.uploads)

    play(tmp_path, scenario, Slow())


class Overlaps:
    """Which attempts began while another was still in a thread; the first one stays there for two seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running: list[tuple[int, int]] = []
        self.seen: list[tuple[int, int]] = []
        encode, check = Participation._encoded_half, Participation._check

        def slow(attempt: Participation, kept: KeptUpdate) -> Any:
            self.running.append(attempt.key)
            try:
                if attempt.key[1] == 1:
                    time.sleep(2.0)
                return encode(attempt, kept)
            finally:
                self.running.remove(attempt.key)

        def checking(attempt: Participation, announcement: pb.PhaseAnnouncement) -> None:
            if self.running:
                self.seen.append(attempt.key)
            check(attempt, announcement)

        monkeypatch.setattr(Participation, "_encoded_half", slow)
        monkeypatch.setattr(Participation, "_check", checking)


def test_a_third_attempt_does_not_begin_beside_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overlaps = Overlaps(monkeypatch)

    async def scenario(_fed: Federation, evil: EvilCoordinator, _node: Node) -> None:
        evil.announce(attempt=1)
        assert await until(lambda: overlaps.running)
        for attempt in (1, 2):
            close_round(evil, attempt)
            await asyncio.sleep(0.05)
            evil.announce(attempt=attempt + 1)
            await asyncio.sleep(0.05)
        assert await until(lambda: evil.uploads)
        assert [(header.round, header.attempt) for header in evil.uploads] == [(1, 3)]
        assert not overlaps.seen

    play(tmp_path, scenario)


def test_a_study_that_is_offered_again_waits_for_its_last_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlaps = Overlaps(monkeypatch)

    async def scenario(_fed: Federation, evil: EvilCoordinator, _node: Node) -> None:
        evil.announce(attempt=1)
        assert await until(lambda: overlaps.running)
        close_study(evil)
        offer_study(evil)
        assert (await asyncio.wait_for(evil.said.get(), 5)).study_answer.accepted
        evil.announce(attempt=2)
        assert await until(lambda: evil.uploads)
        assert not overlaps.seen

    play(tmp_path, scenario)


def test_a_late_write_does_not_give_an_attempt_two_cohorts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, entered, landed = write_atomically, threading.Event(), threading.Event()

    def slow(path: Path, content: bytes, **named: Any) -> None:
        first = path.name == "cursor.json" and json.loads(content)[1] == 1 and not entered.is_set()
        if first:
            entered.set()
            time.sleep(2.0)
        write(path, content, **named)
        if first:
            landed.set()

    monkeypatch.setattr(node.store, "write_atomically", slow)

    async def scenario(fed: Federation, evil: EvilCoordinator, _node: Node) -> None:
        evil.announce(attempt=1)
        assert await asyncio.to_thread(entered.wait, 5)
        for attempt in (1, 2):
            close_round(evil, attempt)
            evil.announce(attempt=attempt + 1)
            await asyncio.sleep(0.05)
        assert await until(lambda: len(evil.uploads) == 1)
        assert await asyncio.to_thread(landed.wait, 5)
        close_study(evil)
        offer_study(evil)
        await asyncio.sleep(0.3)
        evil.announce(attempt=3, invited=fed.names[:3])
        await asyncio.sleep(1.0)
        assert [(header.round, header.attempt) for header in evil.uploads] == [(1, 3)]

    play(tmp_path, scenario)


def test_a_cursor_never_goes_back(tmp_path: Path) -> None:
    store = StudyStore(tmp_path)
    store.advance(1, 2, b"cohort")
    with pytest.raises(RefusedError):
        store.spend(1, 1)
    store.spend(1, 2)
    with pytest.raises(RefusedError):
        store.advance(1, 2, b"cohort")


def test_cancelled_while_it_reserves_a_node_takes_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve, entered = SiteAccountant.reserve, threading.Event()

    def slow(self: SiteAccountant, reservation: Any) -> None:
        entered.set()
        time.sleep(0.5)
        reserve(self, reservation)

    monkeypatch.setattr(SiteAccountant, "reserve", slow)

    async def scenario(fed: Federation, evil: EvilCoordinator, _node: Node) -> None:
        evil.announce()
        assert await asyncio.to_thread(entered.wait, 5)
        close_round(evil, 1)
        await asyncio.sleep(1.2)
        entries = read_ledger(fed.workspace.node_folder("site-01") / "ledger.jsonl")
        assert [entry.kind for entry in entries] == ["opened", "approved", "planned", "cancelled"]

    play(tmp_path, scenario)


def test_what_was_remembered_goes_with_the_study_however_late_the_attempt_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear, entered = StudyStore.clear_scratch, threading.Event()

    def slow(self: StudyStore, *key: int) -> None:
        clear(self, *key)
        entered.set()
        time.sleep(0.5)

    monkeypatch.setattr(StudyStore, "clear_scratch", slow)

    async def scenario(fed: Federation, evil: EvilCoordinator, here: Node) -> None:
        store = here._studies[fed.study.id].store
        evil.announce()
        assert await until(lambda: evil.uploads)
        store.memory(1, 1).save(b"shares")
        assert await asyncio.to_thread(entered.wait, 5)
        close_study(evil)
        assert await until(lambda: not list(store.folder.glob("memory-*")))

    play(tmp_path, scenario)


def test_an_older_attempt_does_not_cancel_the_one_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overlaps = Overlaps(monkeypatch)

    async def scenario(_fed: Federation, evil: EvilCoordinator, _node: Node) -> None:
        evil.announce(number=2, attempt=1)
        assert await until(lambda: overlaps.running)
        evil.announce(number=1, attempt=1)
        assert await until(lambda: evil.uploads)
        assert [(header.round, header.attempt) for header in evil.uploads] == [(2, 1)]

    play(tmp_path, scenario)


def test_an_attempt_that_was_refused_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has said that it sits out, and a slow disk still erases its files: the next announcement is not "over"."""
    erase = StudyStore.clear_scratch

    def slowly(store: StudyStore, number: int, attempt: int) -> None:
        time.sleep(0.3)
        erase(store, number, attempt)

    monkeypatch.setattr(StudyStore, "clear_scratch", slowly)

    async def scenario(_fed: Federation, evil: EvilCoordinator, _node: Node) -> None:
        evil.announce(number=9, attempt=1)
        assert await evil.answer() == "Refused"
        evil.announce(number=1, attempt=1)
        assert await until(lambda: evil.uploads)

    play(tmp_path, scenario)


def test_only_an_evaluation_of_the_finished_model_ends_a_training_that_outlives_its_attempt(tmp_path: Path) -> None:
    class Unending(FakeTraining):
        began = ended = False

        async def run(self, job: Job) -> Result:
            if job.kind is not RoundKind.TRAIN:
                return await super().run(job)
            self.began = True
            try:
                await asyncio.Event().wait()
            finally:
                self.ended = True
            raise AssertionError

    training = Unending()

    async def scenario(_fed: Federation, evil: EvilCoordinator, _node: Node) -> None:
        first: dict[str, Any] = {
            "phase": "advertise",
            "payload": pb.Payload(protection="sealed", phase="advertise", version=1),
        }
        evil.announce(**first)
        assert await until(lambda: training.began)
        evil.announce(attempt=2, kind=pb.ROUND_KIND_EVALUATE, **first)  # of the first round
        assert await evil.answer() == RefusedError.code
        assert not training.ended
        evil.announce(number=3, version=2, kind=pb.ROUND_KIND_EVALUATE, **first)
        assert await until(lambda: training.ended)

    play(
        tmp_path,
        scenario,
        training,
        rounds={"mode": "buffered", "unit": "site", "merge": "delta"},
        protection={"kind": "sealed", "recovery": True},
        policy={"exceptions": ["changing-cohorts"]},
    )


def test_of_many_announced_attempts_one_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An announcement may hold megabytes, and the attempt under way may be in a thread that nothing can end."""
    half, entered, leave = Participation._encoded_half, threading.Event(), threading.Event()

    def stuck(self: Participation, kept: KeptUpdate) -> NodeHalf:
        entered.set()
        leave.wait(30)
        return half(self, kept)

    monkeypatch.setattr(Participation, "_encoded_half", stuck)

    async def scenario(_fed: Federation, evil: EvilCoordinator, here: Node) -> None:
        evil.announce()
        assert await until(entered.is_set)
        for attempt in range(2, 10):
            evil.announce(attempt=attempt)
        assert await until(lambda: (it := joined_of(here).attempt) is not None and it.key == (1, 9))
        await asyncio.sleep(0.1)
        gc.collect()
        mine = [each for each in gc.get_objects() if type(each) is Participation and each._services is here._services]
        assert sorted(each.key for each in mine) == [(1, 1), (1, 9)]
        leave.set()
        assert await until(lambda: evil.uploads)
        assert {(header.round, header.attempt) for header in evil.uploads} == {(1, 9)}

    play(tmp_path, scenario)


def joined_of(here: Node) -> Any:
    (joined,) = here._studies.values()
    return joined
