"""A coordinator or a node that cheats, through the real messages: a typed error, and no share is released."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from google.protobuf.message import Message as ProtoMessage

from coordinator.machine import RoundMachine
from secure_fl.encoding.weights import weight_floor
from secure_fl.errors import (
    CertificateError,
    CohortTooSmallError,
    IdentityError,
    MalformedMessageError,
    ProtectionError,
    SecureFLError,
    SignatureError,
    StorageError,
    WrongSharesError,
)
from secure_fl.identity.certificates import Certificate
from secure_fl.identity.member import Member
from secure_fl.limits import PAYLOAD_BYTES
from secure_fl.messages import parse
from secure_fl.protect.cohort.signed import SignedCohort, make_manifest
from secure_fl.protect.contract import Message, NodeHalf, RoundContext
from secure_fl.protect.primitives.envelopes import Envelopes
from secure_fl.protect.primitives.masks import add_masks
from secure_fl.protect.primitives.packing import WORD, Packing
from secure_fl.protect.primitives.recovery import DEALT_SEALED
from secure_fl.protect.primitives.shamir import Interpolation, read_share
from secure_fl.protect.recovery.derived import KEY_PURPOSE, share_commitment
from secure_fl.protect.recovery.manifest import MANIFESTS
from secure_fl.protect.recovery.protection import MaskedWithRecovery as Masked
from secure_fl.randomness import SystemRandomness, UnsafeSeededRandomness
from secure_fl.rpc.protect_cohort_pb2 import Manifest, Roster
from secure_fl.rpc.protect_recovery_pb2 import (
    RecoveryAgreements,
    RecoveryCommit,
    RecoveryEnvelopes,
    RecoveryManifest,
    RecoveryShares,
    RecoverySurvivors,
)
from tests.protect.cohorts import InMemory, context, contribution, halves, host, layout
from tests.protect.members import enrol, member

MASKED = Masked()
PHASES = MASKED.phases(context("n0", "n1", "n2").kind)
NAMES = ("n0", "n1", "n2", "n3", "n4")
P = TypeVar("P", bound=ProtoMessage)


def edited(kind: type[P], message: Message, change: Callable[[P], object]) -> Message:
    """A message with something changed inside."""
    body = kind()
    body.ParseFromString(message.body)
    change(body)
    return replace(message, body=body.SerializeToString(deterministic=True))


class Table:
    """A round among five, up to a phase, with everything that was said on the table."""

    def __init__(self, about: RoundContext | None = None, *, deep: frozenset[str] = frozenset(NAMES)) -> None:
        self.about = about or context(*NAMES)
        self.values = {
            name: contribution(64, {}, body=[1, 2, 3], **({"head": [4, 5]} if name in deep else {}))
            for name in self.about.invited
        }
        self.nodes = halves(MASKED, self.about, self.values)
        self.machine = RoundMachine(MASKED, self.about)
        self.machine.begin()
        self.answers: dict[tuple[str, str], Message] = {}

    def until(self, phase: str, *, absent: tuple[str, ...] = ()) -> Table:
        """Play honestly up to the beginning of `phase`; `absent` do not answer the one before."""
        while self.machine.phase != phase:
            last = PHASES.index(self.machine.phase) + 1 == PHASES.index(phase)
            self.play(absent if last else ())
        return self

    def play(self, absent: tuple[str, ...] = ()) -> object:
        """One phase."""
        now = self.machine.phase
        for name in sorted(self.machine.waiting):
            if name in absent:
                self.machine.leave(name, "NotConnected")
                continue
            answer = self.nodes[name].answer(now, self.machine.asked[name])
            self.answers[now, name] = answer
            self.machine.accept(name, now, replace(answer, bulk=b""), InMemory(answer.bulk))
        return self.machine.close()

    def tell(self, name: str, message: Message) -> Message:
        """Put a forged question to a node."""
        return self.nodes[name].answer(self.machine.phase, message)

    def refuses(self, name: str, message: Message, error: type[SecureFLError] = ProtectionError) -> None:
        """The node answers with an error now, and gives nothing about this round ever after."""
        with pytest.raises(error):
            self.tell(name, message)
        for phase in PHASES:
            with pytest.raises(ProtectionError):
                self.nodes[name].answer(phase, Message())

    def holds_nothing(self, name: str, message: Message, *, of: tuple[str, ...]) -> dict[str, str]:
        """The node goes on without what those dealt, says so in the end, and the sum opens; returns who is blamed."""
        for node in sorted(self.machine.waiting):
            answer = self.tell(node, message if node == name else self.machine.asked[node])
            self.machine.accept(node, "upload", Message(body=answer.body), InMemory(answer.bulk))
        self.machine.close()
        opened: Any = self.until("unmask").play()
        kinds = {
            share.node: share.WhichOneof("kind")
            for share in parse(RecoveryShares, self.answers["unmask", name].body).shares
        }
        assert kinds == {node: None if node in of else "seeds" for node in self.about.invited}
        everybody = len(self.about.invited)
        assert opened.blocks["body"].total.tolist() == [everybody, 2 * everybody, 3 * everybody]
        return dict(opened.blamed)


def by(name: str, kind: type[P], message: Message) -> Any:
    """The entry about a node."""
    body = kind()
    body.ParseFromString(message.body)
    fields = next(iter(body.ListFields()))[1]
    return next(entry for entry in fields if getattr(entry, "node", getattr(entry, "peer", "")) == name)


# --- who is there (1, 3, 5, 12, 15, 16) --------------------------------------------------------------------------


def manifest(
    about: RoundContext,
    who: Member,
    *,
    mask: X25519PrivateKey | None = None,
    envelope: X25519PrivateKey | None = None,
) -> Manifest:
    extension = MANIFESTS.write(
        mask_key=mask or X25519PrivateKey.generate(), envelope_key=envelope or X25519PrivateKey.generate()
    )
    return make_manifest(about, host(who), protocol="masked", blocks=("body", "head"), extension=extension)


def reworded(manifest: Manifest, **fields: bytes) -> None:
    """Another extension, which its node did not sign."""
    said = parse(RecoveryManifest, manifest.extension)
    for name, value in fields.items():
        setattr(said, name, value)
    manifest.extension = said.SerializeToString(deterministic=True)


def swap(roster: Roster, name: str, forged: Manifest) -> None:
    """Replace a node's manifest."""
    next(entry for entry in roster.manifests if entry.node == name).CopyFrom(forged)


def other(about: RoundContext, **changes: Any) -> RoundContext:
    """The same round but for something."""
    return replace(about, **changes)


KEY = X25519PrivateKey.generate()


def _stranger(table: Table) -> Manifest:
    about = other(table.about, invited=(*NAMES, "n9"), roster={**table.about.roster, "n9": "0" * 64})
    return manifest(about, member("n9"))


def _keep(roster: Roster, count: int) -> None:
    del roster.manifests[count:]


def _twin(table: Table, roster: Roster) -> None:
    """A valid certificate and a valid signature under it, but not the certificate the site approved."""
    twin = enrol("n2-twin")
    forged = manifest(table.about, twin)
    forged.node = "n2"
    swap(roster, "n2", forged)


ROSTERS: dict[str, tuple[Callable[[Table, Roster], None], type[SecureFLError]]] = {
    "a key nobody signed": (
        lambda _t, r: reworded(r.manifests[2], mask_key=KEY.public_key().public_bytes_raw()),
        SignatureError,
    ),
    "a key the coordinator signed itself": (
        lambda t, r: swap(r, "n2", manifest(t.about, replace(member("n2"), key=enrol("evil-1").key))),
        SignatureError,
    ),
    "another certificate of the same consortium and name": (
        _twin,
        CertificateError,
    ),
    "a manifest of another round": (
        lambda t, r: swap(r, "n2", manifest(other(t.about, round=2), member("n2"))),
        SignatureError,
    ),
    "a manifest of an earlier attempt": (
        lambda t, r: swap(r, "n2", manifest(other(t.about, attempt=2), member("n2"))),
        SignatureError,
    ),
    "a manifest for another base model": (
        lambda t, r: swap(r, "n2", manifest(other(t.about, base_model=b"\x01" * 32), member("n2"))),
        SignatureError,
    ),
    "a manifest of another study": (
        lambda t, r: swap(r, "n2", manifest(other(t.about, study_id="0b" * 32), member("n2"))),
        SignatureError,
    ),
    "a manifest for other cohort rules": (
        lambda t, r: swap(r, "n2", manifest(other(t.about, colluders=0), member("n2"))),
        SignatureError,
    ),
    "the same node twice": (lambda _t, r: r.manifests.append(r.manifests[2]), ProtectionError),
    "out of order": (lambda _t, r: r.manifests.reverse(), ProtectionError),
    "this node left out": (lambda _t, r: r.manifests.remove(r.manifests[0]), ProtectionError),
    "this node's manifest changed": (
        lambda t, r: swap(r, "n0", manifest(t.about, member("n0"))),
        ProtectionError,
    ),
    "a stranger": (lambda t, r: r.manifests.append(_stranger(t)), ProtectionError),
    "blocks the round does not have": (lambda _t, r: setattr(r.manifests[2], "blocks", b"\x07"), SignatureError),
    "too few": (lambda _t, r: _keep(r, 2), CohortTooSmallError),
    "nobody": (lambda _t, r: _keep(r, 0), ProtectionError),
}


@pytest.mark.parametrize("attack", ROSTERS)
def test_a_roster_that_is_not_the_signed_one_gets_no_shares(attack: str) -> None:
    change, error = ROSTERS[attack]
    table = Table().until("share")
    table.refuses("n0", edited(Roster, table.machine.asked["n0"], lambda r: change(table, r)), error)


def test_two_nodes_with_the_same_key_get_no_shares() -> None:
    for which in ("mask", "envelope"):
        table = Table().until("share")

        def share_keys(roster: Roster, table: Table = table, which: str = which) -> None:
            swap(roster, "n2", manifest(table.about, member("n2"), **{which: KEY}))
            swap(roster, "n3", manifest(table.about, member("n3"), **{which: KEY}))

        table.refuses("n0", edited(Roster, table.machine.asked["n0"], share_keys))


def test_a_node_may_not_use_one_key_for_masks_and_envelopes() -> None:
    table = Table().until("share")
    forged = edited(
        Roster,
        table.machine.asked["n0"],
        lambda r: swap(r, "n2", manifest(table.about, member("n2"), mask=KEY, envelope=KEY)),
    )
    table.refuses("n0", forged)


def test_a_revoked_or_expired_peer_gets_no_shares() -> None:
    table = Table().until("share")

    def vouch(peer: Certificate) -> None:
        if peer.name == "n3":
            raise CertificateError("n3: revoked by the consortium")

    offered = host(replace(member("n0"), vouch=vouch), UnsafeSeededRandomness(7, "n0"))
    half = MASKED.node(table.about, table.values["n0"], offered)
    half.answer("advertise", Message())
    with pytest.raises(CertificateError, match="revoked"):
        half.answer("share", table.machine.asked["n0"])


def test_the_coordinator_half_takes_no_manifest_for_another() -> None:
    table = Table()
    table.machine.accept("n0", "advertise", _said(manifest(table.about, member("n0"), mask=KEY)), InMemory(b""))
    for name, forged, error in (
        ("n1", manifest(table.about, member("n2")), ProtectionError),
        ("n1", manifest(table.about, member("n1"), mask=KEY), ProtectionError),
        ("n1", manifest(other(table.about, attempt=3), member("n1")), SignatureError),
        ("n1", manifest(table.about, enrol("n1-twin")), ProtectionError),
    ):
        with pytest.raises((error, IdentityError)):
            table.machine.accept(name, "advertise", _said(forged), InMemory(b""))
    table.machine.accept("n1", "advertise", _said(manifest(table.about, member("n1"))), InMemory(b""))


def test_an_extension_is_taken_in_one_encoding_and_with_nothing_else_in_it() -> None:
    """Each is signed by its node; two wordings of one manifest would be two transcripts, and room for notes."""
    table = Table()
    keys = [X25519PrivateKey.generate().public_key().public_bytes_raw() for _ in range(2)]
    fields = [bytes([tag << 3 | 2, 32]) + key for tag, key in enumerate(keys, 1)]
    for extension in (
        b"".join(fields) + b"\x7a\x04note",  # a field 15 that nobody knows
        b"".join(reversed(fields)),
        b"".join((fields[0], *fields)),  # the first key twice
        fields[0] + b"\x12\xa0\x00" + keys[1],  # a length in two bytes, where one does
        b"".join(fields)[:-1],
        b"\xff",
        b"",
    ):
        forged = make_manifest(table.about, host("n1"), protocol="masked", blocks=("body",), extension=extension)
        with pytest.raises((ProtectionError, MalformedMessageError)):
            table.machine.accept("n1", "advertise", _said(forged), InMemory(b""))
    proper = make_manifest(table.about, host("n1"), protocol="masked", blocks=("body",), extension=b"".join(fields))
    table.machine.accept("n1", "advertise", _said(proper), InMemory(b""))


class _Point:
    """Stands in for a key pair whose public half is chosen."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def public_key(self) -> _Point:
        return self

    def public_bytes_raw(self) -> bytes:
        return self._public


SMALL_ORDER = (
    bytes(32),
    (1).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),  # −1
    (2**255 - 19).to_bytes(32, "little"),  # 0, not reduced
    (2**255 + 1).to_bytes(32, "little"),  # 1, with the bit that X25519 ignores
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),  # of order 8
)


@pytest.mark.parametrize("public", [*SMALL_ORDER, b"", bytes(31), bytes(33)], ids=lambda raw: raw.hex()[:6])
def test_a_key_that_nobody_can_agree_with_costs_its_sender_only(public: bytes) -> None:
    point: Any = _Point(public)
    for which in ("mask", "envelope"):
        table = Table()
        with pytest.raises(ProtectionError, match="proper keys"):
            table.machine.accept(
                "n1", "advertise", _said(manifest(table.about, member("n1"), **{which: point})), InMemory(b"")
            )
        table.machine.leave("n1", "Protection")
        opened: Any = None
        while table.machine.phase:
            opened = table.play()
        assert opened.blocks["body"].total.tolist() == [4, 8, 12]


def _said(message: ProtoMessage) -> Message:
    return Message(body=message.SerializeToString())


# --- shares on their way (6, 7) ----------------------------------------------------------------------------------


def _flip(raw: bytes | memoryview) -> bytes:
    return bytes(raw[:-1]) + bytes([raw[-1] ^ 1])


def _swap_senders(said: RecoveryEnvelopes) -> None:
    first, second = said.envelopes[0], said.envelopes[1]
    first.peer, second.peer = second.peer, first.peer
    said.envelopes.sort(key=lambda envelope: envelope.peer)


TOUCHED: dict[str, Callable[[RecoveryEnvelopes], object]] = {
    "a bit flipped in a key share": lambda e: setattr(e.envelopes[0], "key_share", _flip(e.envelopes[0].key_share)),
    "a bit flipped in a seed share": lambda e: e.envelopes[0].seed_shares.__setitem__(
        0, _flip(e.envelopes[0].seed_shares[0])
    ),
    "a bit flipped in a commitment": lambda e: e.envelopes[0].commitments.__setitem__(
        1, _flip(e.envelopes[0].commitments[1])
    ),
    "a seed share in place of the key share": lambda e: setattr(
        e.envelopes[0], "key_share", e.envelopes[0].seed_shares[0]
    ),
    "empty": lambda e: setattr(e.envelopes[0], "key_share", b""),
}
MISCOUNTED: dict[str, Callable[[RecoveryEnvelopes], object]] = {
    "a commitment too few": lambda e: e.envelopes[0].commitments.__delitem__(0),
    "a seed share too few": lambda e: e.envelopes[0].seed_shares.__delitem__(0),
    "a seed share too many": lambda e: e.envelopes[0].seed_shares.append(e.envelopes[0].seed_shares[0]),
    "an envelope twice": lambda e: e.envelopes.append(e.envelopes[0]),
    "an envelope of a stranger": lambda e: setattr(e.envelopes[3], "peer", "n9"),
    "my own envelope back": lambda e: setattr(e.envelopes[0], "peer", "n0"),
}


@pytest.mark.parametrize("attack", MISCOUNTED)
def test_with_more_or_fewer_envelopes_than_there_are_nothing_is_uploaded(attack: str) -> None:
    table = Table().until("upload")
    table.refuses("n0", edited(RecoveryEnvelopes, table.machine.asked["n0"], MISCOUNTED[attack]))


@pytest.mark.parametrize("attack", TOUCHED)
def test_envelopes_that_were_touched_do_not_open_and_nothing_is_given_of_them(attack: str) -> None:
    table = Table().until("upload")
    forged = edited(RecoveryEnvelopes, table.machine.asked["n0"], TOUCHED[attack])
    assert table.holds_nothing("n0", forged, of=("n1",)) == {}  # n1 or n0 or neither: one complaint blames nobody


def test_envelopes_swapped_between_senders_do_not_open() -> None:
    table = Table().until("upload")
    forged = edited(RecoveryEnvelopes, table.machine.asked["n0"], _swap_senders)
    assert table.holds_nothing("n0", forged, of=("n1", "n2")) == {}


def test_an_envelope_for_another_recipient_does_not_open() -> None:
    table = Table().until("upload")
    theirs = by("n1", RecoveryEnvelopes, table.machine.asked["n2"])
    forged = edited(RecoveryEnvelopes, table.machine.asked["n0"], lambda e: e.envelopes[0].CopyFrom(theirs))
    table.holds_nothing("n0", forged, of=("n1",))


def test_envelopes_swapped_across_groups_do_not_open() -> None:
    names = tuple(f"n{index}" for index in range(9))
    table = Table(context(*names), deep=frozenset(names[:5])).until("upload")

    def swapped(said: RecoveryEnvelopes) -> None:
        shares = said.envelopes[0].seed_shares
        assert len(shares) == 2
        shares[0], shares[1] = shares[1], shares[0]

    table.holds_nothing("n0", edited(RecoveryEnvelopes, table.machine.asked["n0"], swapped), of=("n1",))


def test_an_envelope_of_an_earlier_attempt_does_not_open() -> None:
    earlier = Table(context(*NAMES)).until("upload")
    later = Table(other(context(*NAMES), attempt=2)).until("upload")
    # Even with the same keys, which a node never draws twice, another attempt is another transcript.
    old = by("n1", RecoveryEnvelopes, earlier.machine.asked["n0"])
    forged = edited(RecoveryEnvelopes, later.machine.asked["n0"], lambda e: e.envelopes[0].CopyFrom(old))
    later.holds_nothing("n0", forged, of=("n1",))


def test_a_share_outside_the_field_is_noticed_on_arrival() -> None:
    # n1 is malicious: it seals something that is no share, properly, and commits to it.
    about = context(*NAMES)
    table = Table(about)
    mask, envelope = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    forged = manifest(about, member("n1"), mask=mask, envelope=envelope)
    for name in NAMES:
        answer = _said(forged) if name == "n1" else table.nodes[name].answer("advertise", Message())
        table.machine.accept(name, "advertise", answer, InMemory(b""))
    table.machine.close()
    roster = Roster()
    roster.ParseFromString(table.machine.asked["n0"].body)
    cohort = SignedCohort.read(about, roster.manifests, MANIFESTS)
    own, group = Envelopes(envelope, rho=cohort.rho), cohort.groups[0]
    said = RecoveryEnvelopes(commitments=[bytes(32)])
    for name in NAMES:
        if name != "n1":
            way: Any = {"theirs": cohort.said(name).envelope_key, "sender": "n1", "recipient": name}
            bad = b"\xff" * 33
            committed = (share_commitment(cohort, "n1", name, what, bad) for what in (KEY_PURPOSE, group.label))
            said.envelopes.add(
                peer=name,
                commitments=committed,
                key_share=own.seal(bad, **way, purpose=KEY_PURPOSE),
                seed_shares=[own.seal(bad, **way, purpose=group.label)],
            )
    for name in NAMES:
        answer = _said(said) if name == "n1" else table.nodes[name].answer("share", table.machine.asked[name])
        table.machine.accept(name, "share", answer, InMemory(b""))
    table.machine.close()
    table.until("consistency", absent=("n1",)).until("unmask")
    with pytest.raises(WrongSharesError) as found:
        table.play()
    assert found.value.blamed == {"n1": DEALT_SEALED}


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_with_fewer_sharers_than_the_threshold_nothing_is_uploaded(keep: int) -> None:
    table = Table().until("upload")
    forged = edited(RecoveryEnvelopes, table.machine.asked["n0"], lambda e: e.envelopes.__delitem__(slice(keep, None)))
    table.refuses("n0", forged, CohortTooSmallError)


# --- who survived (2, 4, 8, 18) ----------------------------------------------------------------------------------

SURVIVORS: dict[str, tuple[Callable[[RecoverySurvivors], object], type[SecureFLError]]] = {
    "me listed as dead": (lambda s: s.survivors.__delitem__(0), ProtectionError),
    "another upload of mine": (lambda s: setattr(s.survivors[0], "upload", bytes(32)), ProtectionError),
    "a node that did not upload": (lambda s: s.survivors.add(node="n4", upload=bytes(32)), SignatureError),
    "another's upload exchanged": (lambda s: setattr(s.survivors[1], "upload", bytes(32)), SignatureError),
    "a commit of another node": (
        lambda s: setattr(s.survivors[1], "signature", s.survivors[2].signature),
        SignatureError,
    ),
    "below the threshold": (lambda s: s.survivors.__delitem__(slice(3, None)), CohortTooSmallError),
    "a node twice": (lambda s: s.survivors.append(s.survivors[1]), ProtectionError),
    "a stranger": (lambda s: s.survivors.add(node="zz", upload=bytes(32)), ProtectionError),
    "nobody": (lambda s: s.survivors.__delitem__(slice(None)), ProtectionError),
}


@pytest.mark.parametrize("attack", SURVIVORS)
def test_a_false_list_of_survivors_gets_no_signature(attack: str) -> None:
    change, error = SURVIVORS[attack]
    table = Table().until("consistency", absent=("n4",))
    forged = edited(RecoverySurvivors, table.machine.asked["n0"], change)
    with pytest.raises(SecureFLError) as refused:
        table.tell("n0", forged)
    assert isinstance(refused.value, error | CohortTooSmallError)
    for phase in PHASES:
        with pytest.raises(ProtectionError):
            table.nodes["n0"].answer(phase, Message())


def test_different_sharers_for_different_nodes_are_noticed_before_anything_opens() -> None:
    # The coordinator keeps n4's envelope from n0, so that the two mask towards different peers.
    table = Table().until("upload")
    forged = edited(RecoveryEnvelopes, table.machine.asked["n0"], lambda e: e.envelopes.__delitem__(3))
    answer = table.tell("n0", forged)
    commit = RecoveryCommit()
    commit.ParseFromString(answer.body)
    for name in NAMES[1:]:
        honest = table.nodes[name].answer("upload", table.machine.asked[name])
        table.machine.accept(name, "upload", replace(honest, bulk=b""), InMemory(honest.bulk))
    table.machine.leave("n0", "gone")
    table.machine.close()

    def with_n0(said: RecoverySurvivors) -> None:
        digest = hashlib.sha256(answer.bulk).digest()
        said.survivors.add(node="n0", upload=digest, signature=commit.signature)
        said.survivors.sort(key=lambda survivor: survivor.node)

    forged = edited(RecoverySurvivors, table.machine.asked["n1"], with_n0)
    for name in NAMES:  # n0 misses n4 among those it masked towards; the others see a commit to other peers
        with pytest.raises(ProtectionError if name == "n0" else SignatureError):
            table.nodes[name].answer("consistency", forged)


def test_both_kinds_of_share_about_one_node_cannot_be_had() -> None:
    """n3 uploads; the coordinator says so to some and not to others, and asks everybody to unmask."""
    table = Table().until("consistency")
    without = edited(RecoverySurvivors, table.machine.asked["n0"], lambda s: s.survivors.__delitem__(3))
    told = {name: (without if name in ("n0", "n1") else table.machine.asked[name]) for name in NAMES}
    agreements = RecoveryAgreements()
    for name in NAMES:
        said = table.nodes[name].answer("consistency", told[name])
        agreements.agreements.add().ParseFromString(said.body)
    # Nobody finds enough signatures under the list it signed itself, whichever the coordinator shows it.
    for name in NAMES:
        alike = [entry for entry in agreements.agreements if (told[entry.node] is told[name])]
        for shown in (agreements.agreements, alike):
            half = table.nodes[name]
            with pytest.raises((SignatureError, CohortTooSmallError, ProtectionError)):
                half.answer("unmask", _said(RecoveryAgreements(agreements=shown)))


def test_an_honest_answer_has_exactly_one_kind_of_share_per_peer_and_only_once() -> None:
    table = Table().until("consistency", absent=("n4",)).until("unmask")
    answer = table.nodes["n0"].answer("unmask", table.machine.asked["n0"])
    shares = RecoveryShares()
    shares.ParseFromString(answer.body)
    assert {share.node: share.WhichOneof("kind") for share in shares.shares} == {
        "n0": "seeds", "n1": "seeds", "n2": "seeds", "n3": "seeds", "n4": "key",
    }  # fmt: skip
    for phase in PHASES:  # also with the very same words
        with pytest.raises(ProtectionError):
            table.nodes["n0"].answer(phase, table.machine.asked["n0"])


AGREEMENTS: dict[str, Callable[[RecoveryAgreements], object]] = {
    "too few": lambda a: a.agreements.__delitem__(slice(3, None)),
    "one node many times": lambda a: a.agreements.extend([a.agreements[0]] * 5),
    "a bad signature": lambda a: setattr(a.agreements[1], "signature", _flip(a.agreements[1].signature)),
    "none": lambda a: a.agreements.__delitem__(slice(None)),
    "another's signature": lambda a: setattr(a.agreements[1], "signature", a.agreements[2].signature),
}


@pytest.mark.parametrize("attack", AGREEMENTS)
def test_without_enough_agreements_no_share_is_released(attack: str) -> None:
    table = Table(other(context(*NAMES), min_cohort=4)).until("unmask")
    with pytest.raises((ProtectionError, CohortTooSmallError, SignatureError)):
        table.tell("n0", edited(RecoveryAgreements, table.machine.asked["n0"], AGREEMENTS[attack]))
    with pytest.raises(ProtectionError):
        table.tell("n0", table.machine.asked["n0"])


def test_a_group_that_fell_below_its_minimum_is_not_released_although_another_is() -> None:
    names = tuple(f"n{index}" for index in range(9))
    table = Table(context(*names), deep=frozenset(names[:3]))
    table.until("consistency", absent=("n1",)).until("unmask")
    shares = RecoveryShares()
    shares.ParseFromString(table.nodes["n0"].answer("unmask", table.machine.asked["n0"]).body)
    for share in shares.shares:
        if share.node == "n1":
            assert share.WhichOneof("kind") == "key"
        else:
            assert len(share.seeds.shares) == 1  # the group of `body`; two holders of `head` are left


# --- values (11, 14, 19) -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0, 31, 65, 64 * 5 + 1, 2**63])
def test_a_weight_that_cannot_be_is_refused_when_the_sum_opens(weight: int) -> None:
    about = other(context(*NAMES), min_cohort=5)  # a smaller minimum leaves no room for weights at all
    table = Table(about)
    mine = contribution(weight, {}, body=[1, 2, 3], head=[4, 5])
    table.nodes["n0"] = MASKED.node(about, mine, host("n0", UnsafeSeededRandomness(1)))
    table.until("unmask")
    ok = 5 * weight_floor(5, 1) <= 4 * 64 + weight <= 5 * 64
    if ok:  # Hidden among the others. The floor is each node's own promise; a sum cannot tell who broke it.
        assert table.play() is not None
        return
    with pytest.raises(ProtectionError, match="weight"):
        table.play()


def test_seeds_have_full_entropy_and_are_never_drawn_twice() -> None:
    seen: set[bytes] = set()
    drawn: list[int] = []

    class Counting(SystemRandomness):
        def bytes(self, count: int) -> bytes:
            raw = super().bytes(count)
            drawn.append(count)
            assert raw not in seen
            seen.add(raw)
            return raw

    about = context(*NAMES)
    table = Table(about)
    table.nodes["n0"] = MASKED.node(about, table.values["n0"], host("n0", Counting()))
    table.until("upload")
    # Two X25519 keys and a seed of 256 bits each, and 512 bits for each coefficient of two polynomials.
    assert drawn == [32, 32, 32, 64 * 3, 64 * 3]


def test_each_group_has_masks_of_its_own() -> None:
    names = tuple(f"n{index}" for index in range(9))
    zeros = layout(body=60, head=60)
    about = context(*names, blocks=zeros)
    table = Table(about)
    table.values = {
        name: contribution(64, {}, body=[0] * 60, **({"head": [0] * 60} if index < 5 else {}))
        for index, name in enumerate(names)
    }
    table.nodes = halves(MASKED, about, table.values)
    table.until("consistency")
    words = np.frombuffer(table.answers["upload", "n0"].bulk, WORD)
    assert words.size == 42
    assert len(set(words.tolist())) == 42
    assert not set(words[:20].tolist()) & set(words[21:41].tolist())


# --- a node against the coordinator ------------------------------------------------------------------------------


def test_an_upload_of_the_wrong_length_or_without_its_commit_changes_nothing() -> None:
    table = Table().until("upload")
    honest = table.nodes["n0"].answer("upload", table.machine.asked["n0"])
    for body, bulk in (
        (honest.body, honest.bulk[:-8]),
        (honest.body, bytes(honest.bulk) + bytes(8)),
        (honest.body, _flip(honest.bulk)),
        (b"", honest.bulk),
        (b"\xff", honest.bulk),
    ):
        with pytest.raises(SecureFLError):
            table.machine.accept("n0", "upload", Message(body=body), InMemory(bulk))
    table.machine.accept("n0", "upload", Message(body=honest.body), InMemory(honest.bulk))
    for name in NAMES[1:]:
        answer = table.nodes[name].answer("upload", table.machine.asked[name])
        table.machine.accept(name, "upload", replace(answer, bulk=b""), InMemory(answer.bulk))
    table.machine.close()
    table.until("unmask")
    opened: Any = table.play()
    assert opened.blocks["body"].total.tolist() == [5, 10, 15]


class _Failing(InMemory):
    """A disk that fails in the middle of an upload."""

    def read(self, offset: int, count: int) -> bytes:
        if offset:
            raise StorageError("an accepted upload cannot be read (Input/output error)")
        return bytes(self.content[:count])


def test_an_upload_that_was_added_in_part_ends_the_attempt() -> None:
    """The node sends it again, as after any trouble of the coordinator's; added twice, it would be a wrong sum."""
    size = 400_000  # more words than are read at a time
    names = NAMES[:4]  # of four sites every lane is a possible sum: no bound would notice
    table = Table(context(*names, blocks=layout(body=size)))
    table.values = {name: contribution(64, {}, body=[1] * size) for name in names}
    table.nodes = halves(MASKED, table.about, table.values)
    table.until("upload")
    for name in names:
        answer = table.nodes[name].answer("upload", table.machine.asked[name])
        if name == "n2":
            with pytest.raises(StorageError):
                table.machine.accept(name, "upload", Message(body=answer.body), _Failing(answer.bulk))
        table.machine.accept(name, "upload", Message(body=answer.body), InMemory(answer.bulk))
    try:
        table.machine.close()
    except ProtectionError:
        return
    table.until("unmask")
    opened: Any = table.play()
    assert set(opened.blocks["body"].total.tolist()) == {4}


MALFORMED: dict[str, Callable[[RecoveryShares], object]] = {
    "a key instead of seeds": lambda s: setattr(s.shares[1], "key", bytes(33)),
    "about a stranger": lambda s: setattr(s.shares[1], "node", "zz"),
    "about a node twice": lambda s: s.shares.append(s.shares[0]),
    "about too few": lambda s: s.shares.__delitem__(0),
    "outside the field": lambda s: s.shares[1].seeds.shares.__setitem__(0, b"\xff" * 33),
    "too many seeds": lambda s: s.shares[1].seeds.shares.append(bytes(33)),
    "nothing about itself": lambda s: s.shares[0].ClearField("seeds"),
}


@pytest.mark.parametrize("attack", MALFORMED)
def test_malformed_shares_cost_their_sender_only(attack: str) -> None:
    table = Table().until("unmask")
    answer = table.nodes["n0"].answer("unmask", table.machine.asked["n0"])
    with pytest.raises(ProtectionError):
        table.machine.accept("n0", "unmask", edited(RecoveryShares, answer, MALFORMED[attack]), InMemory(b""))
    table.machine.leave("n0", "Protection")
    opened: Any = table.play()
    assert opened.blocks["body"].total.tolist() == [5, 10, 15]


@pytest.mark.parametrize("phase", PHASES)
def test_garbage_in_any_phase_is_a_typed_error_on_both_sides(phase: str) -> None:
    for garbage in (b"\xff", b"\x0a\x00", bytes(1000), b"\x0a\x02\x0a\x00" * 300):
        table = Table().until(phase)
        if phase != "advertise":
            with pytest.raises(SecureFLError):
                table.tell("n1", Message(body=garbage))
        with pytest.raises(SecureFLError):
            table.machine.accept("n0", phase, Message(body=garbage), InMemory(b""))


def test_a_phase_out_of_turn_or_twice_gets_nothing() -> None:
    half: NodeHalf = Table().nodes["n0"]
    half.answer("advertise", Message())
    with pytest.raises(ProtectionError, match="not the next"):
        half.answer("advertise", Message())
    with pytest.raises(ProtectionError):
        half.answer("unmask", Message())


def _padding(room: int) -> bytes:
    """A field that no message has, of about that length."""
    size, length = room, b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return b"\x7a" + length + bytes([size]) + bytes(room)


@pytest.mark.parametrize("phase", ["advertise", "share", "upload", "consistency"])
def test_what_one_node_adds_to_its_messages_is_not_sent_to_everybody(phase: str) -> None:
    """Each of its messages is within the limit; what they become is to be, too, or no node could receive it."""
    table = Table().until(phase)
    for name in NAMES:
        answer = table.nodes[name].answer(phase, table.machine.asked[name])
        if name == "n1":
            answer = replace(answer, body=answer.body + _padding(PAYLOAD_BYTES - len(answer.body) - 8))
            assert len(answer.body) <= PAYLOAD_BYTES
        try:
            table.machine.accept(name, phase, replace(answer, bulk=b""), InMemory(answer.bulk))
        except ProtectionError:
            assert name == "n1"
            table.machine.leave(name, "Protection")
    table.machine.close()
    assert all(len(message.body) < 10_000 for message in table.machine.asked.values())


# --- a node that borrows another's key ---------------------------------------------------------------------------


def _same_point(public: bytes) -> list[bytes]:
    """Other encodings under which X25519 agrees on the same secret: the ignored bit, and a point of order 2 added."""
    prime = 2**255 - 19
    u = int.from_bytes(public, "little") & (2**255 - 1)
    return [
        (u | 1 << 255).to_bytes(32, "little"),
        pow(u, -1, prime).to_bytes(32, "little"),  # u(P + (0, 0)) = 1/u(P), and the scalars are multiples of 8
    ]


@pytest.mark.parametrize("encoding", [0, 1])
def test_masks_towards_a_borrowed_key_do_not_cancel_those_towards_its_owner(encoding: int) -> None:
    """n2 works with the coordinator, which shows it n0's key; n1 sits between the two, so their signs differ."""
    names = ("n0", "n1", "n2")
    table = Table(context(*names))
    evil: Any = table.nodes["n2"]
    said = {name: table.nodes[name].answer("advertise", Message()) for name in names}
    victim = parse(RecoveryManifest, parse(Manifest, said["n0"].body).extension)
    borrowed: Any = _Point(_same_point(victim.mask_key)[encoding])
    evil._manifest = manifest(table.about, member("n2"), mask=borrowed, envelope=evil._envelope_key)
    said["n2"] = _said(evil._manifest)
    for name in names:
        table.machine.accept(name, "advertise", said[name], InMemory(b""))
    table.machine.close()
    table.until("unmask")
    shares: dict[int, int] = {}
    for index, name in enumerate(names, start=1):
        answer = table.nodes[name].answer("unmask", table.machine.asked[name])
        shares[index] = read_share(by("n1", RecoveryShares, answer).seeds.shares[0])
    seed = Interpolation([1, 2, 3], threshold=3).secret(shares)
    words = np.frombuffer(table.answers["upload", "n1"].bulk, WORD).copy()
    add_masks(words, minus=[seed])
    packing = Packing(bits=16, contributors=3)
    body = np.zeros(1, WORD)
    packing.pack(np.array([1, 2, 3], np.int32), body)
    # What is left is to be the pairwise masks, and not body = [1, 2, 3], head = [4, 5] and the weight.
    assert words[0] != body[0]
    assert words[-1] != 64
