"""The contract as its documentation shows it: the example there is a protection that works."""

from __future__ import annotations

import doctest
from dataclasses import replace
from typing import Any

import pytest

from secure_fl.aggregation import RequestKind
from secure_fl.errors import CohortTooSmallError, ProtectionError
from secure_fl.protect import contract
from secure_fl.protect.combining import coordinator_half, node_half
from tests.protect.cohorts import context, contribution, exact_sums, host, plain, play, upload

NODES = ("n0", "n1", "n2")


def example() -> Any:
    """The protection in the module's documentation."""
    names = dict(vars(contract))
    test = doctest.DocTestParser().get_doctest(contract.__doc__ or "", names, "contract", None, None)
    result = doctest.DocTestRunner().run(test, clear_globs=False)
    assert result.attempted > 4
    assert result.failed == 0
    return test.globs["Bare"]()


def test_the_example_plays_a_round() -> None:
    bare = example()
    about = context(*NODES, protection=bare)
    mine = {name: contribution(64, {}, body=[place, 2, -3], head=[4, place]) for place, name in enumerate(NODES)}
    assert plain(play(bare, about, mine)) == (exact_sums(about, mine), NODES)
    with pytest.raises(CohortTooSmallError):
        play(bare, about, mine, gone={"n1": "upload"})
    with pytest.raises(ProtectionError, match="too much or too little"):
        bare.coordinator(about).accept("n0", *upload(b"", b"123"))


def test_what_an_author_does_not_say_has_a_safe_answer() -> None:
    bare = example()
    about = context(*NODES, protection=bare)
    assert (bare.bits, bare.canonical_settings, bare.noise(about)) == (16, b"{}", 0)
    assert bare.quorum(5, colluders=1, min_cohort=3) == 3
    assert bare.serves(RequestKind.SUM)
    assert not bare.serves(RequestKind.COMBINE)
    assert bare.phases(RequestKind.COMBINE) == ()


def test_a_protection_of_sums_is_asked_for_no_combination() -> None:
    bare = example()
    about = context(*NODES, kind=RequestKind.COMBINE, protection=bare)
    with pytest.raises(ProtectionError, match="opens no combinations"):
        coordinator_half(bare, about)
    with pytest.raises(ProtectionError, match="opens no combinations"):
        node_half(bare, about, contribution(64, {}, body=[1, 2, 3]), host("n0"))
    plainly = contract.Contribution(blocks={}, weight=64)
    with pytest.raises(ProtectionError, match="weighs its peers"):
        node_half(bare, about, plainly, host("n0"))


@pytest.mark.parametrize(
    "change",
    [
        {"protection": "other"},
        {"payload_version": 3},
        {"settings": b'{"recompute":true}'},
        {"compares": True},
        {"kind": RequestKind.COMBINE},
        {"bits": 17},
        {"colluders": 0},
        {"min_cohort": 4},
        {"round": 2},
        {"attempt": 2},
        {"study_id": "0" * 64},
        {"base_model": bytes([1]) * 32},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_round_is_bound_to_everything_that_was_agreed_on(change: dict[str, Any]) -> None:
    about = context(*NODES)
    assert replace(about, **change).binding != about.binding
