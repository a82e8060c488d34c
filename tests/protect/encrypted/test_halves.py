"""A coordinator that hands on other halves than those that sites signed, or other sums of them; openers that lie.

Whoever may choose what a site decrypts reads one upload as a sum, or the key from how decryption fails.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secure_fl.errors import ProtectionError, SecureFLError
from secure_fl.messages import parse
from secure_fl.protect.contract import Message, OpenedSums
from secure_fl.protect.encrypted import party
from secure_fl.protect.encrypted.opener import TOTAL, Opener
from secure_fl.protect.encrypted.sides import Side
from secure_fl.protect.encrypted.statements import sign_vouch
from secure_fl.protect.encrypted.terms import DEGREE, SEED_BYTES, Terms
from secure_fl.protect.primitives.packing import WORD, Words
from secure_fl.rpc.protect_encrypted_pb2 import (
    EncryptedOpened,
    EncryptedOpening,
    EncryptedVouch,
    EncryptedVouches,
)
from tests.protect.cohorts import contribution, layout
from tests.protect.encrypted.oracle import decrypt, errors, key_coefficients, product, raw_of, words_of
from tests.protect.encrypted.table import (
    KINDS,
    NAMES,
    Table,
    circle_round,
    now,
    sum_round,
    totals_of,
    trusting,
)
from tests.protect.members import member
from tests.protect.sealed.table import edited, flip, said

NINE = tuple(f"n{index}" for index in range(9))
both_sides = pytest.mark.parametrize("side", list(Side))


def cut(bulk: Any, count: int) -> list[bytes]:
    """The halves of so many uploads."""
    size = len(bulk) // count
    return [bytes(bulk[place * size : (place + 1) * size]) for place in range(count)]


# --- one half of each upload --------------------------------------------------------------------------------------


def _rerandomised(table: Table, side: Side, part: bytes) -> bytes:
    """The same values under other randomness: a body plus a fresh encryption of zero, or other seeds."""
    half: Any = table.nodes["n0"]
    if side is Side.SEEDS:
        return hashlib.sha512(part).digest() * (len(part) // SEED_BYTES)
    zero, _ = half.party.cipher.encrypt([np.zeros(1, np.int32)], values=1)
    return table.scheme.add_bodies([(1, part), (1, zero)], values=1)


def _foreign(table: Table, side: Side) -> bytes:
    """Somebody's half in another attempt."""
    other = Table(replace(table.about, attempt=9)).until("upload")
    other.play()
    return other.part(side, "n1")


Halves = Callable[[Table, Side, list[bytes]], list[bytes]]
HALVES: dict[str, Halves] = {
    "two exchanged": lambda _t, _s, parts: [parts[1], parts[0], *parts[2:]],
    "one twice": lambda _t, _s, parts: [parts[0], parts[0], *parts[2:]],
    "one instead of all": lambda _t, _s, parts: parts[:1] * len(parts),
    "one missing": lambda _t, _s, parts: parts[1:],
    "one too many": lambda _t, _s, parts: [*parts, parts[0]],
    "a bit flipped": lambda _t, _s, parts: [flip(parts[0]), *parts[1:]],
    "a byte missing": lambda _t, _s, parts: [*parts[:-1], parts[-1][:-1]],
    "a byte too many": lambda _t, _s, parts: [*parts, b"\0"],
    "nothing": lambda _t, _s, _p: [],
    "the other side's": lambda t, side, _p: [t.part(side.other, name) for name in t.about.invited],
    "the other side's, of one": lambda t, side, parts: [t.part(side.other, "n0"), *parts[1:]],
    "the other side's as well": lambda t, side, parts: [*parts, *(t.part(side.other, n) for n in t.about.invited)],
    "under other randomness": lambda t, side, parts: [_rerandomised(t, side, parts[0]), *parts[1:]],
    "of another attempt": lambda t, side, parts: [parts[0], _foreign(t, side), *parts[2:]],
    "not reduced": lambda _t, _s, parts: [b"\xff" * len(parts[0]), *parts[1:]],
    "their sum": lambda t, side, _p: [t.total(side, dict.fromkeys(t.about.invited, 1))],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attack", HALVES)
def test_halves_that_are_not_the_signed_ones_are_not_added_up(attack: str, kind: str) -> None:
    table = Table(KINDS[kind]()).until("check")
    for side in Side:
        me = table.on(side)[0]
        message = table.asked[me]
        parts = HALVES[attack](table, side, cut(message.bulk, len(NAMES)))
        table.refuses(me, replace(message, bulk=b"".join(parts)), ProtectionError)
        # Nor does it open what it never added up.
        later = "deliver" if kind == "combine" else "open"
        if kind == "combine":
            assert table.nodes[me].answer(later, message) == Message()
            assert table.nodes[me].combination() == {}
        else:
            with pytest.raises(SecureFLError):
                table.nodes[me].answer(later, message)


@both_sides
def test_halves_of_two_groups_are_not_exchanged(side: Side) -> None:
    table = Table(sum_round(*NINE), deep=frozenset(NINE[:5])).until("check")
    me = table.on(side)[0]
    first, second = table.cohort.groups
    assert len(table.part(side, "n0", first)) == len(table.part(side, "n0", second))
    parts = [table.part(side, name, first) for name in NINE] + [table.part(side, name, second) for name in NINE[:5]]
    assert b"".join(parts) == table.asked[me].bulk
    parts[0], parts[9] = parts[9], parts[0]
    table.refuses(me, replace(table.asked[me], bulk=b"".join(parts)), ProtectionError)


class _Whatever:
    """A digest that equals every other."""

    def __ne__(self, _other: object) -> bool:
        return False

    __eq__ = None  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def believe_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the one check that halves are those that were signed."""
    digest = SimpleNamespace(digest=_Whatever)
    monkeypatch.setattr(party, "hashlib", SimpleNamespace(sha256=lambda _raw: digest))


@pytest.mark.parametrize("kind", ["sum", "circle"])
@pytest.mark.parametrize("checked", [True, False])
def test_one_upload_is_not_opened_as_a_sum(checked: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both openers are given n3's half for everybody's: what they open is six times n3's update."""
    table = Table(KINDS[kind]()).until("check")
    if not checked:
        believe_halves(monkeypatch)
    forged = {}
    for name in table.asked:
        bulk = table.asked[name].bulk
        message = replace(table.asked[name], bulk=table.part(table.sides.of(name), "n3") * len(NAMES) if bulk else b"")
        if checked and bulk:
            table.refuses(name, message, ProtectionError)
        else:
            forged[name] = table.tell(name, message)
    if checked:
        assert not any(parse(EncryptedVouches, answer.body).vouches[0].half for answer in forged.values())
        return
    table.play(forged=forged)
    me = next(name for name in table.asked if table.sides.of(name) is Side.BODIES)
    forgery = replace(table.asked[me], bulk=table.total(Side.SEEDS, {"n3": 6}))
    mine = table.values["n3"]
    alone = [*mine.blocks["body"].tolist(), *mine.blocks["head"].tolist(), mine.weight]
    assert totals_of(table.tell(me, forgery)) == [6 * value for value in alone]


@both_sides
def test_without_recomputing_the_coordinator_reads_any_upload_as_a_sum(side: Side) -> None:
    """That is what the exception `honest-coordinator` says, and why each site has to agree to it."""
    table = Table(trusting(circle_round())).until("open")
    assert table.protection.exceptions == ("honest-coordinator",)
    me = table.on(side)[0]
    forgery = replace(table.asked[me], bulk=table.total(Side.BODIES, {"n3": 6}) + table.total(Side.SEEDS, {"n3": 6}))
    answer = table.tell(me, forgery)
    mine = table.values["n3"]
    alone = np.array([*mine.blocks["body"].tolist(), *mine.blocks["head"].tolist(), mine.weight], TOTAL)
    assert parse(EncryptedOpened, answer.body).totals == hashlib.sha256((6 * alone).tobytes()).digest()
    if side is Side.BODIES:
        assert totals_of(answer) == (6 * alone).tolist()


@both_sides
def test_a_side_is_never_given_the_other_half_later(side: Side) -> None:
    """No second `check`, and an `open` takes one sum that somebody vouches for: not parts, and not a part as a sum."""
    table = Table(circle_round()).until("check")
    me = table.on(side)[0]
    honest = table.asked[me]
    table.tell(me, honest)
    others = b"".join(table.part(side.other, name) for name in NAMES)
    with pytest.raises(ProtectionError, match="not the next"):
        table.tell(me, replace(honest, bulk=others))
    heard = {name: table.nodes[name].answer("check", table.asked[name]) for name in table.asked if name != me}
    told = EncryptedOpening(commits=table.commits())
    for answer in heard.values():
        told.vouches.extend(parse(EncryptedVouches, answer.body).vouches)
    for bulk in (others, table.total(side.other, {"n3": 1}), table.total(side.other, {"n3": 6}), b""):
        half = Table(circle_round())  # Each try is an attempt of its own.
        half.until("open")
        mine = half.on(side)[0]
        with pytest.raises(SecureFLError):
            half.tell(mine, replace(half.asked[mine], bulk=bulk))
    with pytest.raises(SecureFLError):
        table.nodes[me].answer("open", replace(said(told), bulk=others))


# --- the other half of a sum --------------------------------------------------------------------------------------


def shifted(half: bytes | memoryview, by: Words, terms: Terms) -> bytes:
    """A polynomial plus another one modulo q."""
    words = (words_of(bytes(half), terms) + by) % np.uint64(terms.modulus)
    return raw_of(words.astype(WORD), terms)


def _vouch(table: Table, name: str, half: bytes, **more: Any) -> EncryptedVouch:
    """What `name` signs for a coordinator that it works with."""
    about = more.pop("about", table.uploads().digest)
    cohort = more.pop("cohort", table.cohort)
    who = more.pop("who", member(name))
    fields = {"side": table.sides.of(name), **more}
    return sign_vouch(who, cohort, about, half=half, **fields)


def _named(vouch: EncryptedVouch, name: str) -> EncryptedVouch:
    vouch.node = name
    return vouch


def _elsewhere(table: Table) -> Table:
    other = Table(replace(table.about, attempt=9)).until("upload")
    other.play()
    return other


Vouching = Callable[[Table, str, bytes], list[EncryptedVouch]]
VOUCHES: dict[str, Vouching] = {
    "nobody's": lambda _t, _me, _half: [],
    "the honest one for another half": lambda t, me, half: [
        _named(EncryptedVouch(half=half, signature=honest(t, me).signature), honest(t, me).node)],
    "unsigned": lambda t, me, half: [EncryptedVouch(node=honest(t, me).node, half=half)],
    "signed by nobody of the round": lambda t, me, half: [
        _named(_vouch(t, honest(t, me).node, half, who=member("evil-voucher"), side=t.sides.of(me).other),
               honest(t, me).node)],
    "my own": lambda t, me, half: [_vouch(t, me, half)],
    "one of my own side": lambda t, me, half: [_vouch(t, t.on(t.sides.of(me))[1], half)],
    "one of my own side that speaks for the other": lambda t, me, half: [
        _vouch(t, t.on(t.sides.of(me))[1], half, side=t.sides.of(me).other)],
    "one of the other side about its own half as mine": lambda t, me, half: [
        _vouch(t, honest(t, me).node, half, side=t.sides.of(me))],
    "of another attempt": lambda t, me, half: [_vouch(t, honest(t, me).node, half, cohort=_elsewhere(t).cohort)],
    "about other uploads": lambda t, me, half: [_vouch(t, honest(t, me).node, half, about=bytes(32))],
    "for a recipient": lambda t, me, half: [_vouch(t, honest(t, me).node, half, recipient=me)],
    "a stranger's": lambda t, me, half: [
        _named(_vouch(t, honest(t, me).node, half, who=member("zz"), side=t.sides.of(me).other), "zz")],
}  # fmt: skip


def honest(table: Table, me: str) -> EncryptedVouch:
    """The word of the other side's opener in a circle."""
    theirs = table.on(table.sides.of(me).other)[0]
    vouch: EncryptedVouch = parse(EncryptedVouches, table.answers["check", theirs].body).vouches[0]
    return vouch


@both_sides
@pytest.mark.parametrize("attack", VOUCHES)
def test_no_other_half_is_taken_without_the_word_of_one_who_added_it_up(attack: str, side: Side) -> None:
    table = Table(circle_round()).until("open")
    me = table.on(side)[0]
    terms = Terms.of(table.about)
    one = np.zeros(DEGREE, WORD)
    one[0] = 1
    forged = shifted(table.asked[me].bulk, one, terms)
    vouches = VOUCHES[attack](table, me, hashlib.sha256(forged).digest())

    def change(opening: EncryptedOpening) -> None:
        del opening.vouches[:]
        opening.vouches.extend(vouches)

    table.refuses(me, replace(edited(EncryptedOpening, table.asked[me], change), bulk=forged), ProtectionError)


def test_any_word_among_several_is_enough() -> None:
    """Bad ones among them cost nothing: otherwise one site that cheats would end the round for all."""
    table = Table(circle_round()).until("open")
    me = table.on(Side.BODIES)[0]
    half = hashlib.sha256(table.asked[me].bulk).digest()
    bad = [vouch for attack in VOUCHES.values() for vouch in attack(table, me, half)]
    told = edited(EncryptedOpening, table.asked[me], lambda o: o.vouches.MergeFrom(bad))
    told = edited(EncryptedOpening, told, lambda o: o.vouches.reverse())
    assert totals_of(table.tell(me, told))


def believe_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the one check that somebody vouches for the other half."""
    monkeypatch.setattr("secure_fl.protect.encrypted.opener.require_vouched", lambda *_a, **_k: None)


@pytest.mark.parametrize("checked", [True, False])
def test_openers_are_no_oracle_for_the_errors(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reaction attack: a coefficient is moved by half of Δ, and the opener's word tells the sign of its error.

    Errors of a few hundred sums, with the sums that everybody learns, are linear equations for the key.
    """
    if not checked:
        believe_words(monkeypatch)
    seen: set[bool] = set()
    for _ in range(60):
        table = Table(circle_round()).until("open")
        me, terms = table.on(Side.SEEDS)[0], Terms.of(table.about)
        by = np.zeros(DEGREE, WORD)
        by[0] = terms.scale // 2
        forged = replace(table.asked[me], bulk=shifted(table.asked[me].bulk, by, terms))
        if checked:
            table.refuses(me, forged, ProtectionError)
            return
        plain = np.frombuffer(table.nodes[table.on(Side.BODIES)[0]].answer(
            "open", table.asked[table.on(Side.BODIES)[0]]).bulk, TOTAL)  # fmt: skip
        up = plain.copy()
        up[0] += 1
        candidates = {hashlib.sha256(plain.tobytes()).digest(): False, hashlib.sha256(up.tobytes()).digest(): True}
        learnt = candidates[parse(EncryptedOpened, table.tell(me, forged).body).totals]
        assert learnt == (_sum_of_errors(table)[0] < 0)
        seen.add(learnt)
        if len(seen) == 2:
            break
    assert seen == {True, False}


def _sum_of_errors(table: Table) -> list[int]:
    """E of the sum: phase = Δ·M − E."""
    half: Any = table.nodes["n0"]
    terms = Terms.of(table.about)
    weights = dict.fromkeys(NAMES, 1)
    body, mask = (words_of(table.total(side, weights), terms) for side in (Side.BODIES, Side.SEEDS))
    message = decrypt(half.party.cipher, body, mask, terms)
    masked = product(mask, key_coefficients(half.party.cipher, terms), terms.modulus)
    return [int(error) for error in errors(body, message, masked, terms)]


@pytest.mark.parametrize("checked", [True, False])
def test_openers_do_not_tell_the_key(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding about Δ/2·Xʲ to the masks adds about half a step of ±s to what opens: totals change where s is not 0.

    The ends of ciphertexts, which must not change, stop most tries. An attacker needs some thirty attempts until they
    happen to hold; the test looks up which j it is.
    """
    if not checked:
        believe_words(monkeypatch)
    about = circle_round(blocks=layout(body=6000))
    given = {name: contribution(64, body=[place] * 6000) for place, name in enumerate(NAMES)}
    table = Table(about, given).until("open")
    me, terms = table.on(Side.BODIES)[0], Terms.of(about)
    half: Any = table.nodes[me]
    count = -(-(6000 + 1) // terms.lanes)  # coefficients with values in them
    key = key_coefficients(half.party.cipher, terms)
    opens = half._todo["open"]  # Each try would be an attempt of its own.
    for power in range(DEGREE):
        by = np.zeros(DEGREE, WORD)
        by[power] = terms.scale // 2
        forged = replace(table.asked[me], bulk=shifted(table.asked[me].bulk, by, terms))
        if checked:
            table.refuses(me, forged, ProtectionError)
            return
        try:
            totals = np.array(totals_of(opens(forged)))
        except SecureFLError:
            continue
        break
    turned = np.concatenate([-key[DEGREE - power :], key[: DEGREE - power]]) if power else key  # Xʲ·s
    moved = (totals - 15)[:count]
    found = np.flatnonzero(moved)
    assert found.size > count // 4  # two thirds of s are not 0, half of those show
    assert np.array_equal(moved[found], turned[found])


# --- who opens ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sum", "circle"])
def test_others_open_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for checked in (True, False):
        table = Table(KINDS[kind]()).until("open")
        if not checked:
            # It would have nothing to open with, since it was never given a half.
            monkeypatch.setattr(Opener, "_opens", lambda *_: True)
        for side in Side:
            opener_there, outsider = table.on(side)[0], table.on(side)[2]
            assert outsider not in table.asked
            with pytest.raises(ProtectionError, match="others open" if checked else "other uploads"):
                table.tell(outsider, table.asked[opener_there])


def test_a_site_that_opens_nothing_is_not_given_halves_and_adds_none_up() -> None:
    table = Table(sum_round()).until("check")
    outsider = table.on(Side.BODIES)[2]
    assert table.asked[outsider].bulk == b""
    given = replace(table.asked[outsider], bulk=b"".join(table.part(Side.SEEDS, name) for name in NAMES))
    [vouch] = parse(EncryptedVouches, table.tell(outsider, given).body).vouches
    assert vouch.half == b""


@both_sides
@pytest.mark.parametrize("compared", [True, False])
def test_openers_that_disagree_open_nothing(compared: bool, side: Side) -> None:
    table = Table(circle_round()).until("open")
    liar, other = table.on(side)[0], table.on(side.other)[0]
    lie = np.array([7, 7, 7, 7, 7, 6 * 64], TOTAL).tobytes()
    answers = {name: table.tell(name, table.asked[name]) for name in (liar, other)}
    word = EncryptedOpened(totals=hashlib.sha256(lie).digest())
    answers[liar] = replace(said(word), bulk=lie if answers[liar].bulk else b"")
    for name, answer in answers.items():
        table.take(name, answer)
    if compared:
        with pytest.raises(ProtectionError, match="do not agree"):
            table.machine.close()
        return
    half = now(table)
    half._said = dict.fromkeys(half._said, b"")
    opened = table.machine.close()
    assert isinstance(opened, OpenedSums)
    if side is Side.BODIES:  # Who has bodies speaks, and alone would be believed.
        assert opened.blocks["body"].total.tolist() == [7, 7, 7]
