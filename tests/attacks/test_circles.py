"""A coordinator that wants two different sums of one round: with another site, or of another training."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from node.kept import KeptUpdate
from node.service import Node
from node.store import StudyStore
from node.training.jobs import Job, Result
from secure_fl.errors import RefusedError
from secure_fl.rpc import federation_pb2 as pb
from tests.attacks.test_attacks import EvilCoordinator, against_a_node
from tests.support.training import FakeTraining

CIRCLES = {
    "protection": {"kind": "none", "recovery": False}
}  # `none` shows what a node would send under any protection
WHOEVER = {"protection": {"kind": "none", "recovery": True}}
NINE = {"rounds": {"deadline": 20, "phase_deadline": 20, "gather": 3, "attempts": 9}}


class Restless(FakeTraining):
    """Trains to something else each time, as real training does."""

    def __init__(self) -> None:
        self.times = 0
        super().__init__(poison=lambda _job: 1.0 + self.times / 8)

    async def run(self, job: Job) -> Result:
        """Once more."""
        self.times += 1
        return await super().run(job)


def in_and_out(folder: Path, settings: dict[str, Any]) -> list[str]:
    """Attempt 1 with everybody, attempt 2 without one site: what the node answers to the second."""
    answers: list[str] = []

    async def scenario(evil: EvilCoordinator, _task: asyncio.Task[None], _node: Node) -> None:
        evil.announce(number=1, attempt=1)
        await evil.next_upload(1)
        evil.announce(number=1, attempt=2, invited=evil.fed.names[:3])
        answers.append(await evil.outcome(2))

    against_a_node(folder, scenario, settings={**settings, **NINE})
    return answers


def test_a_site_is_never_added_up_without_the_rest_of_its_circle(tmp_path: Path) -> None:
    assert in_and_out(tmp_path / "circles", CIRCLES) == ["Refused"]
    # The old setting: two sums of one round that differ by one site, whose update is their difference.
    assert in_and_out(tmp_path / "whoever", WHOEVER) == ["uploaded"]


def attempts(folder: Path, training: Restless) -> list[bytes]:
    """The digests of what a node sends in three attempts at one round."""
    sent: list[bytes] = []

    async def scenario(evil: EvilCoordinator, _task: asyncio.Task[None], _node: Node) -> None:
        for attempt in (1, 2, 3):
            evil.announce(number=1, attempt=attempt)
            await evil.next_upload(attempt)
        sent.extend(header.bulk.sha256 for header in evil.uploads)

    against_a_node(folder, scenario, settings={**CIRCLES, **NINE}, training=training)
    return sent


def test_every_attempt_at_a_round_sends_the_same_integers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Restless()
    assert len(set(attempts(tmp_path / "kept", training))) == 1
    assert training.times == 1
    # Taken out, three attempts are three trainings, and averaging them takes the noise of training away.
    monkeypatch.setattr(KeptUpdate, "load", classmethod(lambda _cls, _path: None))
    monkeypatch.setattr(StudyStore, "require_unsent", lambda *_: None)
    again = Restless()
    assert len(set(attempts(tmp_path / "trained-again", again))) == 3
    assert again.times == 3


def test_what_is_lost_after_it_was_sent_is_not_made_anew(tmp_path: Path) -> None:
    training = Restless()

    async def scenario(evil: EvilCoordinator, _task: asyncio.Task[None], node: Node) -> None:
        evil.announce(number=1, attempt=1)
        await evil.next_upload(1)
        (joined,) = node._studies.values()
        joined.store.kept_update(1).unlink()
        evil.announce(number=1, attempt=2)
        assert await evil.answer() == RefusedError.code
        assert training.times == 1

    against_a_node(tmp_path, scenario, settings={**CIRCLES, **NINE}, training=training)


def test_what_was_kept_goes_with_the_round(tmp_path: Path) -> None:
    async def scenario(evil: EvilCoordinator, _task: asyncio.Task[None], node: Node) -> None:
        evil.announce(number=1, attempt=1)
        await evil.next_upload(1)
        (joined,) = node._studies.values()
        path = joined.store.kept_update(1)
        assert path.stat().st_mode & 0o777 == 0o600
        evil.announce(number=2, attempt=1)
        await evil.next_upload(2)
        assert not path.exists()

    against_a_node(tmp_path, scenario, settings={**CIRCLES, **NINE})


def test_a_round_that_is_called_over_too_early_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each training costs the site privacy, and would be one more look at its data."""

    def trainings(folder: Path) -> int:
        training = Restless()

        async def scenario(evil: EvilCoordinator, _task: asyncio.Task[None], node: Node) -> None:
            (joined,) = node._studies.values()
            monkeypatch.setattr(joined.store, "note_sent", lambda _number: None)  # Its line breaks before it charges.
            evil.announce(number=1, attempt=1)
            await evil.next_upload(1)
            closed = pb.RoundClosed(round=1, attempt=1, committed=True)
            evil.outbox.put_nowait(pb.CoordinatorMessage(study_id=evil.fed.study.id, round_closed=closed))
            await asyncio.sleep(0.3)
            evil.announce(number=1, attempt=2)
            await evil.next_upload(2)

        against_a_node(folder, scenario, settings={**CIRCLES, **NINE}, training=training)
        return training.times

    assert trainings(tmp_path / "shipped") == 1
    monkeypatch.setattr(StudyStore, "was_sent", lambda *_: True)
    monkeypatch.setattr(StudyStore, "require_unsent", lambda *_: None)
    assert trainings(tmp_path / "without") == 2
