"""A coordinator or a node that cheats in an encrypted sum, through the real messages.

Every attack ends in a typed error. Where one check stops it, the same attack succeeds without that check; where
several do, they are taken out one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from secure_fl.errors import (
    CertificateError,
    CohortTooSmallError,
    ProtectionError,
    ReleaseRefusedError,
    SecureFLError,
    SignatureError,
)
from secure_fl.identity.certificates import Certificate
from secure_fl.messages import parse
from secure_fl.protect.contract import Message, OpenedSums
from secure_fl.protect.encrypted import coordinator, opener, statements
from secure_fl.protect.encrypted.party import KEY_PURPOSE, EncryptedParty
from secure_fl.protect.encrypted.scheme import Key, Scheme
from secure_fl.protect.encrypted.sides import Side
from secure_fl.protect.encrypted.statements import sign_vouch
from secure_fl.protect.encrypted.terms import CHECKS, Terms
from secure_fl.protect.encrypted.uploader import Uploader
from secure_fl.protect.primitives.envelopes import Envelopes
from secure_fl.protect.primitives.packing import WORD
from secure_fl.protect.uploads.party import Party
from secure_fl.protect.uploads.statements import sign_commit
from secure_fl.rpc.protect_cohort_pb2 import Roster
from secure_fl.rpc.protect_encrypted_pb2 import (
    EncryptedCheck,
    EncryptedKeys,
    EncryptedOpening,
    EncryptedStart,
    EncryptedVouch,
    EncryptedVouches,
)
from secure_fl.rpc.protect_uploads_pb2 import UploadAnswer, UploadCommit, UploadScores
from secure_fl.secret import Secret
from tests.protect.encrypted.oracle import raw_of, words_of
from tests.protect.encrypted.table import (
    EIGHT,
    ENCRYPTED,
    KINDS,
    NAMES,
    Table,
    checking,
    circle_round,
    maker_of,
    now,
    opening,
    other_than,
    sum_round,
    totals_of,
    until_it_is,
)
from tests.protect.members import member
from tests.protect.sealed.table import edited, flip

# --- who is there -------------------------------------------------------------------------------------------------


def without(message: Message, name: str) -> Message:
    """A start whose roster leaves somebody out."""

    def change(start: EncryptedStart) -> None:
        roster = Roster.FromString(start.roster)
        roster.manifests.remove(next(one for one in roster.manifests if one.node == name))
        start.roster = roster.SerializeToString(deterministic=True)

    return edited(EncryptedStart, message, change)


@pytest.mark.parametrize("checked", [True, False])
def test_the_key_maker_is_told_of_one_roster(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it uploads for sites among which a site with the key is not."""
    table = Table(sum_round()).until("upload")
    maker = maker_of(table)
    outsider = other_than(table, maker)
    forged = without(table.asked[maker], outsider)
    if checked:
        refused = table.refuses(maker, forged, ProtectionError)
        assert "other sites than before" in str(refused)
        return
    monkeypatch.setattr(Uploader, "_meet", lambda self, roster: self._party.meet(roster, self._manifest))
    answer = parse(UploadAnswer, table.tell(maker, forged).body)
    assert answer.commit.digests[0] == table.nodes[maker].party.key.id
    assert outsider not in table.nodes[maker].party.cohort.names
    table.nodes[outsider].answer("upload", table.asked[outsider])
    assert table.nodes[outsider].party.key.id == table.nodes[maker].party.key.id


@pytest.mark.parametrize("kind", KINDS)
def test_another_roster_is_another_round(kind: str) -> None:
    """A site that is told of other sites than the key maker was cannot take the key."""
    table = Table(KINDS[kind]()).until("upload")
    maker = maker_of(table)
    victim = other_than(table, maker)
    outsider = other_than(table, maker, victim)
    table.refuses(victim, without(table.asked[victim], outsider), SecureFLError)
    assert table.nodes[victim].party.key is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checked", [True, False])
def test_a_revoked_site_gets_no_key_and_nobody_uploads_for_it(checked: bool, kind: str) -> None:
    def vouch(peer: Certificate) -> None:
        if checked and peer.name == "n2":
            raise CertificateError("n2 is revoked")

    careful = {name: replace(member(name), vouch=vouch) for name in NAMES}
    table = Table(KINDS[kind](), me=careful).until("key")
    maker = maker_of(table)
    if checked:
        table.refuses(maker, table.asked[maker], CertificateError)
        assert table.nodes[maker].party.key is None
    else:
        assert table.tell(maker, table.asked[maker]) != Message()
    # And where the key maker does not mind, the next one does.
    table = until_it_is(
        lambda _: Table(KINDS[kind](), me={"n0": careful["n0"]}).until("key"), lambda table: maker_of(table) != "n0"
    )
    table.play()
    if checked:
        table.refuses("n0", table.asked["n0"], CertificateError)
        assert table.nodes["n0"].party.key is None
    else:
        assert table.tell("n0", table.asked["n0"]).bulk


# --- the key ------------------------------------------------------------------------------------------------------


def started(kind: str = "sum", **more: Any) -> tuple[Table, Any, str]:
    """Before the upload: the table, the key maker's half, and a victim."""
    table = Table(KINDS[kind](), **more).until("upload")
    maker = maker_of(table)
    return table, table.nodes[maker], other_than(table, maker)


def resealed(maker: Any, victim: str, raw: bytes) -> bytes:
    """What a key maker might seal instead."""
    sealed: bytes = maker.party.seal(raw, victim, purpose=KEY_PURPOSE)
    return sealed


def _zeroed(key: Key) -> bytes:
    words = key.words()
    words[1234] = 0
    return raw_of(words, key.terms)


ENVELOPES: dict[str, Callable[[Table, Any, str, bytes], bytes]] = {
    "a bit flipped": lambda _t, _m, _v, sealed: flip(sealed),
    "nothing": lambda _t, _m, _v, _s: b"",
    "cut": lambda _t, _m, _v, sealed: sealed[:-1],
    "another site's": lambda t, m, v, _s: parse(
        EncryptedStart, t.asked[other_than(t, m.party.name, v)].body
    ).sealed,
    "sealed for something else": lambda _t, m, v, _s: m.party.seal(m.party.key.raw, v, purpose=b"sketch"),
    "in plain": lambda _t, m, _v, _s: m.party.key.raw,
    "a key for this site alone": lambda _t, m, v, _s: resealed(m, v, Key.generate(m.party.scheme).raw),
    "a key of zeros": lambda _t, m, v, _s: resealed(m, v, bytes(m.party.terms.chunk_bytes)),
    "a key without an inverse": lambda _t, m, v, _s: resealed(m, v, _zeroed(m.party.key)),
    "a key that is not reduced": lambda _t, m, v, _s: resealed(m, v, b"\xff" * m.party.terms.chunk_bytes),
    "half a key": lambda _t, m, v, _s: resealed(m, v, m.party.key.raw[:-1]),
    "a key of other terms": lambda _t, m, v, _s: resealed(
        m, v, Key.generate(Scheme(Terms.among(m.party.terms.kind, nodes=2, bits=4))).raw
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attack", ENVELOPES)
def test_a_key_that_is_not_the_attempts_is_not_used(attack: str, kind: str) -> None:
    table, maker, victim = started(kind)

    def change(start: EncryptedStart) -> None:
        start.sealed = ENVELOPES[attack](table, maker, victim, start.sealed)

    table.refuses(victim, edited(EncryptedStart, table.asked[victim], change), ProtectionError)
    assert table.nodes[victim].party.key is None


def test_an_id_that_is_not_the_keys_is_refused_by_the_maker_too() -> None:
    table, maker, victim = started()
    for name in (maker.party.name, victim):
        table.refuses(name, edited(EncryptedStart, table.asked[name], lambda s: setattr(s, "key_id", bytes(32))),
                      ProtectionError)  # fmt: skip


@pytest.mark.parametrize("checked", [True, False])
def test_a_key_of_an_earlier_attempt_does_not_come_back(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the very same envelope keys, which a node never draws twice: the transcript alone makes the difference."""
    if not checked:
        honest = Envelopes.__init__
        monkeypatch.setattr(Envelopes, "__init__", lambda self, mine, **_: honest(self, mine, rho=b""))
    earlier, maker, victim = started(seed=7)
    later = until_it_is(
        lambda number: Table(sum_round(attempt=1 + number), seed=7).until("upload"),
        lambda table: maker_of(table) == maker.party.name,
    )
    old = parse(EncryptedStart, earlier.asked[victim].body)

    def replayed(start: EncryptedStart) -> None:
        assert start.key_id != old.key_id
        start.sealed, start.key_id = old.sealed, old.key_id

    forged = edited(EncryptedStart, later.asked[victim], replayed)
    if checked:
        later.refuses(victim, forged, ProtectionError)
    else:
        assert parse(UploadAnswer, later.tell(victim, forged).body).commit.digests[0] == old.key_id


def unchecked(scheme: Scheme, raw: bytes) -> Key:
    """A key that nobody has looked at."""
    key = object.__new__(Key)
    key.terms, key._secret, key.id = scheme.terms, Secret(raw), hashlib.sha256(raw).digest()
    return key


def test_with_a_key_of_zeros_whoever_has_bodies_would_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Key, "read", staticmethod(unchecked))
    table, maker, victim = started()
    zeros = bytes(maker.party.terms.chunk_bytes)

    def weak(start: EncryptedStart) -> None:
        start.sealed, start.key_id = resealed(maker, victim, zeros), hashlib.sha256(zeros).digest()

    table.answers["upload", victim] = table.tell(victim, edited(EncryptedStart, table.asked[victim], weak))
    terms = Terms.of(table.about)
    words = words_of(bytes(table.answers["upload", victim].bulk), terms).astype(object)
    message = ((words + terms.scale // 2) // terms.scale).astype(WORD)
    read = terms.packing.unpack(message[:-CHECKS], 5, contributors=1)
    mine = table.values[victim].blocks
    assert read.tolist() == [*mine["body"].tolist(), *mine["head"].tolist()]


def test_different_keys_for_different_sites_open_nothing_whatever_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four have to agree: the site itself, the coordinator, its peers and, at last, the arithmetic."""

    def played(table: Table, forged: Message) -> Any:
        table.play(forged={victim: table.tell(victim, forged)})
        while table.machine.phase:
            opened = table.play()
        return opened

    def started_badly() -> tuple[Table, str, Message]:
        table, maker, victim = started()
        sealed = resealed(maker, victim, Key.generate(maker.party.scheme).raw)
        return table, victim, edited(EncryptedStart, table.asked[victim], lambda s: setattr(s, "sealed", sealed))

    def believe(self: Any, start: EncryptedStart) -> None:
        if self._party.name != self._party.sides.key_maker:
            raw = self._party.unseal(start.sealed, self._party.sides.key_maker, purpose=KEY_PURPOSE)
            self._party.key = Key.read(self._party.scheme, raw)

    def any_key() -> None:
        monkeypatch.setattr(coordinator, "key_id", lambda _: now(table)._key_id)

    layers: list[tuple[str, Callable[[], object]]] = [
        ("not the one that the others", lambda: monkeypatch.setattr(Uploader, "_take_key", believe)),
        ("under another key", any_key),
        ("under another key", lambda: monkeypatch.setattr(EncryptedParty, "uploads", Party.uploads)),
        ("does not open", lambda: None),
    ]  # fmt: skip
    for match, take_out in layers:
        table, victim, forged = started_badly()
        with pytest.raises(ProtectionError, match=match):
            played(table, forged)
        take_out()


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_key_maker_makes_a_key(kind: str) -> None:
    table = Table(KINDS[kind]()).until("key")
    maker = maker_of(table)
    victim = other_than(table, maker)
    table.refuses(victim, table.asked[maker], ProtectionError)
    assert table.nodes[victim].party.key is None
    assert parse(EncryptedKeys, table.tell(maker, table.asked[maker]).body).key_id


def test_a_restarted_node_has_nothing_to_open_with() -> None:
    table = Table(sum_round()).until("open")
    [first, *_] = table.asked
    for phase in ("check", "open"):
        half = table.half(first)
        with pytest.raises(ProtectionError):
            half.answer(phase, table.asked[first])


# --- what was uploaded --------------------------------------------------------------------------------------------

Commits = Any  # a repeated field


def _of(commits: Commits, name: str) -> UploadCommit:
    found: UploadCommit = next(one for one in commits if one.node == name)
    return found


def _signed(table: Table, name: str, **changes: Any) -> UploadCommit:
    """A commit that `name` signs, though it uploaded something else."""
    honest = table.commits(name)[0]
    fields = {"upload": honest.upload, "digests": list(honest.digests), **changes}
    return sign_commit(member(name), table.cohort, fields["upload"], fields["digests"])


def _replay(table: Table, name: str) -> UploadCommit:
    """What a node signed in another attempt."""
    earlier = Table(replace(table.about, attempt=9)).until("upload")
    earlier.play()
    return earlier.commits(name)[0]


def _under(table: Table, name: str, key_id: bytes) -> UploadCommit:
    return _signed(table, name, digests=[key_id, *table.commits(name)[0].digests[1:]])


Lists = Callable[[Table, Commits, str, str], object]
COMMITS: dict[str, tuple[Lists, type[SecureFLError]]] = {
    "another upload of mine, even if signed": (
        lambda t, c, me, _: _of(c, me).CopyFrom(_signed(t, me, upload=bytes(32))), ProtectionError),
    "another's upload exchanged": (lambda _t, c, _m, x: setattr(_of(c, x), "upload", bytes(32)), SignatureError),
    "two uploads exchanged": (lambda _t, c, m, x: setattr(_of(c, x), "upload", _of(c, m).upload), SignatureError),
    "a digest exchanged": (lambda _t, c, _m, x: _of(c, x).digests.__setitem__(1, bytes(32)), SignatureError),
    "bodies for seeds": (lambda _t, c, _m, x: _of(c, x).digests.reverse(), SecureFLError),
    "another's signature": (
        lambda _t, c, m, x: setattr(_of(c, x), "signature", _of(c, m).signature), SignatureError),
    "no signature": (lambda _t, c, _m, x: setattr(_of(c, x), "signature", b""), SignatureError),
    "of another attempt": (lambda t, c, _m, x: _of(c, x).CopyFrom(_replay(t, x)), SignatureError),
    "under another key, and signed": (
        lambda t, c, _m, x: _of(c, x).CopyFrom(_under(t, x, bytes(32))), ProtectionError),
    "a digest too many": (
        lambda t, c, _m, x: _of(c, x).CopyFrom(_signed(t, x, digests=[*_of(c, x).digests, bytes(32)])),
        ProtectionError),
    "a digest too few": (
        lambda t, c, _m, x: _of(c, x).CopyFrom(_signed(t, x, digests=_of(c, x).digests[:-1])), ProtectionError),
    "a digest that is none": (
        lambda t, c, _m, x: _of(c, x).CopyFrom(_signed(t, x, upload=b"n2")), ProtectionError),
    "an upload twice": (lambda _t, c, _m, x: c.append(_of(c, x)), ProtectionError),
    "out of order": (lambda _t, c, _m, _x: c.reverse(), ProtectionError),
    "a stranger": (lambda _t, c, _m, _x: c.add(node="zz", upload=bytes(32), signature=bytes(64)), ProtectionError),
    "fewer than the minimum": (
        lambda t, c, _m, _x: c.__delitem__(slice(t.about.min_cohort - 1, None)), CohortTooSmallError),
    "nobody": (lambda _t, c, _m, _x: c.__delitem__(slice(None)), CohortTooSmallError),
}  # fmt: skip
ASKED: dict[str, tuple[str, type[Any]]] = {
    "sum check": ("sum", EncryptedCheck),
    "sum open": ("sum", EncryptedOpening),
    "circle open": ("circle", EncryptedOpening),
    "combine row": ("combine", UploadScores),
    "combine check": ("combine", EncryptedCheck),
}


@pytest.mark.parametrize("question", ASKED)
@pytest.mark.parametrize("attack", COMMITS)
def test_uploads_that_are_not_the_signed_ones_get_no_answer(attack: str, question: str) -> None:
    change, error = COMMITS[attack]
    kind, message = ASKED[question]
    table = Table(KINDS[kind]()).until(question.split()[1])
    for me in (table.on(Side.BODIES)[0], table.on(Side.SEEDS)[0]):
        victim = other_than(table, me)
        forged = edited(message, table.asked[me], lambda m: change(table, m.commits, me, victim))  # noqa: B023
        table.refuses(me, forged, error)


def test_a_circle_is_opened_whole() -> None:
    table = Table(circle_round()).until("check")
    [me, *_] = table.asked
    forged = edited(EncryptedCheck, table.asked[me], lambda c: c.commits.remove(_of(c.commits, other_than(table, me))))
    table.refuses(me, forged, CohortTooSmallError)


def test_below_the_minimum_nothing_opens_and_three_checks_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of two, shown to everybody, is all that each of the two needs to read the other."""

    def all_pass(rows: Sequence[object], **_: object) -> list[bool]:
        return [True] * len(rows)

    layers: list[tuple[type[SecureFLError] | None, str, Any]] = [
        (CohortTooSmallError, "secure_fl.protect.uploads.statements.require_cohort", lambda *_a, **_k: None),
        (ProtectionError, "secure_fl.protect.cohort.signed.releasable", all_pass),  # no group: nothing to add up
        (ReleaseRefusedError, "secure_fl.protect.uploads.party.note", lambda *_a, **_k: None),
        (None, "", None),
    ]
    for error, check, nothing in layers:
        table = Table(sum_round()).until("check")
        pair = sorted(table.on(side)[0] for side in Side)
        me = table.on(Side.BODIES)[0]
        forged = {name: checking(table, name, pair) for name in NAMES}
        if error is not None:
            table.refuses(me, forged[me], error)
            monkeypatch.setattr(check, nothing)
            continue
        heard = {name: table.tell(name, forged[name]) for name in NAMES}
        values = [table.values[name].blocks["body"].tolist() for name in pair]
        totals = totals_of(table.nodes[me].answer("open", opening(table, me, pair, heard)))
        assert totals[:3] == [left + right for left, right in zip(*values, strict=True)]


# --- one list for everybody ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("checked", [True, False])
def test_two_lists_for_two_pairs_of_openers_do_not_show_a_site(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pairs, each of which opens a sum that nobody could object to: their difference is one site's update."""
    if not checked:
        monkeypatch.setattr(opener, "require_one_list", lambda *_a, **_k: None)
    table = Table(sum_round(*EIGHT)).until("check")
    (a, b, _, shown), (c, d, *_) = table.on(Side.BODIES), table.on(Side.SEEDS)
    lists = {"all": EIGHT, "but one": tuple(name for name in EIGHT if name != shown)}
    half = [name for name in EIGHT if name not in (a, b, c, d)]
    asked = {"all": [a, c, *half[:2]], "but one": [b, d, *half[2:]]}  # As many for each: it cannot do better.
    heard = {
        story: {name: table.tell(name, checking(table, name, lists[story])) for name in names}
        for story, names in asked.items()
    }
    totals = {}
    for story, me in (("all", a), ("but one", b)):
        forged = opening(table, me, lists[story], heard[story])
        if checked:
            with pytest.raises(CohortTooSmallError, match="checkers"):
                table.nodes[me].answer("open", forged)
        else:
            totals[story] = totals_of(table.nodes[me].answer("open", forged))
    if not checked:
        found = [whole - rest for whole, rest in zip(totals["all"], totals["but one"], strict=True)]
        mine = table.values[shown]
        assert found == [*mine.blocks["body"].tolist(), *mine.blocks["head"].tolist(), mine.weight]


def test_most_have_to_be_shown_the_same_list_and_each_of_them_counts_once() -> None:
    table = Table(sum_round(*EIGHT)).until("check")
    assert table.cohort.threshold == 5  # more than (8 + 1)/2
    heard = {name: table.tell(name, table.asked[name]) for name in EIGHT}
    mine, theirs = table.on(Side.BODIES)[0], table.on(Side.SEEDS)[0]
    others = [name for name in EIGHT if name not in (mine, theirs)]
    vouches = {name: parse(EncryptedVouches, heard[name].body).vouches[0] for name in EIGHT}
    # Openers say what they added up, the others that they were shown the list.
    assert {name for name, vouch in vouches.items() if vouch.half} == {
        *table.on(Side.BODIES)[:2], *table.on(Side.SEEDS)[:2]
    }  # fmt: skip
    few = [vouches[name] for name in (mine, theirs, *others[:2])]

    def signed(about: bytes, name: str, **more: Any) -> EncryptedVouch:
        return sign_vouch(member(name), table.cohort, about, **{"side": table.sides.of(name), "half": b"", **more})

    posing = EncryptedVouch(node=others[2], signature=vouches[others[3]].signature)
    stories = {
        "four": few,
        "one twice": [*few, vouches[others[0]]],
        "one in two ways": [*few, signed(table.uploads().digest, others[0], half=bytes(32))],
        "one of another list": [*few, signed(table.uploads(*EIGHT[:7]).digest, others[2])],
        "one of the other side": [
            *few,
            signed(table.uploads().digest, others[2], side=table.sides.of(others[2]).other),
        ],
        "one unsigned": [*few, EncryptedVouch(node=others[2])],
        "one in another's name": [*few, posing],
        "a stranger": [*few, EncryptedVouch(node="zz", signature=posing.signature)],
    }
    for told in stories.values():
        uploads = table.uploads()
        with pytest.raises(CohortTooSmallError):
            statements.require_one_list(table.cohort, uploads.digest, told, sides=table.sides)
    forged = edited(EncryptedOpening, opening(table, mine, EIGHT, heard), lambda o: o.ClearField("vouches"))
    enough = edited(EncryptedOpening, forged, lambda o: o.vouches.extend([*few, vouches[others[2]]]))
    assert totals_of(table.nodes[mine].answer("open", enough))
    with pytest.raises(CohortTooSmallError):
        table.nodes[table.on(Side.BODIES)[1]].answer(
            "open", edited(EncryptedOpening, forged, lambda o: o.vouches.extend(few))
        )


def test_the_coordinator_waits_for_those_who_have_to_agree() -> None:
    """Of eight five: when four are gone, the sum is void although both sides have somebody to open it."""
    for gone in (3, 4):
        table = Table(sum_round(*EIGHT)).until("check")
        first = {table.on(side)[0] for side in Side}
        lost = [name for name in EIGHT if name not in first][:gone]
        for name in sorted(first):
            table.take(name, table.tell(name, table.asked[name]))
        assert now(table).missing == 3
        if gone == 4:
            with pytest.raises(CohortTooSmallError, match="checkers"):
                table.play(absent=tuple(lost))
            return
        table.play(absent=tuple(lost))
        assert isinstance(table.play(), OpenedSums)


def test_what_is_opened_is_what_was_checked() -> None:
    """Another list, with all the words that it takes: those who open have not added it up."""
    table = Table(sum_round(*EIGHT)).until("check")
    a, c = table.on(Side.BODIES)[0], table.on(Side.SEEDS)[0]
    fewer = tuple(name for name in EIGHT if name != table.on(Side.BODIES)[3])
    table.tell(a, checking(table, a, EIGHT))
    heard = {name: table.tell(name, checking(table, name, fewer)) for name in EIGHT if name != a}
    assert c in heard
    with pytest.raises(ProtectionError, match="other uploads"):
        table.nodes[a].answer("open", opening(table, a, fewer, heard))


@pytest.mark.parametrize("nodes", range(3, 13))
def test_a_quorum_agrees_on_a_list_and_has_somebody_on_each_side(nodes: int) -> None:
    for colluders in range(nodes - 2):
        quorum = ENCRYPTED.quorum(nodes, colluders=colluders, min_cohort=3)
        assert 2 * quorum > nodes + colluders  # Two quorums share more than those who would sign twice.
        assert quorum > (nodes + 1) // 2  # Sides differ by one site at most.
        assert quorum <= nodes
