"""Answers of nodes that the coordinator half takes, or not: a bad one costs its sender and nobody else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secure_fl.errors import SecureFLError
from secure_fl.messages import parse
from secure_fl.protect.combining import CombinationsSent
from secure_fl.protect.contract import Message, OpenedSums
from secure_fl.protect.encrypted.groups import encrypted_groups
from secure_fl.protect.encrypted.opener import TOTAL
from secure_fl.protect.encrypted.scheme import Key
from secure_fl.protect.encrypted.sides import Side
from secure_fl.protect.encrypted.statements import sign_vouch
from secure_fl.protect.encrypted.terms import Terms
from secure_fl.protect.uploads.statements import sign_commit
from secure_fl.rpc.protect_encrypted_pb2 import EncryptedKeys, EncryptedOpened, EncryptedVouches
from secure_fl.rpc.protect_uploads_pb2 import UploadAnswer
from tests.protect.encrypted.table import KINDS, NAMES, Table, maker_of, other_than
from tests.protect.members import member
from tests.protect.sealed.table import edited, flip, said

kinds = pytest.mark.parametrize("kind", KINDS)


def goes_on(table: Table) -> None:
    """To the end, as if nothing had been tried."""
    opened: Any = None
    while table.machine.phase:
        opened = table.play()
    if table.about.kind.value == "sum":
        assert isinstance(opened, OpenedSums)
        assert opened.blocks["body"].total.tolist() == [15, 12, -18]
    else:
        assert isinstance(opened, CombinationsSent)
        assert opened.recipients == NAMES


def refuses(table: Table, name: str, answer: Message) -> None:
    """The answer is not taken, and `name` may still give another."""
    with pytest.raises(SecureFLError):
        table.take(name, answer)
    assert name in table.machine.waiting


KEYS: dict[str, Callable[[EncryptedKeys], object]] = {
    "somebody left out": lambda k: k.envelopes.__delitem__(0),
    "somebody twice": lambda k: k.envelopes.append(k.envelopes[0]),
    "out of order": lambda k: k.envelopes.reverse(),
    "a stranger": lambda k: setattr(k.envelopes[4], "peer", "zz"),
    "too long": lambda k: setattr(k.envelopes[1], "sealed", k.envelopes[1].sealed + b"\0"),
    "empty": lambda k: setattr(k.envelopes[1], "sealed", b""),
    "no id": lambda k: setattr(k, "key_id", b""),
    "nothing": lambda k: k.Clear(),
}


@kinds
def test_a_key_that_is_not_sealed_to_everybody_is_not_handed_on(kind: str) -> None:
    table = Table(KINDS[kind]()).until("key")
    maker = maker_of(table)
    honest = table.tell(maker, table.asked[maker])
    for change in KEYS.values():
        refuses(table, maker, edited(EncryptedKeys, honest, change))
    table.play(forged={maker: honest})
    goes_on(table)


@kinds
def test_an_upload_that_is_not_what_its_node_signed_is_not_taken(kind: str) -> None:
    table = Table(KINDS[kind]()).until("upload")
    honest = {name: table.tell(name, table.asked[name]) for name in NAMES}
    table.answers.update({("upload", name): answer for name, answer in honest.items()})
    key = table.nodes["n0"].party.key.id

    def resigned(bulk: bytes, digests: list[bytes] | None = None) -> Message:
        """An upload that n0 signs in all honesty."""
        mine = digests or list(table.commits("n0")[0].digests)
        commit = sign_commit(member("n0"), table.cohort, hashlib.sha256(bulk).digest(), mine)
        return replace(edited(UploadAnswer, honest["n0"], lambda u: u.commit.CopyFrom(commit)), bulk=bulk)

    def of(bulk: bytes) -> list[bytes]:
        groups = encrypted_groups(table.about, Terms.of(table.about), table.cohort, "n0")
        return [key, *(hashlib.sha256(bulk[part.start : part.start + part.size]).digest()
                       for group in groups for part in group.halves.values())]  # fmt: skip

    raw = bytes(honest["n0"].bulk)
    assert of(raw) == list(table.commits("n0")[0].digests)
    unreduced = b"\xff" * Terms.of(table.about).chunk_bytes + raw[Terms.of(table.about).chunk_bytes :]
    other = Key.generate(table.scheme).id
    for bad in (
        replace(honest["n0"], bulk=flip(raw)),
        resigned(flip(raw)),  # the digest of the seeds is another's
        resigned(unreduced, of(unreduced)),
        resigned(raw[:-1]),
        resigned(raw + b"\0"),
        resigned(raw, [other, *of(raw)[1:]]),
        resigned(raw, of(raw)[:-1]),
        resigned(raw, [key, *reversed(of(raw)[1:])]),
        honest["n1"],
        edited(UploadAnswer, honest["n0"], lambda u: u.envelopes.__delitem__(0)),
        edited(UploadAnswer, honest["n0"], lambda u: u.envelopes[0].key_shares.append(bytes(16))),
        edited(UploadAnswer, honest["n0"], lambda u: setattr(u.envelopes[0], "sketch_share", bytes(16))),
        replace(honest["n0"], body=b""),
    ):
        refuses(table, "n0", bad)
    table.play(forged=honest)
    goes_on(table)


@kinds
def test_words_about_other_halves_than_the_asked_ones_are_not_taken(kind: str) -> None:
    table = Table(KINDS[kind]()).until("check")
    me = next(iter(sorted(table.asked)))
    honest = table.tell(me, table.asked[me])
    mine = parse(EncryptedVouches, honest.body).vouches
    assert mine
    other = other_than(table, me)
    stranger = sign_vouch(
        member(other), table.cohort, table.uploads().digest, side=table.sides.of(other), half=bytes(32)
    )
    changes: list[Callable[[EncryptedVouches], object]] = [
        lambda v: v.Clear(),
        lambda v: v.vouches.append(v.vouches[0]),
        lambda v: v.vouches[0].CopyFrom(stranger),
        lambda v: setattr(v.vouches[0], "node", other),
        lambda v: setattr(v.vouches[0], "half", bytes(32)),
        lambda v: setattr(v.vouches[0], "signature", b""),
        lambda v: setattr(v.vouches[0], "recipient", "zz"),
    ]
    for change in changes:
        refuses(table, me, edited(EncryptedVouches, honest, change))
    table.play(forged={me: honest})
    goes_on(table)


@pytest.mark.parametrize("kind", ["sum", "circle"])
def test_totals_of_the_wrong_length_or_with_another_digest_are_not_taken(kind: str) -> None:
    table = Table(KINDS[kind]()).until("open")
    speaker, listener = (next(n for n in table.asked if table.sides.of(n) is side) for side in Side)
    honest = {name: table.tell(name, table.asked[name]) for name in (speaker, listener)}
    raw = bytes(honest[speaker].bulk)
    for bulk in (raw[:-4], raw + bytes(4), b"", flip(raw)):
        refuses(table, speaker, replace(honest[speaker], bulk=bulk))
    refuses(table, speaker, said(EncryptedOpened(totals=bytes(32))))
    refuses(table, listener, replace(honest[listener], bulk=raw))  # Who has seeds only confirms.
    table.play(forged=honest)


def test_a_total_that_nobody_can_have_made_is_not_opened() -> None:
    """Openers that agree on nonsense are two sites that work together: what they say has to be possible at least."""

    for total in ([40_000 * 6, 0, 0, 0, 0, 6 * 64], [0, 0, 0, 0, 0, 6 * 64 + 1], [0, 0, 0, 0, 0, 0]):
        table = Table(KINDS["circle"]()).until("open")
        lie = np.array(total, TOTAL).tobytes()
        word = said(EncryptedOpened(totals=hashlib.sha256(lie).digest()))
        forged = {n: replace(word, bulk=lie if table.sides.of(n) is Side.BODIES else b"") for n in table.asked}
        with pytest.raises(SecureFLError):
            table.play(forged=forged)
