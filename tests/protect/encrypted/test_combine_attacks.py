"""A coordinator or a recipient that cheats in an encrypted combine: rows, vouches, combinations nobody asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secure_fl.errors import (
    CohortTooSmallError,
    ProtectionError,
    ReleaseRefusedError,
    SecureFLError,
    SignatureError,
)
from secure_fl.messages import parse
from secure_fl.protect.combining import CombinationsSent
from secure_fl.protect.contract import Message
from secure_fl.protect.encrypted import recipient
from secure_fl.protect.encrypted.sides import Side
from secure_fl.protect.encrypted.statements import sign_vouch
from secure_fl.protect.encrypted.terms import DEGREE, Terms
from secure_fl.protect.primitives.packing import WORD
from secure_fl.protect.release.history import OpenedRow
from secure_fl.protect.uploads.statements import Rows
from secure_fl.rpc.protect_encrypted_pb2 import EncryptedCheck, EncryptedOpening, EncryptedVouch, EncryptedVouches
from secure_fl.rpc.protect_uploads_pb2 import UploadRow
from tests.protect.cohorts import contribution
from tests.protect.encrypted.table import EVEN, NAMES, Table, combine_round, sum_round, trusting
from tests.protect.encrypted.test_halves import believe_halves, shifted
from tests.protect.members import member
from tests.protect.sealed.table import edited, said

both_sides = pytest.mark.parametrize("side", list(Side))
Weights = Mapping[str, int]


def opened(table: Table, name: str, message: Message) -> dict[str, list[int]]:
    """What a recipient has after a delivery. It says the same whatever came of it: otherwise it would be an oracle."""
    half = table.nodes[name]
    assert half.answer("deliver", message) == Message()
    return {block: sums.total.tolist() for block, sums in half.combination().items()}


def mixed(table: Table, row: Weights) -> dict[str, list[int]]:
    """What a row makes of everybody's values."""
    return {
        block: sum(weight * table.values[name].blocks[block] for name, weight in row.items()).tolist()  # type: ignore[union-attr]
        for block in ("body", "head")
    }


# --- which rows are opened ----------------------------------------------------------------------------------------


def asking(row: Weights, **rows: Weights) -> dict[str, Any]:
    """Everybody's values; n0 asks for `row`, others for theirs or for nothing."""
    wanted = {"n0": row, **rows}
    return {
        name: contribution(64, wanted.get(name, {}), body=[place, 2, -3], head=[place, -place])
        for place, name in enumerate(NAMES)
    }


MATRICES: dict[str, tuple[Weights, type[SecureFLError], str]] = {
    "a unit row": ({"n1": 64}, CohortTooSmallError, ""),
    "three nodes": ({"n0": 20, "n1": 22, "n2": 22}, CohortTooSmallError, ""),
    "one node above half": ({"n0": 10, "n1": 33, "n2": 7, "n3": 7, "n4": 7}, ReleaseRefusedError, "support"),
    "one node stands out": ({"n0": 31, "n1": 26, "n2": 3, "n3": 4}, ReleaseRefusedError, "leverage"),
    "errors that hide too little": ({"n0": 1, "n1": 31, "n2": 31, "n3": 1}, ReleaseRefusedError, "kernel"),
    "its recipient is not in it": ({"n1": 16, "n2": 16, "n3": 16, "n4": 16}, ReleaseRefusedError, "support"),
}


@pytest.mark.parametrize("attack", MATRICES)
def test_rows_that_isolate_a_node_are_refused_though_their_recipients_signed_them(attack: str) -> None:
    row, error, rule = MATRICES[attack]
    table = Table(combine_round()).until("check")
    told = EncryptedCheck(commits=table.commits(), rows=[table.signed_row("n0", row)])
    for name in NAMES:
        refused = table.refuses(name, said(told), error)
        assert getattr(refused, "rule", "") == rule
        assert table.memories[name].earlier() == []


@pytest.mark.parametrize("checked", [True, False])
def test_a_row_that_the_guard_refuses_is_opened_by_nobody(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    row = MATRICES["one node stands out"][0]
    if not checked:
        monkeypatch.setattr(recipient, "check_rows", lambda *_a, **_k: None)
    table = Table(combine_round(), asking(row), reckless=True).until("check")
    if checked:
        for name in NAMES:
            table.refuses(name, table.asked[name], ReleaseRefusedError)
        return
    table.until("deliver")
    assert opened(table, "n0", table.asked["n0"]) == mixed(table, row)


ROW = {"n0": 16, "n1": 16, "n2": 16, "n3": 16}
EARLIER: list[OpenedRow] = [("n0", {"n0": 16, "n1": 16, "n2": 16, "n4": 16})]


@pytest.mark.parametrize("checked", [True, False])
def test_what_was_opened_before_counts_although_the_coordinator_is_silent_about_it(
    checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n1 has seen the earlier row, n3 has not; n1 says so in its manifest."""
    memories: dict[str, list[OpenedRow]] = {name: [] for name in NAMES} | {"n1": EARLIER}
    table = Table(combine_round(), asking(ROW), earlier=EARLIER, memories=memories, reckless=True).until("check")
    silent = edited(EncryptedCheck, table.asked["n3"], lambda c: c.ClearField("earlier"))
    if checked:
        assert table.refuses("n1", table.asked["n1"], ReleaseRefusedError).rule == "history"
        assert table.refuses("n0", table.asked["n0"], ReleaseRefusedError).rule == "history"
        assert "not shown" in str(table.refuses("n3", silent, ProtectionError))
        return
    monkeypatch.setattr(recipient, "known_rows", lambda _hashes, _rows: [])
    table.tell("n3", silent)
    assert table.memories["n3"].earlier() == [("n0", ROW)]


def _reweigh(row: UploadRow, weights: Weights) -> None:
    row.row.clear()
    row.row.update(weights)


def _signed(table: Table, row: UploadRow, weights: Weights) -> None:
    row.CopyFrom(table.signed_row(row.node, weights))


Changes = Callable[[Table, Any], object]
ROWS: dict[str, tuple[Changes, type[SecureFLError]]] = {
    "a weight changed": (lambda _t, m: _reweigh(m.rows[1], {**EVEN, "n0": 12, "n1": 10}), SignatureError),
    "no signature": (lambda _t, m: setattr(m.rows[1], "signature", b""), SignatureError),
    "another's signature": (lambda _t, m: setattr(m.rows[1], "signature", m.rows[2].signature), SignatureError),
    "another's row under its name": (lambda _t, m: setattr(m.rows[0], "node", "n1"), SecureFLError),
    "a row for other uploads": (
        lambda t, m: m.rows[1].CopyFrom(t.signed_row("n1", dict(m.rows[1].row), *NAMES[:5])), SignatureError),
    "a row twice": (lambda _t, m: m.rows.append(m.rows[0]), ProtectionError),
    "out of order": (lambda _t, m: m.rows.reverse(), ProtectionError),
    "no rows at all": (lambda _t, m: m.rows.__delitem__(slice(None)), ProtectionError),
    "an empty row": (lambda t, m: _signed(t, m.rows[1], {}), CohortTooSmallError),
    "a recipient that did not upload": (lambda _t, m: setattr(m.rows[5], "node", "zz"), ProtectionError),
    "a row with a stranger": (lambda t, m: _signed(t, m.rows[1], {**EVEN, "n0": 10, "zz": 1}), ProtectionError),
    "a larger total": (lambda t, m: _signed(t, m.rows[1], {**EVEN, "n0": 12}), ProtectionError),
    "a total that wraps": (lambda t, m: _signed(t, m.rows[1], {**EVEN, "n0": 2**32 - 1, "n1": 1}), ProtectionError),
    "a weight of zero": (lambda t, m: _signed(t, m.rows[1], {**EVEN, "n0": 22, "n1": 0}), ProtectionError),
}  # fmt: skip


@pytest.mark.parametrize("attack", ROWS)
def test_rows_that_were_not_signed_or_do_not_count_to_the_total_open_nothing(attack: str) -> None:
    change, error = ROWS[attack]
    table = Table(combine_round()).until("check")
    table.refuses("n0", edited(EncryptedCheck, table.asked["n0"], lambda m: change(table, m)), error)
    table = Table(combine_round()).until("deliver")
    assert opened(table, "n0", edited(EncryptedOpening, table.asked["n0"], lambda m: change(table, m))) == {}


def test_a_sum_has_no_rows() -> None:
    table = Table(sum_round()).until("check")
    row = UploadRow(node="n1", row={"n1": 64})
    for field in ("rows", "earlier"):
        me = table.on(Side.BODIES if field == "rows" else Side.SEEDS)[0]
        forged = edited(EncryptedCheck, table.asked[me], lambda m: getattr(m, field).append(row))  # noqa: B023
        assert "no rows" in str(table.refuses(me, forged, ProtectionError))


# --- what is delivered --------------------------------------------------------------------------------------------


def other_matrix(table: Table, message: Message, row: Weights) -> Message:
    """A delivery for another matrix, with everything that belongs to it: n1 works with the coordinator."""
    told = parse(EncryptedOpening, message.body)
    _signed(table, told.rows[1], row)
    digest = Rows(table.about, table.cohort, table.uploads(), told.rows).digest
    half = hashlib.sha256(message.bulk).digest()
    del told.vouches[:]
    for name in table.on(table.sides.of("n0").other):
        told.vouches.append(
            sign_vouch(member(name), table.cohort, digest, side=table.sides.of(name), half=half, recipient="n0")
        )
    return replace(message, body=told.SerializeToString(deterministic=True))


@pytest.mark.parametrize("checked", [True, False])
def test_another_matrix_than_the_checked_one_opens_nothing(checked: bool) -> None:
    table = Table(combine_round()).until("deliver")
    forged = other_matrix(table, table.asked["n0"], {**EVEN, "n0": 10, "n4": 11})
    if not checked:
        told = parse(EncryptedOpening, forged.body)
        table.nodes["n0"]._recipient._checked = Rows(table.about, table.cohort, table.uploads(), told.rows).digest
    assert opened(table, "n0", forged) == ({} if checked else mixed(table, EVEN))


def test_who_did_not_ask_is_given_nothing() -> None:
    table = Table(combine_round(), asking(EVEN, **dict.fromkeys(NAMES[1:5], EVEN))).until("deliver")
    assert "n5" not in table.asked
    assert opened(table, "n5", table.asked["n0"]) == {}
    assert opened(table, "n1", table.asked["n0"]) == {}  # Nor another's.
    assert opened(table, "n0", table.asked["n0"]) == mixed(table, EVEN)


def test_who_did_not_check_is_given_nothing() -> None:
    table = Table(combine_round()).until("check")
    honest = {name: table.asked[name] for name in NAMES}
    table.play(absent=("n0",))
    assert "n0" not in table.asked
    message = table.asked["n1"]
    assert opened(table, "n0", message) == {}
    with pytest.raises(ProtectionError):
        table.nodes["n0"].answer("check", honest["n0"])  # It is over.


@pytest.mark.parametrize("checked", [True, False])
def test_one_upload_is_not_opened_as_a_combination(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody is given n3's half for everybody's: n0 would open 64 times n3's update."""
    table = Table(combine_round()).until("check")
    if not checked:
        believe_halves(monkeypatch)
    forged = {}
    for name in NAMES:
        part = table.part(table.sides.of(name), "n3")
        message = replace(table.asked[name], bulk=part * (len(table.asked[name].bulk) // len(part)))
        if checked:
            table.refuses(name, message, ProtectionError)
        else:
            forged[name] = table.tell(name, message)
    if checked:
        return
    table.play(forged=forged)
    bulk = table.total(table.sides.of("n0").other, {"n3": 64})
    assert opened(table, "n0", replace(table.asked["n0"], bulk=bulk)) == mixed(table, {"n3": 64})


def test_without_recomputing_a_recipient_opens_whatever_it_is_sent() -> None:
    """The coordinator and one site read any upload: the exception `honest-coordinator` says so."""
    table = Table(trusting(combine_round())).until("deliver")
    bulk = table.total(Side.BODIES, {"n3": 64}) + table.total(Side.SEEDS, {"n3": 64})
    assert opened(table, "n0", replace(table.asked["n0"], bulk=bulk)) == mixed(table, {"n3": 64})


# --- who vouches --------------------------------------------------------------------------------------------------


def _vouch(table: Table, me: str, name: str, half: bytes, **more: Any) -> EncryptedVouch:
    """What `name` signs about a half of `me`'s combination, for a coordinator that it works with."""
    told = parse(EncryptedOpening, table.asked[me].body)
    about = more.pop("about", Rows(table.about, table.cohort, table.uploads(), told.rows).digest)
    cohort = more.pop("cohort", table.cohort)
    fields = {"side": table.sides.of(name), "recipient": me, **more}
    return sign_vouch(member(name), cohort, about, half=half, **fields)


def _idle(table: Table, me: str) -> str:
    """One of the other side who was not asked to vouch for `me`."""
    chosen = table.sides.vouchers(me, NAMES)
    return next(name for name in table.on(table.sides.of(me).other) if name not in chosen)


def _first(table: Table, me: str) -> str:
    return table.sides.vouchers(me, NAMES)[0]


def _elsewhere(table: Table) -> Table:
    other = Table(replace(table.about, attempt=9)).until("upload")
    other.play()
    return other


def _another(table: Table, me: str) -> str:
    return next(name for name in NAMES if name != me)


Vouching = Callable[[Table, str, bytes], list[EncryptedVouch]]
VOUCHES: dict[str, Vouching] = {
    "nobody's": lambda _t, _me, _half: [],
    "unsigned": lambda t, me, half: [EncryptedVouch(node=_first(t, me), recipient=me, half=half)],
    "my own": lambda t, me, half: [_vouch(t, me, me, half)],
    "one of my own side that speaks for the other": lambda t, me, half: [
        _vouch(t, me, t.on(t.sides.of(me))[place], half, side=t.sides.of(me).other) for place in range(3)],
    "as if it were my side's": lambda t, me, half: [_vouch(t, me, _first(t, me), half, side=t.sides.of(me))],
    "somebody's who was not asked": lambda t, me, half: [_vouch(t, me, _idle(t, me), half)],
    "for another recipient": lambda t, me, half: [_vouch(t, me, _first(t, me), half, recipient=_another(t, me))],
    "for nobody": lambda t, me, half: [_vouch(t, me, _first(t, me), half, recipient="")],
    "of another attempt": lambda t, me, half: [_vouch(t, me, _first(t, me), half, cohort=_elsewhere(t).cohort)],
    "about the uploads": lambda t, me, half: [_vouch(t, me, _first(t, me), half, about=t.uploads().digest)],
    "about other rows": lambda t, me, half: [_vouch(t, me, _first(t, me), half, about=bytes(32))],
}  # fmt: skip


def steered(table: Table, me: str) -> tuple[bytes, list[int]]:
    """The other half with something on top: for who has seeds, exactly that comes on top of the first block."""
    terms = Terms.of(table.about)
    by = np.zeros(DEGREE, WORD)
    by[:3] = [terms.scale * value for value in (700, 600, 500)]
    return shifted(table.asked[me].bulk, by, terms), [700, 600, 500]


@both_sides
@pytest.mark.parametrize("attack", VOUCHES)
def test_no_half_of_a_combination_is_taken_without_the_right_word(attack: str, side: Side) -> None:
    table = Table(combine_round()).until("deliver")
    me = table.on(side)[0]
    bulk, _ = steered(table, me)
    vouches = VOUCHES[attack](table, me, hashlib.sha256(bulk).digest())

    def change(told: EncryptedOpening) -> None:
        del told.vouches[:]
        told.vouches.extend(vouches)

    assert opened(table, me, replace(edited(EncryptedOpening, table.asked[me], change), bulk=bulk)) == {}


@pytest.mark.parametrize("checked", [True, False])
def test_a_combination_is_not_steered(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not checked:
        monkeypatch.setattr(recipient, "require_vouched", lambda *_a, **_k: None)
    table = Table(combine_round()).until("deliver")
    me = table.on(Side.SEEDS)[0]
    bulk, by = steered(table, me)
    found = opened(table, me, replace(table.asked[me], bulk=bulk))
    if checked:
        assert found == {}
    else:
        moved = np.array(found["body"]) - np.array(mixed(table, EVEN)["body"])
        assert moved.tolist() == by


DELIVERIES: dict[str, Callable[[Table, Any, str], bytes]] = {
    "nothing": lambda _t, _bulk, _me: b"",
    "a byte missing": lambda _t, bulk, _me: bytes(bulk[:-1]),
    "a byte too many": lambda _t, bulk, _me: bytes(bulk) + b"\0",
    "not reduced": lambda _t, bulk, _me: b"\xff" * len(bulk),
    "my own side's": lambda t, _bulk, me: t.total(t.sides.of(me), EVEN),
    "each of its parts": lambda t, _bulk, me: b"".join(t.part(t.sides.of(me).other, name) for name in NAMES),
    "one of its parts": lambda t, _bulk, me: t.total(t.sides.of(me).other, {"n3": 64}),
    "with other weights": lambda t, _bulk, me: t.total(t.sides.of(me).other, {**EVEN, "n0": 10, "n4": 11}),
}


@both_sides
@pytest.mark.parametrize("attack", DELIVERIES)
def test_another_half_than_that_of_its_combination_opens_nothing(attack: str, side: Side) -> None:
    table = Table(combine_round()).until("deliver")
    me = table.on(side)[0]
    bulk = DELIVERIES[attack](table, table.asked[me].bulk, me)
    assert opened(table, me, replace(table.asked[me], bulk=bulk)) == {}


def test_a_voucher_that_lies_does_not_keep_anybody_from_its_combination() -> None:
    """Each recipient has two, and takes the word of the one that is right."""
    table = Table(combine_round()).until("check")
    liar = table.on(Side.BODIES)[0]
    answer = parse(EncryptedVouches, table.tell(liar, table.asked[liar]).body)
    told = parse(EncryptedCheck, table.asked[liar].body)
    about = Rows(table.about, table.cohort, table.uploads(), told.rows).digest
    lies = [
        sign_vouch(member(liar), table.cohort, about, side=Side.BODIES, half=bytes(32), recipient=vouch.recipient)
        for vouch in answer.vouches
    ]
    assert lies
    table.play(forged={liar: said(EncryptedVouches(vouches=lies))})
    sent = table.play()
    assert isinstance(sent, CombinationsSent)
    for name in NAMES:
        assert {block: sums.total.tolist() for block, sums in table.nodes[name].combination().items()} == mixed(
            table, EVEN
        )
