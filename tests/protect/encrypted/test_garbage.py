"""Damaged and invented messages of `encrypted`: each half takes them or answers with a typed error, nothing else.

And nothing opens that should not: whoever answers a damaged message answers as it would have answered the honest one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.errors import SecureFLError
from secure_fl.messages import parse
from secure_fl.protect.contract import Message, RoundContext
from secure_fl.protect.encrypted.phases import COMBINE, SUM
from secure_fl.protect.release.sketch import SIZE
from secure_fl.rpc.protect_encrypted_pb2 import EncryptedOpened
from tests.protect.encrypted.table import EVEN, NAMES, Table, circle_round, combine_round, sum_round, trusting, values

ROUNDS: dict[str, Callable[[], RoundContext]] = {
    "sum": sum_round,
    "combine": lambda: combine_round(compares=True),
    "trusting sum": lambda: trusting(circle_round()),
    "trusting combine": lambda: trusting(combine_round()),
}
NOBODY_ASKED = {("trusting sum", "check"), ("trusting combine", "score")}
CASES = [(name, phase) for name in ROUNDS for phase in (SUM if name.endswith("sum") else COMBINE)]
CASES = [case for case in CASES if case not in NOBODY_ASKED]
garbage = settings(deadline=None, max_examples=3)

Damage = tuple[bool, int, int, bytes]  # whether to the body, where, how, and with what


def fresh(name: str) -> Table:
    """A round that nobody has spoken in yet."""
    about = ROUNDS[name]()
    mine = values(about)
    if about.compares:
        mine = {name: replace(one, sketch=np.zeros(SIZE, np.int32)) for name, one in mine.items()}
    return Table(about, mine)


def _changed(raw: bytes, at: int, kind: int, rest: bytes) -> bytes:
    """A few bytes changed, cut out, put in or repeated, or something else altogether."""
    at %= len(raw) + 1
    match kind:
        case 0:
            return raw[:at] + bytes([raw[at] ^ (1 << len(rest) % 8)]) + raw[at + 1 :] if at < len(raw) else raw + rest
        case 1:
            return raw[:at] + raw[at + 1 + len(rest) :]
        case 2:
            return raw[:at] + rest + raw[at:]
        case 3:
            return raw[:at] + raw[at : at + 200] + raw[at:]
        case 4:
            return raw[:at]
        case _:
            return rest


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """Anywhere."""
    return draw(st.booleans()), draw(st.integers(0, 2**20)), draw(st.integers(0, 5)), draw(st.binary(max_size=40))


def damaged(message: Message, damage: Damage) -> Message:
    in_body, at, kind, rest = damage
    if in_body or not message.bulk:
        return Message(body=_changed(message.body, at, kind, rest), bulk=message.bulk)
    return Message(body=message.body, bulk=_changed(bytes(message.bulk), at, kind, rest))


def total(table: Table) -> bytes:
    """The digest of the right totals, from the values themselves."""
    sums = [np.sum([table.values[name].blocks[block] for name in NAMES], axis=0) for block in ("body", "head")]
    return hashlib.sha256(np.append(np.concatenate(sums), 6 * 64).astype("<i4").tobytes()).digest()


def mixture(table: Table) -> dict[str, list[int]]:
    """The right combination: everybody weighs all."""
    return {
        block: np.sum([EVEN[name] * table.values[name].blocks[block] for name in NAMES], axis=0).tolist()
        for block in ("body", "head")
    }


@pytest.mark.parametrize(("name", "phase"), CASES)
@garbage
@given(damage=st.lists(damages(), min_size=6, max_size=6))
def test_a_node_answers_garbage_with_a_typed_error_or_as_always(name: str, phase: str, damage: list[Damage]) -> None:
    table = fresh(name).until(phase)
    for node, change in zip(sorted(table.asked), damage, strict=False):
        message = damaged(table.asked[node], change)
        try:
            answer = table.tell(node, message)
        except SecureFLError:
            continue
        if phase == "open" and name != "trusting sum":
            # Changed where nothing is read, or in a vouch that is not needed.
            assert parse(EncryptedOpened, answer.body).totals == total(table)
        if phase == "deliver":
            assert answer == Message()
            opened = {block: sums.total.tolist() for block, sums in table.nodes[node].combination().items()}
            if name != "trusting combine" and opened:
                assert opened == mixture(table)


@pytest.mark.parametrize(("name", "phase"), CASES)
@garbage
@given(damage=st.lists(damages(), min_size=12, max_size=12))
def test_the_coordinator_answers_garbage_with_a_typed_error(name: str, phase: str, damage: list[Damage]) -> None:
    table = fresh(name).until(phase)
    nodes = sorted(table.asked)
    answers = {node: table.tell(node, table.asked[node]) for node in nodes}
    for place, change in enumerate(damage):
        node = nodes[place % len(nodes)]
        with suppress(SecureFLError):
            table.take(node, damaged(answers[node], change))
    with suppress(SecureFLError):
        table.play(forged=answers)
