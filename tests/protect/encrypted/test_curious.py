"""What a curious party learns: an opener that does as it should and thinks about what it was given; the coordinator.

An opener has the key and one half of every upload. If that were enough to tell two inputs with the same sum apart, no
check would help.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secure_fl.protect.contract import Message
from secure_fl.protect.encrypted.sides import Side
from secure_fl.protect.encrypted.terms import DEGREE, Terms
from secure_fl.protect.primitives.envelopes import TAG_BYTES
from secure_fl.protect.primitives.packing import WORD, Words
from secure_fl.protect.uploads.party import Party
from tests.protect.cohorts import InMemory, contribution, layout
from tests.protect.encrypted.oracle import decrypt, key_coefficients, words_of
from tests.protect.encrypted.table import KINDS, NAMES, Table, circle_round, now

VALUES = 4000
Bits = npt.NDArray[np.bool_]


def same_sum(plus: str, minus: str) -> tuple[Table, Bits]:
    """4000 coin tosses: by each of them one of two sites adds 1000 and the other takes it away. The sum is always 0."""
    about = circle_round(blocks=layout(body=VALUES))
    tosses = np.random.default_rng(11).integers(0, 2, VALUES).astype(bool)
    signs = np.where(tosses, 1000, -1000)
    given = dict.fromkeys(NAMES, np.zeros(VALUES, np.int64)) | {plus: signs, minus: -signs}
    table = Table(about, {name: contribution(64, body=values.tolist()) for name, values in given.items()})
    return table.until("open"), tosses


def guessed(table: Table, body: Words, mask: Words) -> Bits:
    """With the key: what the values behind a pair of halves look like, and so which way each coin fell."""
    half: Any = table.nodes["n0"]
    terms = Terms.of(table.about)
    message = decrypt(half.party.cipher, body, mask, terms)
    # The first lane has them all.
    values = (message[:VALUES] % np.uint64(2**terms.lane_bits)).astype(np.int64) - terms.packing.limit
    # As far from zero as half of a lane goes either way.
    turned = (values + 2 ** (terms.lane_bits - 1)) % 2**terms.lane_bits - 2 ** (terms.lane_bits - 1)
    return np.asarray(turned > 0)


@pytest.mark.parametrize("side", list(Side))
def test_an_opener_cannot_tell_two_inputs_with_the_same_sum_apart(side: Side) -> None:
    """It has the key, one half of everybody's, the sum of the other half and what it opened, and half of its luck."""
    table, tosses = same_sum("n1", "n2")
    terms, me = Terms.of(table.about), table.on(side)[0]
    size = len(table.told["check", me].bulk) // len(NAMES)
    given = {name: bytes(table.told["check", me].bulk[i * size : (i + 1) * size]) for i, name in enumerate(NAMES)}
    assert given == {name: table.part(side, name) for name in NAMES}
    rest = words_of(bytes(table.asked[me].bulk), terms)  # the sum of the other half, as it is sent to it
    totals = table.tell(me, table.asked[me])
    if side is Side.BODIES:
        assert set(np.frombuffer(totals.bulk, "<i4")[:VALUES].tolist()) == {0}

    def polynomial(name: str, of: Side) -> Words:
        part = table.part(of, name)
        raw = part if of is Side.BODIES else table.scheme.add_seeds([(1, part)], values=VALUES + 1)
        return words_of(raw, terms)

    def tried(mine: Words, theirs: Words) -> float:
        """How many of 4000 guesses are right: 0.5 on average with a deviation of 0.008 if there is nothing to see."""
        body, mask = (mine, theirs) if side is Side.BODIES else (theirs, mine)
        return float((guessed(table, body, mask) == tosses).mean())

    modulus = np.uint64(terms.modulus)
    sixth = np.array([int(word) * pow(6, -1, terms.modulus) % terms.modulus for word in rest], WORD)
    mine, peer = polynomial("n1", side), polynomial("n2", side)
    # Whatever it pairs the half that it has with: nothing, the sum of the others, its even part; and differences.
    for theirs in (np.zeros(DEGREE, WORD), rest, sixth):
        for half in (mine, (mine + modulus - peer) % modulus, (mine + peer) % modulus):
            assert abs(tried(half, theirs) - 0.5) < 6 * 0.008
    # The test can tell: with the other half of one upload, every guess is right.
    assert tried(mine, polynomial("n1", side.other)) == 1.0


# --- the coordinator and the key ----------------------------------------------------------------------------------

BLOCK = 32  # Wherever 64 bytes of a secret begin, one whole block of 32, counted from its start, is among them.


def reachable(*roots: object) -> Iterator[object]:
    """All that objects hold on to, as the garbage collector sees it; not the modules and classes of the program."""
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, type | types.ModuleType | types.FunctionType | types.CodeType):
            continue
        seen.add(id(thing))
        yield thing
        todo += gc.get_referents(thing)
        if isinstance(thing, memoryview):
            todo.append(thing.obj)
        if isinstance(thing, InMemory):
            todo.append(thing.content)
        if hasattr(thing, "SerializeToString"):
            todo.append(thing.SerializeToString())


def raw_bytes(things: Iterator[object]) -> bytes:
    """Everything in them that is bytes, one after the other."""
    kinds = (bytes, bytearray, memoryview, np.ndarray)
    return b"".join(
        one.tobytes() if isinstance(one, np.ndarray) else bytes(one) for one in things if isinstance(one, kinds)
    )


def traces(table: Table, haystack: bytes) -> int:
    """How many pieces of the attempt's key, in any form that it takes, there are."""
    party: Any = table.nodes["n0"].party
    coefficients = key_coefficients(party.cipher, party.terms)
    with party.scheme.seal.files() as files:
        secret = files.secret_key(party.known_key.words())
        serialised = files._saved(secret)
    forms = [
        party.known_key.raw,
        party.known_key.words().tobytes(),
        serialised,
        coefficients.astype(np.int8).tobytes(),
        coefficients.tobytes(),
        (coefficients % party.terms.modulus).astype(WORD).tobytes(),
    ]
    blocks = {form[at : at + BLOCK] for form in forms for at in range(0, len(form) - BLOCK + 1, BLOCK)}
    # What is in every key says nothing of this one: what stands before its words in SEAL's file, and runs of zeros.
    known = {block for block in blocks if len(set(block)) < 3} | {
        serialised[at : at + BLOCK] for at in range(0, 128, BLOCK)
    }
    return sum(block in haystack for block in blocks - known)


def everything(table: Table) -> bytes:
    """All that the coordinator was ever given, sent, or holds."""
    heard = b"".join(part for said in (table.told, table.answers) for m in said.values() for part in _parts(m))
    return heard + raw_bytes(reachable(table.machine, now(table)))


def _parts(message: Message) -> tuple[bytes, ...]:
    return message.body, bytes(message.bulk), message.digest


def played(kind: str) -> Table:
    """A whole round."""
    table = Table(KINDS[kind]())
    while table.machine.phase:
        table.play()
    return table


@pytest.mark.parametrize("kind", KINDS)
def test_nowhere_at_the_coordinator_is_anything_of_the_key(kind: str) -> None:
    table = played(kind)
    haystack = everything(table)
    # The search does get to the uploads that the coordinator keeps, and to what it says of them.
    assert bytes(table.answers["upload", "n3"].bulk) in raw_bytes(reachable(table.machine))
    assert table.nodes["n0"].party.known_key.id in haystack
    assert traces(table, haystack) == 0
    # It would find a piece of 64 bytes, wherever that begins.
    raw = table.nodes["n0"].party.known_key.raw
    for start in (0, 1, 777, len(raw) - 64):
        assert traces(table, b"x" + raw[start : start + 64])


@pytest.mark.parametrize("kind", KINDS)
def test_with_envelopes_that_are_plain_copies_the_key_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Party, "seal", lambda _self, plain, _holder, *, purpose: plain + purpose[:0] + bytes(TAG_BYTES))
    monkeypatch.setattr(Party, "unseal", lambda _self, sealed, _from, *, purpose: sealed[:-TAG_BYTES] + purpose[:0])
    table = played(kind)
    assert traces(table, everything(table)) > 500
