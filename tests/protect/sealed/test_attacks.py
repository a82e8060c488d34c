"""A coordinator or a node that cheats in a sealed round, through the real messages.

Every attack ends in a typed error; no share is released, and no decision stored where none should be. Restarts are part
of what an attacker may cause: whatever a node must not forget has to come from its memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_fl.aggregation import RequestKind
from secure_fl.encoding.weights import weight_floor
from secure_fl.errors import (
    CertificateError,
    CohortTooSmallError,
    IdentityError,
    MalformedMessageError,
    OverflowInvariantError,
    ProtectionError,
    ReleaseRefusedError,
    RestartedError,
    SecureFLError,
    SignatureError,
)
from secure_fl.identity.certificates import Certificate, TrustStore, utc_now
from secure_fl.identity.member import Member
from secure_fl.limits import PAYLOAD_BYTES
from secure_fl.messages import parse
from secure_fl.protect.cohort.signed import make_manifest
from secure_fl.protect.combining import CombinationsSent
from secure_fl.protect.contract import Message, OpenedSums, RoundContext
from secure_fl.protect.primitives.envelopes import Envelopes
from secure_fl.protect.primitives.field import ELEMENT, MODULUS, Elements, to_signed, uniform, weighted_sum
from secure_fl.protect.sealed.groups import SealedGroup
from secure_fl.protect.sealed.manifest import MANIFESTS
from secure_fl.protect.sealed.ring import DEGREE, Product
from secure_fl.protect.sealed.shares import SEED_BYTES, VECTOR_BYTES, expand_share, interpolate
from secure_fl.protect.sealed.terms import Terms
from secure_fl.protect.uploads.statements import Rows as SignedRows
from secure_fl.protect.uploads.statements import Uploads, sign_commit
from secure_fl.randomness import UnsafeSeededRandomness
from secure_fl.rpc.protect_cohort_pb2 import Manifest, Roster
from secure_fl.rpc.protect_sealed_pb2 import SealedDelivery, SealedOpening, SealedSums
from secure_fl.rpc.protect_uploads_pb2 import (
    UploadAnswer,
    UploadCommit,
    UploadEnvelope,
    UploadEnvelopes,
    UploadManifest,
    UploadReplies,
    UploadReply,
    UploadRow,
    UploadScores,
)
from tests.protect.cohorts import InMemory, context, contribution, host, layout
from tests.protect.members import authority, enrol, member
from tests.protect.sealed.table import NAMES, RECOMPUTES, Table, combine_round, edited, flip, reworded, said, sum_round

KINDS = {"sum": sum_round, "combine": combine_round}
KEY = X25519PrivateKey.generate()

Round = Callable[[], RoundContext]


# --- who is there (1, 3, 5, 12, 15, 16) ---------------------------------------------------------------------------


def manifest(
    about: RoundContext,
    who: Member,
    *,
    reply: X25519PrivateKey | None = None,
    envelope: X25519PrivateKey | None = None,
    protocol: str = "sealed",
) -> Manifest:
    extension = MANIFESTS.write(
        reply_key=reply or X25519PrivateKey.generate(), envelope_key=envelope or X25519PrivateKey.generate()
    )
    return make_manifest(about, host(who), protocol=protocol, blocks=("body", "head"), extension=extension)


def swap(roster: Roster, name: str, forged: Manifest) -> None:
    next(entry for entry in roster.manifests if entry.node == name).CopyFrom(forged)


def _both(roster: Roster, *forged: Manifest) -> None:
    for one in forged:
        swap(roster, one.node, one)


def _stranger(table: Table) -> Manifest:
    about = replace(table.about, invited=(*NAMES, "n9"), roster={**table.about.roster, "n9": "0" * 64})
    return manifest(about, member("n9"))


def _twin(table: Table, roster: Roster) -> None:
    forged = manifest(table.about, member("n2-sealed-twin"))
    forged.node = "n2"
    swap(roster, "n2", forged)


def _changed(**changes: Any) -> Callable[[Table, Roster], None]:
    """A manifest that n2 really signed, for a round that is not this one."""
    return lambda t, r: swap(r, "n2", manifest(replace(t.about, **changes), member("n2")))


def _another_roster(table: Table, roster: Roster) -> None:
    _changed(roster={**table.about.roster, "n5": "0" * 64})(table, roster)


ROSTERS: dict[str, tuple[Callable[[Table, Roster], object], type[SecureFLError]]] = {
    "a key nobody signed": (
        lambda _t, r: reworded(r.manifests[2], envelope_key=KEY.public_key().public_bytes_raw()),
        SignatureError,
    ),
    "a reply key nobody signed": (
        lambda _t, r: reworded(r.manifests[2], reply_key=KEY.public_key().public_bytes_raw()),
        SignatureError,
    ),
    "a key the coordinator signed itself": (
        lambda t, r: swap(r, "n2", manifest(t.about, replace(member("n2"), key=member("sealed-evil").key))),
        SignatureError,
    ),
    "another certificate of the same consortium": (_twin, CertificateError),
    "a manifest of another round": (_changed(round=2), SignatureError),
    "a manifest of another attempt": (_changed(attempt=2), SignatureError),
    "a manifest for another base model": (_changed(base_model=b"\x01" * 32), SignatureError),
    "a manifest of another study": (_changed(study_id="0b" * 32), SignatureError),
    "a manifest for another roster": (_another_roster, SignatureError),
    "a manifest for fewer colluders": (_changed(colluders=0), SignatureError),
    "a manifest for a smaller cohort": (_changed(min_cohort=2), SignatureError),
    "a manifest for recomputing": (_changed(settings=RECOMPUTES.canonical_settings), SignatureError),
    "a manifest of another protection": (
        lambda t, r: swap(r, "n2", manifest(t.about, member("n2"), protocol="masked")),
        SignatureError,
    ),
    "the same node twice": (lambda _t, r: r.manifests.append(r.manifests[2]), ProtectionError),
    "out of order": (lambda _t, r: r.manifests.reverse(), ProtectionError),
    "this node left out": (lambda _t, r: r.manifests.remove(r.manifests[0]), ProtectionError),
    "this node's manifest changed": (lambda t, r: swap(r, "n0", manifest(t.about, member("n0"))), ProtectionError),
    "a stranger": (lambda t, r: r.manifests.append(_stranger(t)), ProtectionError),
    "a key for two purposes": (
        lambda t, r: swap(r, "n2", manifest(t.about, member("n2"), reply=KEY, envelope=KEY)),
        ProtectionError,
    ),
    "two nodes with one key": (
        lambda t, r: _both(r, *(manifest(t.about, member(name), envelope=KEY) for name in ("n2", "n3"))),
        ProtectionError,
    ),
    "a reply key that is another's envelope key": (
        lambda t, r: _both(
            r, manifest(t.about, member("n2"), reply=KEY), manifest(t.about, member("n3"), envelope=KEY)
        ),
        ProtectionError,
    ),
    "too few": (lambda _t, r: r.manifests.__delitem__(slice(2, None)), CohortTooSmallError),
    "nobody": (lambda _t, r: r.manifests.__delitem__(slice(None)), SecureFLError),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attack", ROSTERS)
def test_a_roster_that_is_not_the_signed_one_gets_no_upload(attack: str, kind: str) -> None:
    change, error = ROSTERS[attack]
    table = Table(KINDS[kind]()).until("upload")
    table.refuses("n0", edited(Roster, table.asked["n0"], lambda r: change(table, r)), error)
    assert table.memories["n0"].load() is None
    # Nor does it hold anything for those it was shown.
    with pytest.raises(ProtectionError, match="never told who takes part"):
        table.nodes["n0"].answer("open", Message())


def test_one_story_for_each_node_opens_nothing() -> None:
    """n4 is hidden from half of the nodes: what is uploaded under one roster means nothing under the other."""
    table = Table(sum_round()).until("upload")
    without = edited(Roster, table.asked["n0"], lambda r: r.manifests.__delitem__(4))
    told = {name: without if name in ("n0", "n1", "n2") else table.asked[name] for name in NAMES}
    answers = {name: table.nodes[name].answer("upload", told[name]) for name in NAMES}
    uploads = {name: parse(UploadAnswer, answer.body) for name, answer in answers.items()}
    for name, answer in answers.items():
        if name in ("n0", "n1", "n2"):
            with pytest.raises(SecureFLError):
                table.machine.accept(name, "upload", replace(answer, bulk=b""), InMemory(answer.bulk))
    for names in (NAMES, ("n0", "n1", "n2"), ("n3", "n4", "n5"), ("n0", "n1", "n3")):
        for holder in NAMES:
            half = table.restart(holder)
            opening = SealedOpening(commits=[uploads[name].commit for name in names])
            for name in names:
                sealed = next((e for e in uploads[name].envelopes if e.peer == holder), UploadEnvelope())
                opening.envelopes.add(peer=name, key_shares=sealed.key_shares)
            same = {told[name] is without for name in (*names, holder)}
            if len(same) == 1:
                continue  # A cohort of its own, complete and honest; five of five, or three of six below their minimum.
            with pytest.raises(SecureFLError):
                half.answer("open", said(opening))
            assert not table.decided(holder)


@pytest.mark.parametrize("late", [timedelta(0), timedelta(days=60)], ids=["revoked", "expired"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_revoked_or_expired_peer_gets_no_share(kind: str, late: timedelta) -> None:
    name = f"revoked-{kind}-{late.days}"
    table = Table(KINDS[kind](*NAMES[:5], name)).until("upload")
    if not late:
        authority().revoke(name)
    believed = TrustStore(authority().ca_pem, authority().crl_path)

    def vouch(peer: Certificate) -> None:
        if peer.name == name:
            believed.check(peer, role="node", now=utc_now() + late)

    half = table.half("n0", UnsafeSeededRandomness(7, "n0"), me=replace(member("n0"), vouch=vouch))
    half.answer("advertise", Message())
    with pytest.raises(CertificateError):
        half.answer("upload", table.asked["n0"])
    assert table.memories["n0"].load() is None
    # Nor does a node that restarts go on with it.
    table.play()
    with pytest.raises(CertificateError):
        table.half("n0", me=replace(member("n0"), vouch=vouch))


def test_the_coordinator_half_takes_no_manifest_for_another() -> None:
    table = Table(combine_round())
    table.machine.accept("n0", "advertise", said(manifest(table.about, member("n0"), reply=KEY)), InMemory(b""))
    for name, forged in (
        ("n1", manifest(table.about, member("n2"))),
        ("n1", manifest(table.about, member("n1"), envelope=KEY)),
        ("n1", manifest(table.about, member("n1"), envelope=KEY, reply=KEY)),
        ("n1", manifest(replace(table.about, attempt=3), member("n1"))),
        ("n1", manifest(table.about, enrol("n1-sealed-twin"))),
        ("n1", manifest(table.about, member("n1"), protocol="masked")),
    ):
        with pytest.raises((ProtectionError, IdentityError)):
            table.machine.accept(name, "advertise", said(forged), InMemory(b""))
    table.machine.accept("n1", "advertise", said(manifest(table.about, member("n1"))), InMemory(b""))


EXTENSIONS: dict[str, Callable[[UploadManifest], object]] = {
    "a sketch nobody asked for": lambda m: setattr(m, "sketch_hashes", bytes(32 * 6)),
    "a proof nobody asked for": lambda m: setattr(m, "sketch_proof", bytes(32)),
    "rows out of order": lambda m: m.opened.extend([b"\x02" * 32, b"\x01" * 32]),
    "a row twice": lambda m: m.opened.extend([b"\x01" * 32] * 2),
    "a row that is no digest": lambda m: m.opened.append(b"\x01" * 31),
    "too many rows": lambda m: m.opened.extend(number.to_bytes(32, "big") for number in range(4097)),
    "no envelope key": lambda m: m.ClearField("envelope_key"),
    "no reply key": lambda m: m.ClearField("reply_key"),
    "a key of small order": lambda m: setattr(m, "reply_key", bytes(32)),
    "something unknown": lambda m: m.MergeFromString(b"\x7a\x04note"),
}


@pytest.mark.parametrize("attack", EXTENSIONS)
def test_an_extension_has_what_the_round_asks_for_and_nothing_else(attack: str) -> None:
    """Signed by its node, it is refused by the coordinator and, where that works with the node, by every other one."""
    table = Table(combine_round())
    honest = parse(UploadManifest, manifest(table.about, member("n2")).extension)
    EXTENSIONS[attack](honest)
    extension = honest.SerializeToString(deterministic=True)
    forged = make_manifest(table.about, host("n2"), protocol="sealed", blocks=("body", "head"), extension=extension)
    with pytest.raises((ProtectionError, MalformedMessageError)):
        table.machine.accept("n2", "advertise", said(forged), InMemory(b""))
    table.until("upload")
    wrong = edited(Roster, table.asked["n0"], lambda roster: swap(roster, "n2", forged))
    table.refuses("n0", wrong, (ProtectionError, MalformedMessageError))


@pytest.mark.parametrize("opened", [0, 1])
def test_a_sum_has_no_rows_behind_it(opened: int) -> None:
    table = Table(sum_round())
    extension = MANIFESTS.write(
        envelope_key=X25519PrivateKey.generate(), reply_key=X25519PrivateKey.generate(), opened=[bytes(32)] * opened
    )
    told = make_manifest(table.about, host("n2"), protocol="sealed", blocks=("body",), extension=extension)
    if opened:
        with pytest.raises(ProtectionError, match="remembers too much"):
            table.machine.accept("n2", "advertise", said(told), InMemory(b""))
    else:
        table.machine.accept("n2", "advertise", said(told), InMemory(b""))


# --- what was uploaded (3, 4, 5) ----------------------------------------------------------------------------------


def _commit(table: Table, name: str, **changes: Any) -> UploadCommit:
    """A commit that `name` signs, though it uploaded something else."""
    fields = {"upload": bytes(32), "digests": (), **changes}
    return sign_commit(member(name), table.cohort, fields["upload"], fields["digests"])


def _replay(table: Table) -> UploadCommit:
    """What n1 signed in the attempt before."""
    earlier = Table(replace(table.about, attempt=2)).until("open" if len(table.phases) == 3 else "row")
    return earlier.commits("n1")[0]


Commits = Any  # a repeated field
COMMITS: dict[str, tuple[Callable[[Table, Commits], object], type[SecureFLError]]] = {
    "another upload of mine, even if signed": (lambda t, c: c[0].CopyFrom(_commit(t, "n0")), ProtectionError),
    "another's upload exchanged": (lambda _t, c: setattr(c[1], "upload", bytes(32)), SignatureError),
    "another's signature": (lambda _t, c: setattr(c[1], "signature", c[2].signature), SignatureError),
    "no signature": (lambda _t, c: setattr(c[1], "signature", b""), SignatureError),
    "of another attempt": (lambda t, c: c[1].CopyFrom(_replay(t)), SignatureError),
    "a node twice": (lambda _t, c: c.append(c[1]), ProtectionError),
    "out of order": (lambda _t, c: c.reverse(), ProtectionError),
    "a stranger": (lambda _t, c: c.add(node="zz", upload=bytes(32), signature=bytes(64)), ProtectionError),
    "one who did not upload": (lambda _t, c: c.add(node="n5", upload=bytes(32), signature=bytes(64)), SignatureError),
    "too few": (lambda t, c: c.__delitem__(slice(t.about.min_cohort - 1, None)), CohortTooSmallError),
    "nobody": (lambda _t, c: c.__delitem__(slice(None)), CohortTooSmallError),
    "digests nobody signed": (lambda _t, c: c[1].digests.append(bytes(32)), SecureFLError),
    "digests where none are asked for": (
        lambda t, c: c[1].CopyFrom(_commit(t, "n1", upload=c[1].upload, digests=[bytes(32)])),
        ProtectionError,
    ),
    "a digest that is none": (lambda t, c: c[1].CopyFrom(_commit(t, "n1", upload=b"n2")), ProtectionError),
}
ASKED: dict[str, tuple[Round, type[Any]]] = {
    "open": (sum_round, SealedOpening),
    "row": (combine_round, UploadScores),
    "score": (lambda: combine_round(compares=True), UploadEnvelopes),
    "open rows": (combine_round, SealedOpening),
}


@pytest.mark.parametrize("phase", ASKED)
@pytest.mark.parametrize("attack", COMMITS)
def test_uploads_that_are_not_the_signed_ones_get_no_answer(attack: str, phase: str) -> None:
    change, error = COMMITS[attack]
    about, kind = ASKED[phase]
    table = Table(about()).until("upload")
    table.play(absent=("n5",))
    while table.machine.phase != phase.split(maxsplit=1)[0]:
        table.play()
    table.refuses("n0", edited(kind, table.asked["n0"], lambda m: change(table, m.commits)), error)
    assert not table.decided("n0")


def test_no_two_lists_of_uploads_have_one_digest() -> None:
    """n1 signs digests that read like another node's entry: with a flat list n2 could be in it, or not."""
    table = Table(sum_round()).until("open")
    honest = {name: table.commits(name)[0] for name in NAMES}
    posing = _commit(table, "n1", upload=honest["n1"].upload, digests=[b"n2", honest["n2"].upload])
    first = table.tell("n0", table.asked["n0"])
    table.restart("n0")

    def without_n2(opening: SealedOpening) -> None:
        opening.commits[1].CopyFrom(posing)
        del opening.commits[2]
        del opening.envelopes[2]

    with pytest.raises(ProtectionError):
        table.tell("n0", edited(SealedOpening, table.asked["n0"], without_n2))
    table.restart("n0")
    assert table.tell("n0", table.asked["n0"]) == first


# --- envelopes (6, 7) ---------------------------------------------------------------------------------------------


def _swap_senders(opening: SealedOpening) -> None:
    first, second = opening.envelopes[1], opening.envelopes[2]
    first.peer, second.peer = second.peer, first.peer
    opening.envelopes.sort(key=lambda envelope: envelope.peer)


def _set(opening: SealedOpening, share: bytes) -> None:
    opening.envelopes[1].key_shares[0] = share


ENVELOPES: dict[str, Callable[[SealedOpening], object]] = {
    "a bit flipped": lambda o: _set(o, flip(o.envelopes[1].key_shares[0])),
    "swapped between senders": _swap_senders,
    "a share too few": lambda o: o.envelopes[1].key_shares.__delitem__(0),
    "a share too many": lambda o: o.envelopes[1].key_shares.append(o.envelopes[1].key_shares[0]),
    "empty": lambda o: _set(o, b""),
    "short": lambda o: _set(o, b"\x00" * 15),
    "an envelope missing": lambda o: o.envelopes.__delitem__(1),
    "an envelope twice": lambda o: o.envelopes.append(o.envelopes[1]),
    "of a stranger": lambda o: setattr(o.envelopes[5], "peer", "zz"),
    "out of order": lambda o: o.envelopes.reverse(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attack", ENVELOPES)
def test_envelopes_that_were_touched_open_nothing(attack: str, kind: str) -> None:
    table = Table(KINDS[kind]()).until("open")
    table.refuses("n0", edited(SealedOpening, table.asked["n0"], ENVELOPES[attack]), ProtectionError)


def _envelope(message: Message, name: str) -> UploadEnvelope:
    return next(e for e in parse(SealedOpening, message.body).envelopes if e.peer == name)


@pytest.mark.parametrize("kind", KINDS)
def test_an_envelope_for_another_recipient_or_of_another_attempt_does_not_open(kind: str) -> None:
    about = KINDS[kind]()
    table = Table(about).until("open")
    theirs = _envelope(table.asked["n2"], "n1")
    table.refuses(
        "n0", edited(SealedOpening, table.asked["n0"], lambda o: o.envelopes[1].CopyFrom(theirs)), ProtectionError
    )
    # With the very same keys, which a node never draws twice, another attempt is another transcript.
    earlier, later = Table(replace(about, attempt=2)).until("open"), Table(about).until("open")
    old = _envelope(earlier.asked["n0"], "n1")
    later.refuses(
        "n0", edited(SealedOpening, later.asked["n0"], lambda o: o.envelopes[1].CopyFrom(old)), ProtectionError
    )


NINE = tuple(f"n{index}" for index in range(9))


@pytest.mark.parametrize("kind", KINDS)
def test_envelopes_swapped_across_groups_or_kinds_do_not_open(kind: str) -> None:
    def swapped(opening: SealedOpening) -> None:
        shares = opening.envelopes[1].key_shares
        assert len(shares) == 2
        shares[0], shares[1] = shares[1], shares[0]

    deep = frozenset(NINE[:5])
    table = Table(KINDS[kind](*NINE), deep=deep).until("open")
    table.refuses("n0", edited(SealedOpening, table.asked["n0"], swapped), ProtectionError)
    if kind == "combine":
        table = Table(combine_round(*NINE, compares=True), deep=deep).until("score")
        asked = parse(UploadEnvelopes, table.asked["n0"].body).envelopes[1]
        half: Any = table.nodes["n0"]
        for purpose in (b"", b"sketch ", *(group.label for group in table.cohort.groups)):
            with pytest.raises(ProtectionError):
                half.party.unseal(asked.sketch_share, "n1", purpose=purpose)
        half.party.unseal(asked.sketch_share, "n1", purpose=b"sketch")


NONSENSE = {
    "outside the field": b"\xff" * VECTOR_BYTES,
    "the modulus itself": MODULUS.to_bytes(4, "little") * DEGREE,
    "an element too few": bytes(VECTOR_BYTES - 4),
    "a byte too many": bytes(VECTOR_BYTES + 1),
    "a short seed": bytes(SEED_BYTES - 1),
    "nothing": b"",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attack", NONSENSE)
def test_a_share_that_is_none_but_properly_sealed_is_refused(attack: str, kind: str) -> None:
    table = Table(KINDS[kind]()).until("open")
    evil: Any = table.nodes["n1"]
    sealed = evil.party.seal(NONSENSE[attack], "n0", purpose=table.cohort.groups[0].label)
    table.refuses("n0", edited(SealedOpening, table.asked["n0"], lambda o: _set(o, sealed)), ProtectionError)


# --- what is opened (4, 8, 9) -------------------------------------------------------------------------------------

Rows = dict[str, dict[str, int]]


def opening_of(table: Table, holder: str, wanted: Rows, *uploaded: str) -> Message:
    """What a holder is asked to open, all of it signed: recipients of such rows work with the coordinator."""
    names = uploaded or table.about.invited
    opening = SealedOpening(commits=table.commits(*names))
    opening.rows.extend(table.signed_row(name, row, *names) for name, row in sorted(wanted.items()))
    for name in names:
        everybody = parse(UploadAnswer, table.answers["upload", name].body).envelopes
        sealed = next(envelope for envelope in everybody if envelope.peer == holder)
        opening.envelopes.add(peer=name, key_shares=sealed.key_shares)
    return said(opening)


EVEN = dict(zip(NAMES, (11, 11, 11, 11, 10, 10), strict=True))

MATRICES: dict[str, tuple[Rows, type[SecureFLError], str]] = {
    "a unit row": ({"n0": {"n1": 64}}, CohortTooSmallError, ""),
    "three nodes": ({"n0": {"n0": 20, "n1": 22, "n2": 22}}, CohortTooSmallError, ""),
    "one node above half": ({"n0": {"n0": 10, "n1": 33, "n2": 7, "n3": 7, "n4": 7}}, ReleaseRefusedError, "support"),
    "one node stands out": ({"n0": {"n0": 31, "n1": 26, "n2": 3, "n3": 4}}, ReleaseRefusedError, "leverage"),
    "its recipient is not in it": ({"n0": {"n1": 16, "n2": 16, "n3": 16, "n4": 16}}, ReleaseRefusedError, "support"),
    "one row of many": ({**dict.fromkeys(NAMES, EVEN), "n3": {"n3": 2, "n1": 31, "n2": 30, "n0": 1}},
                        ReleaseRefusedError, "leverage"),
}  # fmt: skip


@pytest.mark.parametrize("attack", MATRICES)
def test_rows_that_isolate_a_node_are_refused_though_their_recipients_signed_them(attack: str) -> None:
    wanted, error, rule = MATRICES[attack]
    table = Table(combine_round()).until("open")
    refused = table.refuses("n2", opening_of(table, "n2", wanted), error)
    if isinstance(refused, ReleaseRefusedError):
        assert refused.rule == rule


def test_two_rows_that_differ_by_one_node_are_refused_where_both_recipients_may_collude() -> None:
    """Ten nodes, c = 2: each of two rows alone is harmless, together they show n2 and n3."""
    names = tuple(f"n{index}" for index in range(10))
    table = Table(combine_round(*names, colluders=2, min_cohort=5)).until("row")
    even = dict(zip(names, (7, 7, 7, 7, 6, 6, 6, 6, 6, 6), strict=True))
    near = {**even, "n2": 8, "n3": 6}
    table.play()
    for wanted, passes in (({"n0": even}, True), ({"n1": near}, True), ({"n0": even, "n1": near}, False)):
        half: Any = table.restart("n2")
        opening = opening_of(table, "n2", wanted)
        if passes:
            half.answer("open", opening)
            half.party.memory.now.decided.clear()  # As if it had never been asked.
            half.party.memory._save()
            continue
        with pytest.raises(ReleaseRefusedError):
            half.answer("open", opening)
        assert not table.decided("n2")


def _reweigh(row: UploadRow, weights: dict[str, int]) -> None:
    row.row.clear()
    row.row.update(weights)


def _signed(table: Table, row: UploadRow, weights: dict[str, int]) -> None:
    row.CopyFrom(table.signed_row(row.node, weights))


ROWS: dict[str, tuple[Callable[[Table, SealedOpening], object], type[SecureFLError]]] = {
    "a weight changed": (lambda _t, o: _reweigh(o.rows[1], {**EVEN, "n0": 12, "n1": 10}), SignatureError),
    "no signature": (lambda _t, o: setattr(o.rows[1], "signature", b""), SignatureError),
    "another's row": (lambda _t, o: setattr(o.rows[1], "signature", o.rows[2].signature), SignatureError),
    "another's row under its name": (lambda _t, o: setattr(o.rows[0], "node", "n1"), SecureFLError),
    "a row for other uploads": (
        lambda t, o: o.rows[1].CopyFrom(t.signed_row("n1", dict(o.rows[1].row), *NAMES[:5])),
        SignatureError,
    ),
    "signed by the coordinator's own key": (
        lambda t, o: setattr(o.rows[1], "signature", enrol(f"c{len(t.answers)}").key.sign("sealed row", b"")),
        SignatureError,
    ),
    "a row twice": (lambda _t, o: o.rows.append(o.rows[0]), ProtectionError),
    "out of order": (lambda _t, o: o.rows.reverse(), ProtectionError),
    "no rows at all": (lambda _t, o: o.rows.__delitem__(slice(None)), ProtectionError),
    "an empty row": (lambda t, o: _signed(t, o.rows[1], {}), CohortTooSmallError),
    "a recipient that did not upload": (lambda _t, o: setattr(o.rows[5], "node", "zz"), ProtectionError),
    "a row with a stranger": (lambda t, o: _signed(t, o.rows[1], {**EVEN, "n0": 10, "zz": 1}), ProtectionError),
    "a larger total": (lambda t, o: _signed(t, o.rows[1], {**EVEN, "n0": 12}), ProtectionError),
    "many times the total": (
        lambda t, o: _signed(t, o.rows[1], {name: 100 * weight for name, weight in EVEN.items()}),
        ProtectionError,
    ),
    "a unit row modulo q": (
        lambda t, o: _signed(t, o.rows[1], {"n0": 1, **dict.fromkeys(NAMES[1:], MODULUS)}),
        ProtectionError,
    ),
    "minus one modulo q": (lambda t, o: _signed(t, o.rows[1], {**EVEN, "n0": MODULUS - 1}), ProtectionError),
    "a weight of zero": (lambda t, o: _signed(t, o.rows[1], {**EVEN, "n0": 22, "n1": 0}), ProtectionError),
    "another total that wraps": (
        lambda t, o: _signed(t, o.rows[1], {**EVEN, "n0": 2**32 - 1, "n1": 1}),
        ProtectionError,
    ),
}


@pytest.mark.parametrize("attack", ROWS)
def test_rows_that_were_not_signed_or_do_not_count_to_the_total_open_nothing(attack: str) -> None:
    change, error = ROWS[attack]
    table = Table(combine_round()).until("open")
    table.refuses("n0", edited(SealedOpening, table.asked["n0"], lambda o: change(table, o)), error)


def test_a_sum_has_no_rows_and_a_node_weighs_nobody_in_it() -> None:
    table = Table(sum_round()).until("open")
    row = table.signed_row("n1", {"n1": 64})
    table.refuses("n0", edited(SealedOpening, table.asked["n0"], lambda o: o.rows.append(row)), ProtectionError)
    for phase in ("score", "row", "deliver"):
        half = table.restart("n2")
        with pytest.raises(ProtectionError, match="not the next"):
            half.answer(phase, said(UploadScores(commits=table.commits(*NAMES))))


def test_a_block_below_its_minimum_stays_closed_although_another_opens() -> None:
    """Four hold `head`, enough to upload it; one of them drops out, and what is left would be too few."""
    names = NINE[:7]
    about = replace(sum_round(*names), min_cohort=4)
    table = Table(about, deep=frozenset(names[:4]))
    table.until("open", absent=("n1",))
    asked = parse(SealedOpening, table.asked["n0"].body)
    assert [len(envelope.key_shares) for envelope in asked.envelopes] == [2, 2, 2, 1, 1, 1]
    shares = parse(SealedSums, table.nodes["n0"].answer("open", table.asked["n0"]).body).shares
    assert len(shares) == 1
    # Three declared it: it is never even uploaded.
    table = Table(about, deep=frozenset(names[:3])).until("open")
    assert all(len(table.answers["upload", name].bulk) == 4 * (3 + 1) for name in names)
    # In a combine, a row with somebody who has no such block opens the others only.
    table = Table(combine_round(*names), deep=frozenset(names[:4])).until("open")
    replies = parse(UploadReplies, table.nodes["n0"].answer("open", table.asked["n0"]).body).replies
    assert {len(reply.sealed) for reply in replies} == {VECTOR_BYTES + 16}


def test_sums_whose_difference_shows_a_node_are_not_both_opened() -> None:
    table = Table(sum_round(*NINE), deep=frozenset(NINE[:8])).until("open")
    answer = parse(SealedSums, table.nodes["n0"].answer("open", table.asked["n0"]).body)
    assert [group.holders for group in table.cohort.groups] == [NINE, NINE[:8]]
    assert len(answer.shares) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_below_the_threshold_nothing_opens(kind: str) -> None:
    table = Table(KINDS[kind]()).until("open")
    assert table.cohort.threshold == 4  # more than (6 + 1)/2
    with pytest.raises(CohortTooSmallError):
        table.play(absent=("n0", "n1", "n2"))


# --- one opening for ever (10, 18) --------------------------------------------------------------------------------


def other_opening(table: Table, holder: str) -> Message:
    """Of the same uploads, but not the same: for a sum without n5, for a combine with other weights."""
    if table.about.kind is RequestKind.SUM:
        return opening_of(table, holder, {}, *NAMES[:5])
    return opening_of(table, holder, {"n1": {**EVEN, "n0": 10, "n4": 11}})


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_opening_is_refused_in_the_same_life_and_in_the_next(kind: str) -> None:
    table = Table(KINDS[kind]()).until("open")
    first = table.tell("n0", table.asked["n0"])
    assert table.decided("n0")
    for message in (other_opening(table, "n0"), table.asked["n0"]):
        with pytest.raises(ProtectionError, match="not the next"):
            table.tell("n0", message)
    for _ in range(3):
        table.restart("n0")
        with pytest.raises(ProtectionError, match="another question"):
            table.tell("n0", other_opening(table, "n0"))
    table.restart("n0")
    assert table.tell("n0", table.asked["n0"]) == first  # The same question has the same answer, to the byte.


@pytest.mark.parametrize("kind", KINDS)
def test_other_openings_for_other_holders_open_neither(kind: str) -> None:
    table = Table(KINDS[kind]()).until("open")
    told = {name: other_opening(table, name) if name in ("n0", "n1", "n2") else table.asked[name] for name in NAMES}
    for name in NAMES:
        table.nodes[name].answer("open", told[name])
    # Restarted or not, nobody changes its mind. n5 may collude and serve both stories.
    for name in NAMES[:5]:
        table.restart(name)
        with pytest.raises(ProtectionError, match="another question"):
            table.tell(name, table.asked[name] if name in ("n0", "n1", "n2") else other_opening(table, name))
    assert len(("n3", "n4", "n5")) < table.cohort.threshold
    # However they are split: six voices and c = 1 more are seven answers, and two stories need eight.
    assert len(NAMES) + table.about.colluders < 2 * table.cohort.threshold


@pytest.mark.parametrize("kind", KINDS)
def test_other_envelopes_of_a_colluding_uploader_get_no_second_answer(kind: str) -> None:
    """Nobody signs envelopes. Answers of a known difference under one key stream would show the answers."""
    table = Table(KINDS[kind]()).until("open")
    first = table.tell("n0", table.asked["n0"])
    evil: Any = table.nodes["n1"]
    sealed = evil.party.seal(bytes(VECTOR_BYTES), "n0", purpose=table.cohort.groups[0].label)
    table.restart("n0")
    with pytest.raises(ProtectionError, match="another question"):
        table.tell("n0", edited(SealedOpening, table.asked["n0"], lambda o: _set(o, sealed)))
    table.restart("n0")
    assert table.tell("n0", table.asked["n0"]) == first


@pytest.mark.parametrize(("kind", "write"), [*((kind, "save") for kind in KINDS), ("combine", "opened")])
def test_what_is_decided_is_on_disk_before_it_is_said(kind: str, write: str) -> None:
    table = Table(KINDS[kind]()).until("open")
    half: Any = table.nodes["n0"]

    class FullError(Exception):
        pass

    def full(_content: object) -> None:
        raise FullError

    setattr(table.memories["n0"], write, full)
    with pytest.raises(FullError):
        table.tell("n0", table.asked["n0"])
    for phase in table.phases[: table.phases.index("open") + 1]:
        with pytest.raises(SecureFLError):
            half.answer(phase, table.asked["n0"])


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_is_uploaded_once(kind: str) -> None:
    table = Table(KINDS[kind]()).until("upload")
    roster = table.asked["n0"]
    table.tell("n0", roster)
    kept = table.memories["n0"].load()
    assert kept is not None
    with pytest.raises(ProtectionError, match="not the next"):
        table.tell("n0", roster)
    without = edited(Roster, roster, lambda r: r.manifests.__delitem__(5))
    for phase, message in (("advertise", Message()), ("upload", roster), ("upload", without)):
        with pytest.raises(RestartedError):
            table.restart("n0").answer(phase, message)
    assert table.memories["n0"].load() == kept


def test_a_memory_serves_its_own_node_in_its_own_attempt_only() -> None:
    table = Table(combine_round()).until("open")
    kept = table.memories["n0"].load()
    assert kept is not None
    half: Any = table.nodes["n0"]
    for secret in (half.party.memory.now.envelope_key, half.party.memory.now.reply_key):
        assert secret not in kept
    for damaged in (b"", kept[:11], kept[:-1], flip(kept), bytes(12) + kept[12:], kept + b"\x00"):
        table.memories["n0"].save(damaged)
        with pytest.raises(ProtectionError, match="damaged or of another"):
            table.half("n0")
    table.memories["n1"].save(kept)
    with pytest.raises(ProtectionError, match="damaged or of another"):
        table.half("n1")
    table.memories["n0"].save(kept)
    table.half("n0")
    table.about = replace(table.about, attempt=2)
    with pytest.raises(ProtectionError, match="damaged or of another"):
        table.half("n0")


def test_a_recipient_signs_one_row() -> None:
    """Other answers of a colluding holder would have it weigh its peers again and again, and show how far they are."""
    table = Table(combine_round()).until("row")
    first = table.tell("n0", table.asked["n0"])
    table.restart("n0")
    with pytest.raises(ProtectionError, match="another question"):
        table.tell("n0", said(UploadScores(commits=table.commits(*NAMES[:5]))))
    table.restart("n0")
    assert table.tell("n0", table.asked["n0"]) == first


# --- values (11) --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [2**15, -(2**15), 2**31 - 1, -(2**31)])
def test_a_value_beyond_the_range_is_not_uploaded(value: int, kind: str) -> None:
    about = KINDS[kind]()
    table = Table(about, {**Table(about).values, "n0": contribution(64, EVEN, body=[0, value, 0], head=[0, 0])})
    table.until("upload")
    table.refuses("n0", table.asked["n0"], OverflowInvariantError)
    assert table.memories["n0"].load() is None


@pytest.mark.parametrize(("kind", "nodes", "bits"), [(RequestKind.COMBINE, 200, 24), (RequestKind.COMBINE, 256, 22)])
def test_a_round_that_the_ring_has_no_room_for_does_not_begin(kind: RequestKind, nodes: int, bits: int) -> None:
    about = context(*(f"n{index}" for index in range(nodes)), kind=kind, bits=bits)
    with pytest.raises(OverflowInvariantError):
        Terms.of(about)


def test_weights_whose_sum_overflows_are_refused_by_the_arithmetic_itself() -> None:
    one = np.ones(4, np.uint32)
    for weights in ([2**32 - 1, 1], [-1, 2], [2**40]):
        with pytest.raises(OverflowInvariantError):
            weighted_sum(weights, [one] * len(weights), size=4)


@pytest.mark.parametrize("weight", [0, 31, 65, 64 * 6 + 1, 2**40, -64])
def test_a_weight_that_cannot_be_is_refused_when_the_sum_opens(weight: int) -> None:
    about = replace(sum_round(), min_cohort=5)
    try:
        everybody = {**Table(about).values, "n0": contribution(weight, {}, body=[1, 2, 3], head=[4, 5])}
        table = Table(about, everybody).until("open")
    except OverflowInvariantError:
        return  # its own half does not even encode it
    if 6 * weight_floor(5, 1) <= 5 * 64 + weight <= 6 * 64:
        assert isinstance(table.play(), OpenedSums)  # Hidden among the others: a sum cannot tell who broke its promise.
        return
    with pytest.raises(ProtectionError, match="weight"):
        table.play()


# --- keys (13) ----------------------------------------------------------------------------------------------------


def shares_of(table: Table, uploader: str, group: int) -> dict[int, Elements]:
    """What everybody holds of a key, opened as its holder would."""
    upload = parse(UploadAnswer, table.answers["upload", uploader].body)
    which = [g.index for g in table.cohort.groups_of(uploader)].index(group)
    shares = {}
    for envelope in upload.envelopes:
        half: Any = table.nodes[envelope.peer]
        plain = half.party.unseal(envelope.key_shares[which], uploader, purpose=table.cohort.groups[group].label)
        shares[table.cohort.index(envelope.peer)] = expand_share(plain)
    return shares


def key_of(table: Table, uploader: str, group: int = 0) -> Elements:
    """A key that nobody in the round ever has."""
    return interpolate(shares_of(table, uploader, group), threshold=table.cohort.threshold)


def _zeros(about: RoundContext, deep: frozenset[str]) -> dict[str, Any]:
    row = dict.fromkeys(about.invited, 1)
    size = about.layout["body"].size
    return {
        name: contribution(64, row, body=[0] * size, **({"head": [0] * size} if name in deep else {}))
        for name in about.invited
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_node_group_and_attempt_has_a_key_of_its_own(kind: str) -> None:
    """Equal updates, all zero: what is uploaded is a·s + e, and no two have anything in common."""
    deep, size = frozenset(NINE[:5]), 300
    about = replace(KINDS[kind](*NINE), layout=layout(body=size, head=size))
    keys: list[bytes] = []
    uploads: list[Elements] = []
    envelopes: list[bytes] = []
    for attempt in (1, 2):
        table = Table(replace(about, attempt=attempt), _zeros(about, deep), seed=attempt).until("upload")
        table.play()
        for name in NINE:
            sent = np.frombuffer(table.answers["upload", name].bulk, ELEMENT)
            keys += [key_of(table, name, group.index).tobytes() for group in table.cohort.groups_of(name)]
            uploads += np.split(sent, len(table.cohort.groups_of(name)))
            said_ = parse(UploadAnswer, table.answers["upload", name].body)
            envelopes += [sealed for envelope in said_.envelopes for sealed in envelope.key_shares]
            half: Any = table.nodes["n0"]
            mine = next(envelope for envelope in said_.envelopes if envelope.peer == "n0")
            for place, group in enumerate(table.cohort.groups_of(name)):
                for purpose in (b"sketch", *(g.label for g in table.cohort.groups if g != group)):
                    with pytest.raises(ProtectionError):
                        half.party.unseal(mine.key_shares[place], name, purpose=purpose)
    assert len(set(keys)) == len(keys) == 2 * (9 + 5)
    assert len(set(envelopes)) == len(envelopes)
    for one, other in combinations(uploads, 2):
        gap = (one[:size].astype(np.int64) - other[:size]) % MODULUS
        assert np.median(np.minimum(gap, MODULUS - gap)) > MODULUS / 6  # as of uniform numbers; equal ones have zero
    # And a·s is all that hides it: with its key, an upload is errors.
    group = table.cohort.groups[0]
    opened = uploads[-1][:size].copy()
    Product(key_of(table, "n8")).unseal(opened, seed=SealedGroup.seed_of(table.cohort, group))
    assert np.abs(to_signed(opened)).max() <= Terms.of(about).error.bound


@pytest.mark.parametrize("kind", KINDS)
def test_one_share_less_than_the_threshold_fits_every_key(kind: str) -> None:
    table = Table(KINDS[kind]()).until("open")
    cohort = table.cohort
    shares, key = shares_of(table, "n1", 0), key_of(table, "n1")
    wrong = uniform(UnsafeSeededRandomness(5), DEGREE)
    for known in combinations(sorted(shares), cohort.threshold - 1):
        with pytest.raises(ProtectionError, match="threshold"):
            interpolate({holder: shares[holder] for holder in known}, threshold=cohort.threshold)
    # Whoever holds t − 1 shares and guesses the key can always be right: one more share makes it so.
    known = tuple(range(1, cohort.threshold))
    for guess in (key, wrong, np.zeros(DEGREE, np.uint32)):
        completed = _complete({holder: shares[holder] for holder in known}, guess)
        fits = {**{holder: shares[holder] for holder in known}, cohort.threshold: completed}
        assert np.array_equal(interpolate(fits, threshold=cohort.threshold), guess)


def _complete(known: dict[int, Elements], secret: Elements) -> Elements:
    """The share of the next holder, if `secret` were it. By Lagrange at zero, solved for the missing one."""
    last = max(known) + 1
    points = [*known, last]

    def at_zero(k: int) -> int:
        above = below = 1
        for m in points:
            if m != k:
                above, below = above * -m % MODULUS, below * (k - m) % MODULUS
        return above * pow(below, -1, MODULUS) % MODULUS

    rest = secret.astype(object) - sum(at_zero(k) * share.astype(object) for k, share in known.items())
    return np.array(rest * pow(at_zero(last), -1, MODULUS) % MODULUS, dtype=np.uint32)


# --- what recipients get ------------------------------------------------------------------------------------------


def rows_digest(table: Table, shown: SealedOpening | SealedDelivery) -> bytes:
    """What replies are sealed for."""
    uploads = Uploads(table.cohort, shown.commits)
    return SignedRows(table.about, table.cohort, uploads, shown.rows).digest


def test_a_reply_opens_at_its_recipient_only() -> None:
    table = Table(combine_round()).until("open")
    answers = {name: table.nodes[name].answer("open", table.asked[name]) for name in NAMES[:3]}
    purpose = b"open" + rows_digest(table, parse(SealedOpening, table.asked["n0"].body))
    halves: dict[str, Any] = dict(table.nodes)
    cohort = table.cohort
    for holder, answer in answers.items():
        common: dict[str, Any] = {
            "theirs": cohort.said(holder).envelope_key,
            "sender": holder,
        }
        for reply in parse(UploadReplies, answer.body).replies:
            right = {**common, "recipient": reply.peer}
            own = Envelopes(halves[reply.peer].party._reply_key, rho=cohort.rho)
            assert len(own.unseal(reply.sealed, **right, purpose=purpose)) == VECTOR_BYTES
            for other in (b"score" + purpose[4:], b"open" + bytes(32), b"group" + bytes(4)):
                with pytest.raises(ProtectionError):
                    own.unseal(reply.sealed, **right, purpose=other)
            for name in set(NAMES) - {reply.peer, holder}:
                for mine in (halves[name].party._reply_key, halves[name].party._envelope_key, KEY):
                    for claimed in (reply.peer, name):
                        with pytest.raises(ProtectionError):
                            Envelopes(mine, rho=cohort.rho).unseal(
                                reply.sealed, **common, recipient=claimed, purpose=purpose
                            )


def delivery(table: Table, name: str) -> Message:
    """What a recipient is sent in the end."""
    message: Message = table.asked[name]
    return message


def _bend(table: Table, holder: str, recipient: str, change: Callable[[bytes], bytes]) -> bytes:
    """What a colluding holder says in place of its share, properly sealed."""
    halves: dict[str, Any] = dict(table.nodes)
    said_ = parse(SealedDelivery, table.asked[recipient].body)
    cohort = table.cohort
    digest = rows_digest(table, said_)
    common: dict[str, Any] = {"sender": holder, "recipient": recipient, "purpose": b"open" + digest}
    sealed = next(reply.sealed for reply in said_.replies if reply.peer == holder)
    plain = halves[recipient].party._answers.unseal(sealed, theirs=cohort.said(holder).envelope_key, **common)
    return bytes(halves[holder].party._envelopes.seal(change(plain), theirs=cohort.said(recipient).reply_key, **common))


def _reply(delivered: SealedDelivery, holder: str) -> UploadReply:
    return next(reply for reply in delivered.replies if reply.peer == holder)


def _exchange(mine: SealedDelivery, theirs: SealedDelivery) -> None:
    del mine.replies[:]
    mine.replies.extend(theirs.replies)


DELIVERIES: dict[str, Callable[[Table, SealedDelivery], object]] = {
    "a bit flipped in a reply": lambda _t, d: setattr(d.replies[2], "sealed", flip(d.replies[2].sealed)),
    "too few replies": lambda t, d: d.replies.__delitem__(slice(t.cohort.threshold - 1, None)),
    "no replies": lambda _t, d: d.replies.__delitem__(slice(None)),
    "a reply twice": lambda _t, d: d.replies.append(d.replies[0]),
    "a reply of a stranger": lambda _t, d: setattr(d.replies[5], "peer", "zz"),
    "another recipient's replies": lambda t, d: _exchange(d, parse(SealedDelivery, t.asked["n1"].body)),
    "off the polynomial": lambda t, d: setattr(
        _reply(d, "n3"), "sealed", _bend(t, "n3", "n0", lambda plain: bytes([plain[0] ^ 1]) + plain[1:])
    ),
    "outside the field": lambda t, d: setattr(
        _reply(d, "n3"), "sealed", _bend(t, "n3", "n0", lambda plain: b"\xff" * len(plain))
    ),
    "a short share": lambda t, d: setattr(_reply(d, "n3"), "sealed", _bend(t, "n3", "n0", lambda plain: plain[:-4])),
    "a row changed": lambda _t, d: _reweigh(d.rows[0], {**EVEN, "n0": 10, "n4": 11}),
    "a row unsigned": lambda _t, d: setattr(d.rows[1], "signature", b""),
    "my row left out": lambda _t, d: d.rows.__delitem__(0),
    "a row of another matrix": lambda t, d: _signed(t, d.rows[1], {**EVEN, "n0": 10, "n4": 11}),
    "an upload exchanged": lambda _t, d: setattr(d.commits[1], "upload", bytes(32)),
    "an upload left out": lambda _t, d: d.commits.__delitem__(1),
    "another upload of mine": lambda t, d: d.commits[0].CopyFrom(_commit(t, "n0")),
    "too few uploads": lambda _t, d: d.commits.__delitem__(slice(2, None)),
}


@pytest.fixture(scope="module")
def delivered() -> Table:
    """A combine of which only the last word is missing."""
    return Table(combine_round()).until("deliver")


@pytest.mark.parametrize("attack", DELIVERIES)
def test_a_combination_that_does_not_open_is_not_told_to_anybody(attack: str, delivered: Table) -> None:
    half = delivered.restart("n0")
    message = edited(SealedDelivery, delivery(delivered, "n0"), lambda d: DELIVERIES[attack](delivered, d))
    assert half.answer("deliver", message) == Message()
    assert half.combination() == {}


BULKS: dict[str, Callable[[Any], bytes]] = {
    "too short": lambda bulk: bulk[:-4],
    "too long": lambda bulk: bulk + bytes(4),
    "nothing": lambda _: b"",
    "outside the field": lambda bulk: b"\xff" * len(bulk),
    "a torn element": lambda bulk: bulk[:-1],
}


@pytest.mark.parametrize("attack", BULKS)
def test_elements_that_are_none_open_nothing_and_say_nothing(attack: str, delivered: Table) -> None:
    half = delivered.restart("n0")
    message = delivery(delivered, "n0")
    assert half.answer("deliver", replace(message, bulk=BULKS[attack](message.bulk))) == Message()
    assert half.combination() == {}
    for garbage in (b"", b"\xff", b"\x0a\x00" * 9):
        half = delivered.restart("n0")
        assert half.answer("deliver", replace(message, body=garbage)) == Message()
        assert half.combination() == {}


def test_a_combination_that_opens_and_one_that_does_not_look_the_same_to_the_coordinator(delivered: Table) -> None:
    """With other elements than its own the recipient opens noise, or nothing: nobody else can tell."""
    half = delivered.restart("n0")
    message = delivery(delivered, "n0")
    assert half.answer("deliver", message) == Message()
    assert sorted(half.combination()) == ["body", "head"]
    noise = uniform(UnsafeSeededRandomness(3), len(message.bulk) // 4).tobytes()
    half = delivered.restart("n0")
    assert half.answer("deliver", replace(message, bulk=noise)) == Message()


RECOMPUTED: dict[str, Callable[[Any, int], bytes]] = {
    "one element exchanged": lambda bulk, _: bytes([bulk[0] ^ 1]) + bulk[1:],
    "two uploads exchanged": lambda bulk, size: bulk[size : 2 * size] + bulk[:size] + bulk[2 * size :],
    "one upload twice": lambda bulk, size: bulk[:size] * 2 + bulk[2 * size :],
    "one upload too few": lambda bulk, size: bulk[size:],
    "the sum instead": lambda bulk, size: bulk[:size],
}


@pytest.mark.parametrize("attack", RECOMPUTED)
def test_a_recipient_that_recomputes_takes_no_other_uploads(attack: str) -> None:
    table = Table(combine_round(settings=RECOMPUTES.canonical_settings)).until("deliver")
    message = delivery(table, "n0")
    half = table.restart("n0")
    half.answer("deliver", message)
    assert sorted(half.combination()) == ["body", "head"]
    half = table.restart("n0")
    forged = RECOMPUTED[attack](message.bulk, 4 * 5)
    assert half.answer("deliver", replace(message, bulk=forged)) == Message()
    assert half.combination() == {}


@pytest.mark.parametrize("roots", [[], [bytes(32)] * 2, [bytes(31)], [b""]])
def test_roots_that_do_not_fit_are_refused_wherever_they_are_shown(roots: list[bytes]) -> None:
    about = combine_round(settings=RECOMPUTES.canonical_settings)
    table = Table(about).until("row")
    forged = _commit(table, "n1", upload=table.commits("n1")[0].upload, roots=roots)
    table.refuses(
        "n0", edited(UploadScores, table.asked["n0"], lambda s: s.commits[1].CopyFrom(forged)), ProtectionError
    )
    table = Table(about).until("upload")
    honest = table.nodes["n1"].answer("upload", table.asked["n1"])
    table.nodes["n0"].answer("upload", table.asked["n0"])  # so that it knows the cohort

    def posing(upload: UploadAnswer) -> None:
        upload.commit.CopyFrom(_commit(table, "n1", upload=upload.commit.upload, roots=roots))

    with pytest.raises(ProtectionError):
        table.machine.accept(
            "n1", "upload", replace(edited(UploadAnswer, honest, posing), bulk=b""), InMemory(honest.bulk)
        )


# --- against the coordinator half ---------------------------------------------------------------------------------


def _resigned(table: Table, bulk: bytes, honest: Message) -> Message:
    """The upload, with a commit to other elements."""

    def change(upload: UploadAnswer) -> None:
        commit = _commit(table, "n0", upload=hashlib.sha256(bulk).digest())
        upload.commit.CopyFrom(commit)

    return replace(edited(UploadAnswer, honest, change), bulk=bulk)


@pytest.mark.parametrize("kind", KINDS)
def test_a_malformed_upload_changes_nothing(kind: str) -> None:
    table = Table(KINDS[kind]()).until("upload")
    honest = table.nodes["n0"].answer("upload", table.asked["n0"])
    bad = [
        replace(honest, bulk=flip(honest.bulk)),
        replace(honest, body=b""),
        replace(honest, body=b"\xff"),
        _resigned(table, honest.bulk[:-4], honest),
        _resigned(table, bytes(honest.bulk) + bytes(4), honest),
        _resigned(table, b"\xff" * len(honest.bulk), honest),
        edited(UploadAnswer, honest, lambda u: u.envelopes.__delitem__(1)),
        edited(UploadAnswer, honest, lambda u: u.envelopes.append(u.envelopes[0])),
        edited(UploadAnswer, honest, lambda u: u.envelopes[5].key_shares.append(bytes(48))),
        edited(UploadAnswer, honest, lambda u: u.envelopes[5].key_shares.__setitem__(0, bytes(48))),
        edited(UploadAnswer, honest, lambda u: u.envelopes[0].key_shares.__setitem__(0, bytes(1 << 20))),
        edited(UploadAnswer, honest, lambda u: setattr(u.envelopes[0], "sketch_share", bytes(16))),
        edited(UploadAnswer, honest, lambda u: u.commit.digests.append(bytes(32))),
        edited(UploadAnswer, honest, lambda u: setattr(u.commit, "node", "n1")),
    ]
    for message in bad:
        with pytest.raises(SecureFLError):
            table.machine.accept("n0", "upload", replace(message, bulk=b""), InMemory(message.bulk))
    table.machine.accept("n0", "upload", replace(honest, bulk=b""), InMemory(honest.bulk))
    table.answers["upload", "n0"] = honest
    opened: Any = None
    while table.machine.phase:
        opened = table.play()
    if kind == "sum":
        total = opened.blocks["body"].total
        assert np.abs(total - [0 + 1 + 2 + 3 + 4 + 5, 12, -18]).max() <= Terms.of(table.about).noise
    else:
        assert isinstance(opened, CombinationsSent)
        assert opened.recipients == NAMES


def test_shares_off_the_polynomial_open_no_sum() -> None:
    table = Table(sum_round()).until("open")

    def bend(sums: SealedSums) -> None:
        sums.shares[0] = bytes([sums.shares[0][0] ^ 1]) + sums.shares[0][1:]

    forged = edited(SealedSums, table.nodes["n2"].answer("open", table.asked["n2"]), bend)
    with pytest.raises(ProtectionError, match="polynomial"):
        table.play(forged={"n2": forged})


MALFORMED: dict[str, Callable[[SealedSums], object]] = {
    "too many": lambda s: s.shares.append(s.shares[0]),
    "too few": lambda s: s.shares.__delitem__(0),
    "short": lambda s: s.shares.__setitem__(0, s.shares[0][:-4]),
    "a seed": lambda s: s.shares.__setitem__(0, bytes(SEED_BYTES)),
    "outside the field": lambda s: s.shares.__setitem__(0, b"\xff" * VECTOR_BYTES),
}


@pytest.mark.parametrize("attack", MALFORMED)
def test_malformed_shares_of_a_sum_cost_their_sender_only(attack: str) -> None:
    table = Table(sum_round()).until("open")
    answer = table.nodes["n0"].answer("open", table.asked["n0"])
    with pytest.raises(ProtectionError):
        table.machine.accept("n0", "open", edited(SealedSums, answer, MALFORMED[attack]), InMemory(b""))
    table.machine.leave("n0", "Protection")
    opened = table.play()
    assert opened.blocks["body"].contributors == 6


REPLIES: dict[str, Callable[[UploadReplies], object]] = {
    "one recipient left out": lambda r: r.replies.__delitem__(0),
    "a recipient twice": lambda r: r.replies.append(r.replies[0]),
    "to a stranger": lambda r: setattr(r.replies[5], "peer", "zz"),
    "too long": lambda r: setattr(r.replies[1], "sealed", r.replies[1].sealed + bytes(1)),
    "too short": lambda r: setattr(r.replies[1], "sealed", b""),
}


@pytest.mark.parametrize("attack", REPLIES)
def test_malformed_replies_cost_their_sender_only(attack: str) -> None:
    table = Table(combine_round()).until("open")
    answer = table.nodes["n0"].answer("open", table.asked["n0"])
    with pytest.raises(ProtectionError):
        table.machine.accept("n0", "open", edited(UploadReplies, answer, REPLIES[attack]), InMemory(b""))
    table.machine.leave("n0", "Protection")
    table.play()
    table.play(absent=("n0",))
    assert all(table.nodes[name].combination() for name in NAMES[1:])


@pytest.mark.parametrize(
    "row", [{"n0": 65}, {"n0": 63}, {"n0": 60, "zz": 4}, {"n0": 64, "n1": 0}, {"n0": 2**32 - 1, "n1": 65}]
)
def test_the_coordinator_half_takes_no_row_that_is_none(row: dict[str, int]) -> None:
    table = Table(combine_round()).until("row")
    with pytest.raises(ProtectionError):
        table.machine.accept("n0", "row", said(table.signed_row("n0", row)), InMemory(b""))
    with pytest.raises(ProtectionError):
        table.machine.accept("n0", "row", said(table.signed_row("n1", EVEN)), InMemory(b""))
    with pytest.raises(SignatureError):
        table.machine.accept("n0", "row", said(UploadRow(node="n0", row=EVEN)), InMemory(b""))
    table.machine.accept("n0", "row", said(table.signed_row("n0", EVEN)), InMemory(b""))


def _padding(room: int) -> bytes:
    """A field that no message has, of about that length."""
    size, length = room, b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return b"\x7a" + length + bytes([size]) + bytes(room)


@pytest.mark.parametrize("kind", KINDS)
def test_what_one_node_adds_to_its_messages_is_not_sent_to_everybody(kind: str) -> None:
    table = Table(KINDS[kind]()).until("upload")
    honest = table.nodes["n1"].answer("upload", table.asked["n1"])
    upload = parse(UploadAnswer, honest.body)
    padded = UploadCommit.FromString(upload.commit.SerializeToString() + _padding(PAYLOAD_BYTES // 4))
    upload.commit.CopyFrom(padded)
    upload.envelopes[3].CopyFrom(
        UploadEnvelope.FromString(upload.envelopes[3].SerializeToString() + _padding(PAYLOAD_BYTES // 4))
    )
    table.play(forged={"n1": replace(honest, body=upload.SerializeToString())})
    while table.machine.phase:
        if table.machine.phase == "row":
            row = table.nodes["n1"].answer("row", table.asked["n1"])
            table.play(forged={"n1": replace(row, body=row.body + _padding(PAYLOAD_BYTES // 4))})
            continue
        assert all(len(table.asked[name].body) < 100_000 for name in table.asked)
        assert all(len(table.asked[name].bulk) < 100_000 for name in table.asked)
        table.play()


@pytest.mark.parametrize("kind", KINDS)
def test_garbage_in_any_phase_is_a_typed_error_on_both_sides(kind: str) -> None:
    phases = Table(KINDS[kind]()).phases
    for phase in phases:
        if phase == "score":
            continue
        table = Table(KINDS[kind]()).until(phase)
        for garbage in (b"\xff", b"\x0a\x00", bytes(1000), b"\x0a\x02\x0a\x00" * 300, b"\x12\x02\x0a\x00"):
            if phase not in ("advertise", "deliver"):
                half = table.restart("n1") if phase != "upload" else table.nodes["n1"]
                with pytest.raises(SecureFLError):
                    half.answer(phase, Message(body=garbage))
            if phase != "deliver":
                with pytest.raises(SecureFLError):
                    table.machine.accept("n0", phase, Message(body=garbage), InMemory(b""))


# --- what the coordinator is left with ----------------------------------------------------------------------------


def _reachable(thing: object, seen: set[int]) -> Iterator[object]:
    """Everything that an object holds on to."""
    if id(thing) in seen or isinstance(thing, type) or (callable(thing) and not hasattr(thing, "__self__")):
        return
    seen.add(id(thing))
    yield thing
    inside: list[object] = []
    if isinstance(thing, dict):
        inside = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        inside = list(thing)
    elif hasattr(thing, "__self__"):
        inside = [thing.__self__]
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    inside += [getattr(thing, name) for name in slots if isinstance(name, str) and hasattr(thing, name)]
    inside += list(getattr(thing, "__dict__", {}).values())
    for one in inside:
        yield from _reachable(one, seen)


def test_after_a_combine_the_coordinator_has_neither_a_key_nor_a_combination() -> None:
    table = Table(combine_round()).until("deliver")
    _ = {name: table.asked[name] for name in NAMES}
    table.play()
    half: Any = table.machine
    secrets: list[bytes] = []
    for name in NAMES:
        secrets.append(key_of(table, name).tobytes())
        row = dict(parse(UploadRow, table.answers["row", name].body).row)
        secrets.append(weighted_sum(list(row.values()), (key_of(table, n) for n in row), size=DEGREE).tobytes())
        opened = table.nodes[name].combination()
        assert opened
        secrets += [block.total.astype(kind).tobytes() for block in opened.values() for kind in ("<i4", "<i8")]
    things = list(_reachable(half, set()))
    assert any(isinstance(thing, InMemory) for thing in things)  # The walk does get to the uploads.
    for thing in things:
        raw = thing.tobytes() if isinstance(thing, np.ndarray) else thing if isinstance(thing, bytes) else b""
        assert not any(secret in raw for secret in secrets)
    # Nor in anything that was ever said to it or by it.
    for answer in table.answers.values():
        assert not any(secret in part for secret in secrets for part in (answer.body, answer.bulk))
