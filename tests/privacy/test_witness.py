"""What peers note of a ledger convicts whoever changes it afterwards, and nobody else."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from secure_fl.errors import SignatureError, StorageError, WitnessError
from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import Credential
from secure_fl.identity.ledger_head import LedgerHead
from secure_fl.privacy import witness as module
from secure_fl.privacy.ledger import read_ledger
from secure_fl.privacy.witness import WitnessFile, missing_from, read_witness, two_stories
from tests.support.ledgers import HEART, LUNG, Story, note_of


def head(length: int, mark: str = "ab", site: str = "north") -> LedgerHead:
    return LedgerHead(site=site, length=length, head=mark * 32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "witness.jsonl"


def test_notes_come_back_and_are_for_this_user_alone(
    path: Path, consortium: Authority, north: Credential, south: Credential
) -> None:
    file = WitnessFile(path)
    notes = [
        note_of(north, head(1)),
        note_of(north, head(3, "cd"), study=LUNG, round=7),
        note_of(south, head(2, site="south")),
    ]
    for note in notes:
        assert file.note(note) == ()
    assert list(read_witness(path, authority=consortium.ca_pem)) == notes
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_head_is_noted_once_also_after_a_restart(path: Path, north: Credential) -> None:
    file = WitnessFile(path)
    file.note(note_of(north, head(4)))
    content = path.read_bytes()
    file.note(note_of(north, head(4)))
    WitnessFile(path).note(note_of(north, head(4)))
    assert path.read_bytes() == content
    file.note(note_of(north, head(4), study=LUNG, round=9))  # It took part in another attempt: that counts by itself.
    assert len(path.read_bytes().splitlines()) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"head": head(5)},
        {"head": head(4, "cd")},
        {"study": LUNG},
        {"round": 2},
        {"attempt": 2},
        {"signature": bytes(64)},
    ],
    ids=str,
)
def test_a_note_that_the_site_did_not_sign_cannot_be_made(north: Credential, change: dict[str, object]) -> None:
    note = note_of(north, head(4))
    with pytest.raises(SignatureError):
        replace(note, **change)  # type: ignore[arg-type]


def test_nobody_signs_for_another_site(north: Credential, south: Credential) -> None:
    with pytest.raises(ValueError, match="its site's certificate"):
        note_of(south, head(4))


def test_a_forged_line_accuses_nobody(path: Path, consortium: Authority, north: Credential) -> None:
    WitnessFile(path).note(note_of(north, head(4)))
    facts = json.loads(path.read_text())
    for name, value in (("length", 9), ("head", "cd" * 32), ("site", "south"), ("version", 2), ("time", "noon")):
        path.write_text(json.dumps({**facts, name: value}) + "\n")
        with pytest.raises(WitnessError, match="line 1 is not what a site signed"):
            read_witness(path, authority=consortium.ca_pem)
        with pytest.raises(WitnessError):
            WitnessFile(path)


def test_a_note_under_another_consortiums_certificate_counts_for_nothing(
    path: Path, tmp_path: Path, consortium: Authority
) -> None:
    elsewhere = Authority.create(tmp_path / "elsewhere", consortium="Heart Study")
    WitnessFile(path).note(note_of(elsewhere.issue("node", "north"), head(4)))
    with pytest.raises(WitnessError, match="line 1: node 'north': not issued by this consortium"):
        read_witness(path, authority=consortium.ca_pem)


def test_a_torn_last_line_is_dropped_by_its_owner_and_named_to_others(
    path: Path, consortium: Authority, north: Credential
) -> None:
    file = WitnessFile(path)
    file.note(note_of(north, head(1)))
    whole = path.read_bytes()
    path.write_bytes(whole + note_of(north, head(2)).line()[:50])
    with pytest.raises(WitnessError, match="line 2"):
        read_witness(path, authority=consortium.ca_pem)
    WitnessFile(path).note(note_of(north, head(3)))
    assert [note.head.length for note in read_witness(path, authority=consortium.ca_pem)] == [1, 3]


def test_a_missing_file_is_named(path: Path, consortium: Authority) -> None:
    with pytest.raises(WitnessError, match="cannot be read"):
        read_witness(path, authority=consortium.ca_pem)


def test_a_note_that_cannot_be_written_is_an_error_and_leaves_nothing(
    path: Path, consortium: Authority, north: Credential, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = WitnessFile(path)
    file.note(note_of(north, head(1)))

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr("secure_fl.privacy.witness.os.fsync", fail)
        with pytest.raises(StorageError):
            file.note(note_of(north, head(2)))
    file.note(note_of(north, head(2)))
    assert [note.head.length for note in read_witness(path, authority=consortium.ca_pem)] == [1, 2]


def test_a_site_that_tells_two_stories_is_noticed_at_once_and_later(
    path: Path, consortium: Authority, north: Credential
) -> None:
    file = WitnessFile(path)
    first, second = note_of(north, head(4)), note_of(north, head(4, "cd"), round=2)
    assert file.note(first) == ()
    assert file.note(note_of(north, head(5))) == ()
    assert file.note(second) == (first,)
    assert two_stories(read_witness(path, authority=consortium.ca_pem)) == [(first, second)]
    assert two_stories([first, note_of(north, head(5, "cd"))]) == []


def test_a_file_stays_small_and_keeps_what_convicts(
    path: Path, consortium: Authority, north: Credential, south: Credential, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_OF_ONE_SITE", 10)
    file = WitnessFile(path)
    file.note(note_of(south, head(1, site="south")))
    for length in range(1, 60):
        file.note(note_of(north, head(length)))
        if length == 6:
            file.note(note_of(north, head(6, "cd")))
    kept = read_witness(path, authority=consortium.ca_pem)
    lengths = [note.head.length for note in kept if note.head.site == "north"]
    assert len(lengths) <= 11
    assert {1, 6, 56, 57, 58, 59} <= set(lengths)
    assert len(two_stories(kept)) == 1
    assert [note.head.site for note in kept].count("south") == 1
    assert WitnessFile(path).note(note_of(north, head(59, "cd"))) != ()


def test_what_was_shown_must_still_be_there(
    tmp_path: Path, consortium: Authority, north: Credential, south: Credential
) -> None:
    story = Story(tmp_path / "ledger.jsonl", consortium, north)
    notes = [story.note()]
    story.rounds(HEART, (1, 2, 3))
    notes.append(story.note(round=3))
    entries = tuple(read_ledger(story.path))
    assert missing_from(entries, "north", notes) == []
    story.rounds(HEART, (4,))
    assert missing_from(tuple(read_ledger(story.path)), "north", notes) == []  # It may go on.
    (cut,) = missing_from(entries[:-1], "north", notes)
    assert cut[0] == 6
    assert "ends after 6 lines: it was cut, or is an old copy; north signed that line 7" in cut[1]
    strange = note_of(south, head(99, site="south"))
    assert missing_from(entries, "north", [strange]) == []  # That is another site's.
    (other,) = missing_from(entries, "north", [note_of(north, head(2))])
    assert other[0] == 1
    assert "rewritten at or before line 2" in other[1]


def test_a_history_that_branched_off_does_not_outgrow_its_witness(path: Path, north: Credential) -> None:
    """However many heads a site shows later, each study's first and last note stay: they convict the branch."""
    file = WitnessFile(path)
    for length in range(2, 42):
        file.note(note_of(north, head(length, "ab"), study=HEART, round=length))
    for length in range(42, 600):
        file.note(note_of(north, head(length, "cd"), study=LUNG, round=length))
    kept = {json.loads(line)["length"] for line in path.read_bytes().splitlines()}
    assert len(kept) < 400
    assert {2, 41, 42, 599} <= kept
