"""A node shows how far its ledger goes and notes what its peers show: what contradicts is said, and stops nothing."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from node.config import NodeFile
from node.service import Node
from node.witnessing import Witnessing
from secure_fl import strategies
from secure_fl.errors import SignatureError, StorageError, WitnessError
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import utc_now
from secure_fl.identity.credential import Credential
from secure_fl.identity.ledger_head import LedgerHead, sign_head
from secure_fl.privacy.ledger import read_site_ledger
from secure_fl.privacy.witness import WitnessFile, read_witness
from secure_fl.protect.witness import ShownHead
from tests.support.federation import Federation
from tests.support.ledgers import HEART, LUNG, Story
from tests.support.training import FakeTraining


def shown(site: Credential, length: int, mark: str, *, study: str, attempt: int) -> ShownHead:
    """A head as it comes in a manifest of the first round."""
    head = LedgerHead(site=site.certificate.name, length=length, head=mark * 32)
    signature = sign_head(site.signing_key, head, study=study, round=1, attempt=attempt)
    return ShownHead(head=head, certificate=site.certificate, signature=signature)


class Bonn:
    """A witness, and what the others show it."""

    def __init__(self, folder: Path, consortium: Authority, own: Credential) -> None:
        self.path = folder / "state" / "witness.jsonl"
        self.authority = consortium.ca_pem
        self.story = Story(folder / "ledger.jsonl", consortium, own)
        self.start()

    def start(self) -> None:
        """Begin from what is on disk."""
        self.witness = Witnessing(self.story.ledger, WitnessFile(self.path))

    def sees(self, site: Credential, length: int, mark: str = "ab", *, study: str = HEART, attempt: int = 1) -> None:
        """One peer's head, at an attempt at the first round."""
        one = shown(site, length, mark, study=study, attempt=attempt)
        self.witness.saw([one], study=study, round=1, attempt=attempt)

    @property
    def lengths(self) -> list[int]:
        """Of what it has noted."""
        return [note.head.length for note in read_witness(self.path, authority=self.authority)]


@pytest.fixture
def bonn(tmp_path: Path, consortium: Authority, south: Credential) -> Bonn:
    return Bonn(tmp_path, consortium, south)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_it_shows_its_own_ledger_as_it_is_now(bonn: Bonn) -> None:
    assert bonn.witness.head() == bonn.story.ledger.head
    bonn.story.plan(HEART, 1)
    assert bonn.witness.head().length == 2
    assert bonn.witness.head() == bonn.story.ledger.head


def test_notes_are_on_disk_with_its_own_clock(bonn: Bonn, north: Credential, caplog: pytest.LogCaptureFixture) -> None:
    before = utc_now()
    bonn.sees(north, 2)
    bonn.sees(north, 4, attempt=2)
    first, _ = read_witness(bonn.path, authority=bonn.authority)
    assert bonn.lengths == [2, 4]
    assert (first.study, first.round, first.attempt) == (HEART, 1, 1)
    assert (first.time - before).total_seconds() < 60
    assert warnings(caplog) == []


def test_two_stories_are_a_warning_and_both_are_kept(
    bonn: Bonn, north: Credential, caplog: pytest.LogCaptureFixture
) -> None:
    bonn.sees(north, 4)
    bonn.start()
    bonn.sees(north, 4, "cd", study=LUNG)
    (said,) = warnings(caplog)
    assert "north keeps two ledgers" in said
    assert "abababab" in said
    assert "cdcdcdcd" in said
    assert "keep witness.jsonl" in said
    assert bonn.lengths == [4, 4]


@pytest.mark.parametrize("length", [3, 5, 6])
def test_a_ledger_that_has_not_grown_by_the_next_attempt_was_cut(
    bonn: Bonn, north: Credential, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    bonn.sees(north, 6)
    bonn.sees(north, length, attempt=2)
    (said,) = warnings(caplog)
    assert "north has cut its ledger" in said
    bonn.sees(north, 8, attempt=3)
    assert len(warnings(caplog)) == 1
    assert set(bonn.lengths) == {6, length, 8}


def test_attempts_side_by_side_accuse_nobody(bonn: Bonn, north: Credential, caplog: pytest.LogCaptureFixture) -> None:
    """Another study's attempt may be heard of later, and the same one again."""
    bonn.sees(north, 6)
    bonn.sees(north, 5, "cd", study=LUNG)
    bonn.sees(north, 6)
    bonn.sees(north, 7, study=LUNG, attempt=2)
    assert warnings(caplog) == []
    assert bonn.lengths == [6, 5, 7]


def test_what_the_site_did_not_sign_is_not_noted(bonn: Bonn, north: Credential) -> None:
    one = shown(north, 4, "ab", study=HEART, attempt=1)
    with pytest.raises(SignatureError):
        bonn.witness.saw([one], study=HEART, round=1, attempt=2)
    assert not bonn.path.exists()


def test_a_disk_without_room_is_an_error(bonn: Bonn, north: Credential, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr("secure_fl.privacy.witness.os.fsync", fail)
        with pytest.raises(StorageError):
            bonn.sees(north, 4)
    bonn.sees(north, 4)
    assert bonn.lengths == [4]


# --- in a node ------------------------------------------------------------------------------------------------


def _federation(folder: Path, settings: dict[str, Any]) -> Federation:
    """A study that was carried out."""
    fed = Federation(folder, settings)

    async def scenario() -> None:
        for name in fed.names:
            fed.start_node(name)
        assert await fed.coordinate() is not None
        await fed.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
    return fed


@pytest.mark.parametrize(
    "settings",
    [
        {"protection": {"kind": "masked", "recovery": False}},
        {"protection": {"kind": "masked"}},
        {"protection": {"kind": "sealed"}},
        {"protection": {"kind": "sealed"}, "strategy": {"name": "neighbours"}, "metrics": {"share": "none"}},
    ],
    ids=["masked", "recovery", "sealed", "combine"],
)
def test_what_is_shown_has_the_plan_for_that_very_attempt_in_it(tmp_path: Path, settings: dict[str, Any]) -> None:
    strategies.register("neighbours", "tests.coordinator.test_study_runner:Neighbours")
    fed = _federation(tmp_path, settings)
    authority = (fed.workspace.folder / "ca.pem").read_bytes()
    ledgers = {
        name: read_site_ledger(fed.workspace.node_folder(name) / "ledger.jsonl", authority=authority, site=name)
        for name in fed.names
    }
    for name in fed.names:
        notes = read_witness(fed.workspace.node_folder(name) / "witness.jsonl", authority=authority)
        # Two rounds and, unless nothing is measured, the closing one: from everybody else, once.
        rounds = {note.round for note in notes}
        assert rounds >= {1, 2}
        assert sorted((note.head.site, note.round) for note in notes) == sorted(
            (other, number) for other in fed.names if other != name for number in rounds
        )
        for note in notes:
            line = ledgers[note.head.site][note.head.length - 1]
            assert line.digest == note.head.head
            assert (line.kind, line.facts["round"], line.facts["attempt"]) == ("planned", note.round, note.attempt)
            assert line.facts["study"] == note.study == fed.study.id


def test_without_a_protection_nobody_shows_anything(tmp_path: Path) -> None:
    fed = _federation(tmp_path, {"protection": {"kind": "none"}})
    assert all((fed.workspace.node_folder(name) / "ledger.jsonl").exists() for name in fed.names)
    assert not any((fed.workspace.node_folder(name) / "witness.jsonl").exists() for name in fed.names)


def test_a_node_does_not_start_with_evidence_that_was_tampered_with(tmp_path: Path) -> None:
    fed = Federation(tmp_path, {})
    file = NodeFile.read(fed.workspace.node_file("site-01"))
    (fed.workspace.node_folder("site-01") / "witness.jsonl").write_bytes(b'{"version": 1}\n')
    with pytest.raises(WitnessError, match="line 1 is not what a site signed") as raised:
        Node(file, None, FakeTraining())  # type: ignore[arg-type]
    assert "keep the file for the auditor" in raised.value.hint
