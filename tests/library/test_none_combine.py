"""Combinations under `none`: each recipient gets its own row's combination, and nobody a small one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.machine import RoundMachine
from secure_fl.errors import CohortTooSmallError, LateMessageError, ProtectionError, SecureFLError
from secure_fl.protect.base import Ask, CombinationsSent, Message, NodeHalf, RequestKind, RoundContext
from secure_fl.protect.none import UnsafeNone
from secure_fl.protect.weights import WEIGHT_UNITS
from secure_fl.rpc.protect_none_pb2 import PlainCombination, PlainUpload
from tests.library.cohorts import (
    Contributions,
    InMemory,
    PlainSums,
    cases,
    context,
    contribution,
    halves,
    upload,
)
from tests.library.laws import law
from tests.library.members import member

NONE = UnsafeNone()
COMBINE = RequestKind.COMBINE
NODES = ("n0", "n1", "n2", "n3")


def exact_combination(about: RoundContext, present: Contributions, recipient: str) -> PlainSums:
    """Σ_j w_ij·x_j in Python's integers, over the blocks that everybody in the row holds."""
    row = {peer: w for peer, w in present[recipient].row.items() if w > 0 and peer in present}
    if len(row) < about.min_cohort:
        return {}
    opened: PlainSums = {}
    for name in about.layout.names:
        if all(name in present[peer].blocks for peer in row):
            columns = zip(
                *([w * x for x in present[peer].blocks[name].tolist()] for peer, w in row.items()), strict=True
            )
            opened[name] = ([sum(column) for column in columns], WEIGHT_UNITS * sum(row.values()), len(row))
    return opened


def combination(half: NodeHalf) -> PlainSums:
    return {name: (b.total.tolist(), b.weight, b.contributors) for name, b in half.combination().items()}


@law
@given(cases(COMBINE), st.data())
def test_combinations_equal_the_integer_oracle(case: tuple[RoundContext, Contributions], data: st.DataObject) -> None:
    about, contributions = case
    absent = data.draw(st.sets(st.sampled_from(about.invited)))
    present = {node: mine for node, mine in contributions.items() if node not in absent}
    nodes = halves(NONE, about, present)
    machine = RoundMachine(NONE, about)
    machine.begin()
    for node, half in nodes.items():
        answer = half.answer("upload", machine.asked[node])
        machine.accept(node, "upload", answer, InMemory(answer.bulk))
    if len(present) < about.min_cohort:
        with pytest.raises(CohortTooSmallError):
            machine.close()
        return
    machine.close()
    assert (machine.phase, set(machine.asked)) == ("open", set(present))
    for node, half in nodes.items():
        machine.accept(node, "open", half.answer("open", machine.asked[node]), InMemory(b""))
        assert combination(half) == exact_combination(about, present, node)
    everybody = tuple(sorted(present))
    assert machine.close() == CombinationsSent(recipients=everybody, cohort=everybody)


def opened(rows: dict[str, dict[str, int]], *, min_cohort: int = 4) -> dict[str, Message]:
    """What the coordinator sends each recipient, when every node holds the same."""
    about = context(*NODES, kind=COMBINE, min_cohort=min_cohort)
    coordinator = NONE.coordinator(about)
    for node in NODES:
        mine = contribution(64, rows.get(node, {}), body=[1, 2, 3], head=[4, 5])
        answer = NONE.node(about, member(node), mine, None).answer("upload", Message())  # type: ignore[arg-type]
        coordinator.accept(node, answer, InMemory(answer.bulk))
    ask = coordinator.close()
    assert isinstance(ask, Ask)
    return dict(ask.messages)


def test_a_recipient_with_too_small_a_row_gets_nothing() -> None:
    whole = dict.fromkeys(NODES, 1)
    messages = opened({"n0": whole, "n1": {**whole, "n0": 0}, "n2": {"n2": 64}})
    served = PlainCombination(blocks=["body", "head"], weight=4 * WEIGHT_UNITS, contributors=4)
    assert PlainCombination.FromString(messages["n0"].body) == served
    for recipient in ("n1", "n2", "n3"):  # a zero in the row, a unit row, no row
        assert messages[recipient].bulk == b""
        assert PlainCombination.FromString(messages[recipient].body) == PlainCombination()


def test_peers_that_did_not_upload_do_not_count_towards_a_row() -> None:
    about = context(*NODES, "n4", kind=COMBINE, min_cohort=4)
    coordinator = NONE.coordinator(about)
    row = {"n0": 1, "n1": 1, "n2": 1, "n4": 1}
    for node in NODES:
        header = PlainUpload(blocks=["body"], weight=64, row=row)
        coordinator.accept(node, *upload(header.SerializeToString(), np.zeros(3, "<i2").tobytes()))
    ask = coordinator.close()
    assert isinstance(ask, Ask)
    assert all(message.bulk == b"" for message in ask.messages.values())


# --- what is refused changes nothing ----------------------------------------------------------------------------


def _row(**row: int) -> tuple[Message, InMemory]:
    header = PlainUpload(blocks=["body"], weight=64, row=row)
    return upload(header.SerializeToString(), np.array([1, 2, 3], "<i2").tobytes())


@pytest.mark.parametrize(
    "answer",
    [
        _row(stranger=1),
        _row(n0=1, stranger=0),
        _row(n0=1025),
        _row(n0=512, n1=513),
        _row(n0=2**32 - 1, n1=2**32 - 1),
        upload(PlainUpload(blocks=["body"], weight=64).SerializeToString(), b"\x00\x00"),
        upload(PlainUpload(blocks=["tail"], weight=64).SerializeToString(), b""),
    ],
)
def test_a_malformed_answer_is_refused_and_leaves_no_trace(answer: tuple[Message, InMemory]) -> None:
    coordinator = NONE.coordinator(context(*NODES, kind=COMBINE, min_cohort=4))
    with pytest.raises(ProtectionError):
        coordinator.accept("n0", *answer)
    for node in NODES:
        coordinator.accept(node, *_row(n0=1, n1=2, n2=3, n3=4))
        with pytest.raises(ProtectionError):
            coordinator.accept(node, *answer)
    ask = coordinator.close()
    assert isinstance(ask, Ask)
    totals = {node: np.frombuffer(message.bulk, "<i8").tolist() for node, message in ask.messages.items()}
    assert totals == {node: [10, 20, 30] for node in NODES}


def test_the_heaviest_row_is_accepted() -> None:
    NONE.coordinator(context(*NODES, kind=COMBINE)).accept("n0", *_row(n0=512, n1=512))


def test_only_recipients_acknowledge_and_only_once() -> None:
    about = context(*NODES, "n4", kind=COMBINE, min_cohort=4)
    coordinator = NONE.coordinator(about)
    for node in NODES:
        coordinator.accept(node, *_row(n0=1, n1=1, n2=1, n3=1))
    coordinator.close()
    coordinator.accept("n0", *upload(b""))
    for node in ("n0", "n4", "stranger"):
        with pytest.raises(ProtectionError):
            coordinator.accept(node, *upload(b""))
    assert coordinator.close() == CombinationsSent(recipients=("n0",), cohort=NODES)


def test_the_machine_takes_no_upload_once_combinations_are_out() -> None:
    about = context(*NODES, kind=COMBINE, min_cohort=4)
    machine = RoundMachine(NONE, about)
    machine.begin()
    for node in NODES:
        machine.accept(node, "upload", *_row(n0=1))
    machine.close()
    with pytest.raises(LateMessageError):
        machine.accept("n0", "upload", *_row(n0=1))


# --- the node half ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        Message(body=b"\xff\xff"),
        Message(body=PlainCombination(blocks=["tail"], weight=64).SerializeToString(), bulk=bytes(24)),
        Message(body=PlainCombination(blocks=["head", "body"], weight=64).SerializeToString(), bulk=bytes(40)),
        Message(body=PlainCombination(blocks=["body", "body"], weight=64).SerializeToString(), bulk=bytes(24)),
        Message(body=PlainCombination(blocks=["body"], weight=64).SerializeToString(), bulk=bytes(16)),
        Message(body=PlainCombination(blocks=["body"], weight=64).SerializeToString(), bulk=bytes(23)),
        Message(body=PlainCombination(blocks=["body"], weight=64).SerializeToString()),
    ],
)
def test_a_malformed_combination_is_refused_with_a_typed_error(message: Message) -> None:
    about = context(*NODES, kind=COMBINE)
    half = halves(NONE, about, {"n0": contribution(body=[1, 2, 3])})["n0"]
    with pytest.raises(SecureFLError):
        half.answer("open", message)
    assert half.combination() == {}


def test_the_phases_of_both_requests() -> None:
    assert NONE.phases(RequestKind.SUM) == ("upload",)
    assert NONE.phases(COMBINE) == ("upload", "open")
