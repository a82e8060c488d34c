"""A site that cheats with shares in every attempt it is in: the study finishes without it and says so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from secure_fl.errors import ProtectionError, StudyAbortedError, WrongSharesError
from secure_fl.messages import parse
from secure_fl.protect.contract import Message
from secure_fl.protect.primitives.recovery import DEALT_SEALED, GAVE_WRONG, Recovery
from secure_fl.protect.recovery.node import RecoveryNode
from secure_fl.report.page import render
from secure_fl.results.record import LeftOut, StudyRecord
from secure_fl.rpc.protect_recovery_pb2 import RecoveryShares
from secure_fl.simulation.narrator import describe_round
from tests.coordinator.test_study_runner import finish, play, start_all
from tests.support.federation import Federation, Killed
from tests.support.training import Faults

LIAR = "site-02"
MASKED = {
    "protection": {"kind": "masked", "recovery": True},
    "rounds": {"deadline": 20, "phase_deadline": 20, "gather": 3, "attempts": 2},
}


def flipped(raw: bytes) -> bytes:
    return raw[:16] + bytes([raw[16] ^ 1]) + raw[17:]


@pytest.fixture
def a_flipped_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The liar flips one bit of one share whenever it is asked for shares; its node is a real one otherwise."""
    honest = RecoveryNode._unmask

    def unmask(self: RecoveryNode, message: Message) -> Message:
        answer = honest(self, message)
        if self._me.name != LIAR:
            return answer
        said = parse(RecoveryShares, answer.body)
        said.shares[0].seeds.shares[0] = flipped(said.shares[0].seeds.shares[0])
        return Message(body=said.SerializeToString(deterministic=True))

    monkeypatch.setattr(RecoveryNode, "_unmask", unmask)


@pytest.fixture
def sealed_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    """The liar deals shares that nobody can open."""
    honest = RecoveryNode._seal

    def seal(self: RecoveryNode, share: bytes, peer: str, *, purpose: bytes) -> bytes:
        sealed = honest(self, share, peer, purpose=purpose)
        return flipped(sealed) if self._me.name == LIAR else sealed

    monkeypatch.setattr(RecoveryNode, "_seal", seal)


def voids(fed: Federation) -> list[str]:
    return [fields["reason"] for name, fields in fed.events if name == "round-void"]


@pytest.mark.usefixtures("a_flipped_bit")
def test_a_study_finishes_without_a_site_that_gives_wrong_shares_and_names_it(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        start_all(fed)
        record = await finish(fed)
        assert voids(fed) == []  # Its first lie costs nothing: there was a share to spare.
        assert record.left_out == (LeftOut(node=LIAR, round=1, what=GAVE_WRONG),)
        assert [LIAR in entry.cohort for entry in record.rounds] == [True, False, False]
        later = next(node for node in record.rounds[1].nodes if node.name == LIAR)
        assert (later.outcome, later.reason) == ("absent", WrongSharesError.code)
        heard = [fields for name, fields in fed.events if name == "site-left-out"]
        assert [(fields["node"], fields["what"], fields["round"]) for fields in heard] == [(LIAR, GAVE_WRONG, 1)]
        assert StudyRecord.load(fed.workspace.study_state / "record.json").left_out == record.left_out
        page = render(record, {})
        assert f"{LIAR} gave wrong shares in round 1. Every attempt after that was without it." in page
        assert "It was left out because it had cheated before." in page

    play(tmp_path, MASKED, scenario, nodes=5)


@pytest.mark.usefixtures("a_flipped_bit")
def test_without_the_search_its_one_bit_ends_the_study_and_nobody_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_before(self: Recovery, dealer: str, given: Mapping[str, int], **checks: Any) -> bytes:
        if not (secret := self._joined(given, checks["is_secret"])):
            raise ProtectionError(f"the shares of what {dealer} dealt do not fit")
        return secret

    monkeypatch.setattr(Recovery, "secret", as_before)

    async def scenario(fed: Federation) -> None:
        start_all(fed)
        assert await fed.coordinate() is None
        assert voids(fed) == [ProtectionError.code] * 2  # two rounds, each of which came to nothing
        record = StudyRecord.load(fed.workspace.study_state / "record.json")
        assert [entry.cohort for entry in record.rounds] == [(), ()]
        assert (record.outcome, record.reason, record.left_out) == ("aborted", StudyAbortedError.code, ())

    play(tmp_path, MASKED, scenario, nodes=5)


@pytest.mark.usefixtures("sealed_nonsense")
def test_an_attempt_that_a_dealer_spoils_is_the_last_one_it_is_in(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        start_all(fed)
        record = await finish(fed)
        assert voids(fed) == [WrongSharesError.code]
        assert [entry.attempts for entry in record.rounds] == [1, 1, 1]
        assert record.left_out == (LeftOut(node=LIAR, round=1, what=DEALT_SEALED),)
        # What sites sent in the first round they send no more: it came to nothing, and the study goes on.
        honest = tuple(name for name in fed.names if name != LIAR)
        assert [entry.cohort for entry in record.rounds] == [(), honest, honest]
        assert {node.outcome for node in record.rounds[0].nodes} == {"waited"}
        assert "came to nothing" in describe_round(record.rounds[0], planned=2)
        assert "Nothing was opened in round 1" in render(record, {})

    play(tmp_path, MASKED, scenario, nodes=5)


@pytest.mark.usefixtures("sealed_nonsense")
def test_a_restarted_coordinator_still_leaves_it_out(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        start_all(fed)
        with pytest.raises(Killed):  # between the attempt that named it and the plan of the next one
            await fed.coordinate(Faults("before:begin_attempt", 2))
        record = await finish(fed)
        assert voids(fed) == [WrongSharesError.code]
        assert record.left_out == (LeftOut(node=LIAR, round=1, what=DEALT_SEALED),)

    play(tmp_path, MASKED, scenario, nodes=5)


@pytest.mark.usefixtures("a_flipped_bit")
def test_where_too_few_are_left_the_study_ends_at_once_and_names_it(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        start_all(fed)
        assert await fed.coordinate() is None
        assert voids(fed) == [WrongSharesError.code]
        record = StudyRecord.load(fed.workspace.study_state / "record.json")
        assert (record.outcome, record.reason) == ("aborted", StudyAbortedError.code)
        assert record.left_out == (LeftOut(node=LIAR, round=1, what=GAVE_WRONG),)

    play(tmp_path, MASKED, scenario, nodes=3)


@pytest.mark.usefixtures("sealed_nonsense")
def test_a_coordinator_that_stops_before_it_has_said_so_says_it_in_its_next_life(tmp_path: Path) -> None:
    """What failed fails again when it is replayed: that must end the round, and not the coordinator."""

    async def scenario(fed: Federation) -> None:
        start_all(fed)
        with pytest.raises(Killed):
            await fed.coordinate(Faults("before:commit_round", 1))
        record = await finish(fed)
        assert [entry.came_to_nothing for entry in record.rounds] == [True, False, False]
        assert record.left_out == (LeftOut(node=LIAR, round=1, what=DEALT_SEALED),)

    play(tmp_path, MASKED, scenario, nodes=5)
