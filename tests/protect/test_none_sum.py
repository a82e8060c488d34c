"""Sums under `none`: exactly the integer oracle, and nothing below a minimum cohort."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.aggregation import RequestKind
from secure_fl.errors import CohortTooSmallError, ProtectionError, SecureFLError
from secure_fl.protect.combining import CombinationsSent, CombiningNodeHalf, coordinator_half
from secure_fl.protect.contract import Ask, CoordinatorHalf, Message, Opened, OpenedSums, RoundContext
from secure_fl.protect.none import UnsafeNone
from secure_fl.rpc.protect_none_pb2 import PlainUpload
from tests.protect.cohorts import (
    Contributions,
    InMemory,
    cases,
    context,
    contribution,
    guarded_sums,
    halves,
    host,
    layout,
    plain,
    play,
    upload,
)
from tests.protect.laws import law

NONE = UnsafeNone()

# --- sums -------------------------------------------------------------------------------------------------------


@law
@given(cases(), st.data())
def test_sums_equal_the_integer_oracle(case: tuple[RoundContext, Contributions], data: st.DataObject) -> None:
    about, contributions = case
    absent = data.draw(st.sets(st.sampled_from(about.invited)))
    present = {node: mine for node, mine in contributions.items() if node not in absent}
    gone = dict.fromkeys(absent, "upload")
    if len(present) < about.min_cohort:
        with pytest.raises(CohortTooSmallError) as caught:
            play(NONE, about, contributions, gone)
        assert (caught.value.have, caught.value.need) == (len(present), about.min_cohort)
        return
    assert plain(play(NONE, about, contributions, gone)) == (guarded_sums(about, present), tuple(sorted(present)))


def test_a_block_below_its_minimum_is_never_opened() -> None:
    held = {
        "n0": contribution(body=[1, 2, 3], head=[1, 1]),
        "n1": contribution(body=[1, 2, 3], head=[1, 1]),
        "n2": contribution(body=[1, 2, 3]),
    }
    sums, cohort = plain(play(NONE, context("n0", "n1", "n2"), held))
    assert sums == {"body": ([3, 6, 9], 192, 3)}
    assert cohort == ("n0", "n1", "n2")


def test_a_sum_larger_than_a_node_may_send_fits() -> None:
    limit = 2**23 - 1
    nodes = [f"n{i}" for i in range(256)]
    about = context(*nodes, blocks=layout(a=1), bits=24)
    sums, _ = plain(play(NONE, about, {node: contribution(a=[-limit]) for node in nodes}))
    assert sums == {"a": ([-256 * limit], 256 * 64, 256)}


def test_long_blocks_are_added_piece_by_piece() -> None:
    size = (1 << 18) + 5  # one value more than a piece, and some
    values = np.arange(size) % 1000 - 500
    about = context("n0", "n1", "n2", blocks=layout(short=2, long=size))
    mine = contribution(short=[7, 8], long=values.tolist())
    sums, _ = plain(play(NONE, about, dict.fromkeys(about.invited, mine)))
    assert sums["short"] == ([21, 24], 192, 3)
    assert sums["long"] == ((3 * values).tolist(), 192, 3)


# --- what is refused changes nothing ----------------------------------------------------------------------------


def _header(*blocks: str, weight: int = 64) -> bytes:
    return PlainUpload(blocks=blocks, weight=weight).SerializeToString()


def _words(*values: int, bits: int = 16) -> bytes:
    return np.array(values, "<i2" if bits <= 16 else "<i4").tobytes()


MALFORMED = {
    "garbage": upload(b"\xff\xff", _words(1, 2, 3)),
    "an unknown block": upload(_header("tail"), _words(1, 2, 3)),
    "a repeated block": upload(_header("head", "head"), _words(1, 2)),
    "blocks out of order": upload(_header("head", "body"), _words(1, 2, 3, 4, 5)),
    "bulk too short": upload(_header("body"), _words(1, 2)),
    "bulk too long": upload(_header("body"), _words(1, 2, 3, 4)),
    "an odd number of bytes": upload(_header("body"), _words(1, 2, 3) + b"\x00"),
    "no bulk": upload(_header("body")),
    "bulk without blocks": upload(_header(), _words(1)),
    "no weight": upload(_header("body", weight=0), _words(1, 2, 3)),
    "a weight that lets another dominate": upload(_header("body", weight=31), _words(1, 2, 3)),
    "a weight above one": upload(_header("body", weight=65), _words(1, 2, 3)),
    "a huge weight": upload(_header("body", weight=2**32 - 1), _words(1, 2, 3)),
    "a value below the range": upload(_header("body"), _words(1, 2, -(2**15))),
    "a good block before a bad one": upload(_header("body", "head"), _words(1, 2, 3, 4, -(2**15))),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("moment", [0, 1, 3])
def test_a_malformed_answer_is_refused_and_leaves_no_trace(name: str, moment: int) -> None:
    about = context("n0", "n1", "n2", "n3")
    mine = contribution(body=[1, 2, 3], head=[-1, 5])
    nodes = halves(NONE, about, dict.fromkeys(["n0", "n1", "n2"], mine))
    coordinator = NONE.coordinator(about)
    coordinator.begin()
    for position, node in enumerate([*nodes, "end"]):
        if position == moment:
            with pytest.raises(SecureFLError):
                coordinator.accept("n3", *MALFORMED[name])
        if node in nodes:
            answer = nodes[node].answer("upload", Message())
            coordinator.accept(node, answer, InMemory(answer.bulk))
    assert plain(coordinator.close()) == ({"body": ([3, 6, 9], 192, 3), "head": ([-3, 15], 192, 3)}, ("n0", "n1", "n2"))


def test_the_sender_of_a_malformed_answer_may_mend_it() -> None:
    about = context("n0", "n1", "n2")
    coordinator = NONE.coordinator(about)
    for malformed in MALFORMED.values():
        with pytest.raises(SecureFLError):
            coordinator.accept("n0", *malformed)
    for node in about.invited:
        coordinator.accept(node, *upload(_header("body"), _words(1, 2, 3)))
    assert plain(coordinator.close())[0] == {"body": ([3, 6, 9], 192, 3)}


@pytest.mark.parametrize("name", [name for name in MALFORMED if name != "garbage"])
def test_a_malformed_answer_is_a_protection_error(name: str) -> None:
    with pytest.raises(ProtectionError):
        NONE.coordinator(context("n0", "n1", "n2")).accept("n0", *MALFORMED[name])


@law
@given(st.integers(4, 24), st.data())
def test_every_value_outside_the_range_is_refused_and_every_one_inside_accepted(bits: int, data: st.DataObject) -> None:
    limit = 2 ** (bits - 1) - 1
    widest = 15 if bits <= 16 else 31  # what the wire's integers can say
    edges = st.sampled_from([-(2**widest), 2**widest - 1, -limit - 1, -limit, limit])
    value = data.draw(edges | st.integers(-(2**widest), 2**widest - 1))
    position = data.draw(st.integers(0, 2))
    values = [0, 0, 0]
    values[position] = value
    coordinator = NONE.coordinator(context("n0", "n1", "n2", bits=bits))
    answer = upload(_header("body"), _words(*values, bits=bits))
    if abs(value) <= limit:
        coordinator.accept("n0", *answer)
    else:
        with pytest.raises(ProtectionError, match="fixed-point range"):
            coordinator.accept("n0", *answer)


def test_a_second_answer_is_refused_and_counted_once() -> None:
    about = context("n0", "n1", "n2")
    coordinator = NONE.coordinator(about)
    for node in about.invited:
        coordinator.accept(node, *upload(_header("body"), _words(1, 1, 1)))
        for again in (_words(1, 1, 1), _words(2, 2, 2)):
            with pytest.raises(ProtectionError, match="not expected"):
                coordinator.accept(node, *upload(_header("body"), again))
    assert plain(coordinator.close())[0] == {"body": ([3, 3, 3], 192, 3)}


def test_a_node_that_was_not_invited_is_refused() -> None:
    with pytest.raises(ProtectionError, match="not expected"):
        NONE.coordinator(context("n0", "n1", "n2")).accept("n9", *upload(_header("body"), _words(1, 2, 3)))


@pytest.mark.parametrize("left", [0, 2, 3, 5])
def test_bulk_that_was_cut_off_on_disk_is_refused(left: int) -> None:
    class Cut(InMemory):
        @property
        def size(self) -> int:
            return 6

    with pytest.raises(ProtectionError, match="breaks off"):
        NONE.coordinator(context("n0", "n1", "n2")).accept("n0", Message(body=_header("body")), Cut(bytes(left)))


# --- the node half ----------------------------------------------------------------------------------------------


def test_a_node_sends_only_the_blocks_of_the_round() -> None:
    mine = contribution(weight=7, private=[9, 9], body=[1, 2, 3])
    half = NONE.node(context("n0", "n1", "n2"), mine, host("n0"))
    answer = half.answer("upload", Message())
    assert PlainUpload.FromString(answer.body) == PlainUpload(blocks=["body"], weight=7)
    assert answer.bulk == _words(1, 2, 3)
    assert not isinstance(half, CombiningNodeHalf)


@pytest.mark.parametrize("phase", ["open", "advertise", ""])
def test_a_node_answers_no_phase_that_a_sum_does_not_have(phase: str) -> None:
    half = NONE.node(context("n0", "n1", "n2"), contribution(body=[1, 2, 3]), host("n0"))
    with pytest.raises(ProtectionError, match="no phase"):
        half.answer(phase, Message())


# --- the shape of the contract ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(RequestKind))
def test_no_method_of_the_coordinator_half_returns_one_nodes_contribution(kind: RequestKind) -> None:
    half = coordinator_half(NONE, context("n0", "n1", "n2", kind=kind))
    public = {name for name, _ in inspect.getmembers(half) if not name.startswith("_")}
    promised = {name for name in vars(CoordinatorHalf) if not name.startswith("_")}
    assert public == {"begin", "accept", "close", "missing"} == promised
    assert get_type_hints(CoordinatorHalf.begin)["return"] is Ask
    assert get_type_hints(CoordinatorHalf.accept)["return"] is type(None)
    assert get_type_hints(CoordinatorHalf.close)["return"] == Ask | Opened
    assert {field.name for field in fields(OpenedSums)} == {"blocks", "cohort", "blamed", "bases"}
    assert {field.name for field in fields(CombinationsSent)} == {"recipients", "cohort", "blamed", "bases"}


def test_none_is_named_unsafe() -> None:
    assert NONE.coordinator_sees_updates
    assert type(NONE).__name__.startswith("Unsafe")
    assert all(NONE.explain(kind)[0].startswith("UNSAFE") for kind in RequestKind)
