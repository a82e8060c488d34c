"""Every manifest says how far its site's ledger goes, in words that its site cannot take back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pytest

from coordinator.machine import RoundMachine
from secure_fl.errors import MalformedMessageError, ProtectionError, SecureFLError, SignatureError
from secure_fl.identity.ledger_head import LedgerHead, sign_head, verify_head
from secure_fl.messages import parse
from secure_fl.protect.cohort import signed
from secure_fl.protect.contract import Message, NodeHalf, Protection
from secure_fl.protect.masked.protection import Masked
from secure_fl.protect.recovery.protection import MaskedWithRecovery
from secure_fl.protect.sealed.protection import Sealed
from secure_fl.protect.witness import ShownHead
from secure_fl.rpc.protect_cohort_pb2 import Manifest, Roster
from tests.protect.cohorts import InMemory, context, contribution, host
from tests.protect.members import member

NAMES = ("n0", "n1", "n2", "n3")
PROTECTIONS: tuple[Protection, ...] = (Masked(), MaskedWithRecovery(), Sealed())
MANIFEST_OF = {"masked": "circle", "sealed": "sealed"}


@dataclass
class Notebook:
    """A ledger that grows by a line whenever somebody looks, and what was seen of others'."""

    site: str
    length: int = 6
    seen: list[ShownHead] = field(default_factory=list)
    attempts: list[tuple[str, int, int]] = field(default_factory=list)

    def head(self) -> LedgerHead:
        """How far it goes."""
        self.length += 1
        return LedgerHead(site=self.site, length=self.length, head=f"{self.length:064x}")

    def saw(self, shown: Any, *, study: str, round: int, attempt: int) -> None:  # noqa: A002
        """Write it down."""
        self.seen += shown
        self.attempts.append((study, round, attempt))


class Meeting:
    """A round up to its second phase, in which everybody is shown everybody's manifest."""

    def __init__(self, protection: Protection) -> None:
        self.protection = protection
        self.about = context(*NAMES, protection=protection, whole=isinstance(protection, Masked))
        self.books = {name: Notebook(name) for name in NAMES}
        self.nodes: dict[str, NodeHalf] = {
            name: protection.node(
                self.about,
                contribution(64, body=[1, 2, 3], head=[4, 5]),
                replace(host(name), witness=self.books[name]),
            )
            for name in NAMES
        }
        self.machine = RoundMachine(protection, self.about)
        self.machine.begin()
        self.said = {name: self.nodes[name].answer("advertise", Message()) for name in NAMES}

    def gather(self, **instead: bytes) -> None:
        """Hand everybody's manifest to the coordinator, or what comes `instead`."""
        for name in NAMES:
            body = instead.get(name, self.said[name].body)
            self.machine.accept(name, "advertise", Message(body=body), InMemory(b""))
        self.machine.close()

    def next(self, name: str, asked: Message | None = None) -> Message:
        """What a node answers once it has met the others."""
        return self.nodes[name].answer(self.machine.phase, asked or self.machine.asked[name])


class Change(Protocol):
    """What a site, or somebody on the way, does to a manifest."""

    def __call__(self, manifest: Manifest) -> object: ...


@pytest.fixture(params=PROTECTIONS, ids=lambda protection: type(protection).__name__)
def meeting(request: pytest.FixtureRequest) -> Meeting:
    return Meeting(request.param)


def test_peers_note_each_others_heads_of_this_attempt_and_not_their_own(meeting: Meeting) -> None:
    meeting.gather()
    for name in NAMES:
        meeting.next(name)
        book, others = meeting.books[name], [peer for peer in NAMES if peer != name]
        assert book.attempts == [("5a" * 32, 1, 1)]
        assert [shown.head.site for shown in book.seen] == others
        for shown in book.seen:
            assert shown.head == LedgerHead(site=shown.head.site, length=7, head=f"{7:064x}")
            # Without anything else of the manifest.
            verify_head(
                member(shown.head.site).certificate.signing_public,
                shown.signature,
                shown.head,
                study="5a" * 32,
                round=1,
                attempt=1,
            )


def other_head(manifest: Manifest) -> None:
    manifest.ledger.head = bytes(32)


def other_length(manifest: Manifest) -> None:
    manifest.ledger.length -= 1


def no_head(manifest: Manifest) -> None:
    manifest.ClearField("ledger")


def other_signature(manifest: Manifest) -> None:
    manifest.ledger.signature = bytes(64)


@pytest.mark.parametrize("change", [other_head, other_length, no_head, other_signature])
def test_nobody_on_the_way_can_change_a_head_or_leave_it_out(meeting: Meeting, change: Change) -> None:
    """Neither towards the coordinator nor, if that is the one, towards the others."""
    manifest = parse(Manifest, meeting.said["n1"].body)
    change(manifest)
    with pytest.raises(SignatureError):
        meeting.machine.accept("n1", "advertise", Message(body=manifest.SerializeToString()), InMemory(b""))
    meeting.gather()
    roster = parse(Roster, meeting.machine.asked["n0"].body or bytes(meeting.machine.asked["n0"].bulk))
    roster.manifests[1].CopyFrom(manifest)
    with pytest.raises(SignatureError):
        meeting.next("n0", _shown(meeting, roster))
    assert meeting.books["n0"].seen == []


def _shown(meeting: Meeting, roster: Roster) -> Message:
    """A roster as the coordinator tells it."""
    asked, body = meeting.machine.asked["n0"], roster.SerializeToString(deterministic=True)
    return replace(asked, bulk=body) if asked.bulk else replace(asked, body=body)


def short(manifest: Manifest) -> None:
    manifest.ledger.head = bytes(31)


def of_nothing(manifest: Manifest) -> None:
    manifest.ledger.length = 0


def of_another_attempt(manifest: Manifest) -> None:
    head = LedgerHead(site="n1", length=manifest.ledger.length, head=manifest.ledger.head.hex())
    manifest.ledger.signature = sign_head(member("n1").key, head, study="5a" * 32, round=1, attempt=2)


def with_more_in_it(manifest: Manifest) -> None:
    manifest.ledger.MergeFromString(b"\x7a\x04note")  # a field 15 that nobody knows


def _signed_anew(meeting: Meeting, change: Callable[[Manifest], object]) -> Manifest:
    """What a site says that does as it likes with its own manifest."""
    manifest = parse(Manifest, meeting.said["n1"].body)
    change(manifest)
    protocol = "masked" if isinstance(meeting.protection, MaskedWithRecovery) else MANIFEST_OF[meeting.protection.name]
    manifest.signature = member("n1").key.sign(f"{protocol} manifest", *signed._signed(meeting.about, manifest))
    return manifest


@pytest.mark.parametrize("change", [no_head, short, of_nothing, other_signature, of_another_attempt, with_more_in_it])
def test_a_site_does_not_take_part_without_a_head_that_convinces_others(meeting: Meeting, change: Change) -> None:
    """Refused as it arrives, so it costs its sender only; and by its peers, if the coordinator is with it."""
    forged = _signed_anew(meeting, change)
    refusals = (ProtectionError, SignatureError, MalformedMessageError)
    with pytest.raises(refusals):
        meeting.machine.accept("n1", "advertise", Message(body=forged.SerializeToString()), InMemory(b""))
    meeting.gather()
    roster = parse(Roster, meeting.machine.asked["n0"].body or bytes(meeting.machine.asked["n0"].bulk))
    roster.manifests[1].CopyFrom(forged)
    with pytest.raises(refusals):
        meeting.next("n0", _shown(meeting, roster))
    assert meeting.books["n0"].seen == []


def test_without_that_check_a_site_shows_what_it_can_disown(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed, "verify_head", lambda *_args, **_names: None)
    meeting.gather(n1=_signed_anew(meeting, of_another_attempt).SerializeToString())
    meeting.next("n0")  # The round goes on, and what n0 was shown is worth nothing:
    (shown,) = [one for one in meeting.books["n0"].seen if one.head.site == "n1"]
    public = shown.certificate.signing_public
    with pytest.raises(SignatureError):
        verify_head(public, shown.signature, shown.head, study="5a" * 32, round=1, attempt=1)


def test_what_cannot_be_noted_is_not_gone_on_with(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site without room for evidence has none for its own ledger either."""
    meeting.gather()

    def full(*_: object, **__: object) -> None:
        raise SecureFLError("no room")

    monkeypatch.setattr(meeting.books["n0"], "saw", full, raising=False)
    with pytest.raises(SecureFLError, match="no room"):
        meeting.next("n0")
