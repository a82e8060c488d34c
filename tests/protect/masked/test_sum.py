"""A circle opens what `none` opens, bit for bit, if everybody is there, and nothing otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.machine import RoundMachine
from secure_fl.errors import CohortTooSmallError, ProtectionError
from secure_fl.protect.contract import RoundContext
from secure_fl.protect.masked.protection import Masked
from secure_fl.protect.none import UnsafeNone
from secure_fl.protect.sealed.protection import Sealed
from tests.protect.cohorts import (
    Contributions,
    InMemory,
    cases,
    context,
    contribution,
    halves,
    layout,
    plain,
    play,
    whole_sums,
)
from tests.protect.laws import law

MASKED = Masked()
PHASES = ("advertise", "commit", "upload")


@law
@given(cases())
def test_a_whole_circle_opens_what_everybody_holds(case: tuple[RoundContext, Contributions]) -> None:
    about, everybody = replace(case[0], whole=True), case[1]
    expected = whole_sums(everybody)
    for protection in (MASKED, UnsafeNone()):
        opened, cohort = plain(play(protection, about, everybody))
        assert cohort == tuple(sorted(everybody))
        assert opened == expected


@law
@given(cases(), st.data())
def test_without_somebody_nothing_opens(case: tuple[RoundContext, Contributions], data: st.DataObject) -> None:
    about, everybody = replace(case[0], whole=True), case[1]
    gone = data.draw(st.dictionaries(st.sampled_from(sorted(everybody)), st.sampled_from(PHASES), min_size=1))
    with pytest.raises(CohortTooSmallError):
        play(MASKED, about, everybody, gone)


def test_a_sealed_circle_opens_the_same() -> None:
    names = [f"n{index}" for index in range(5)]
    values = {name: contribution(64, {}, body=[index, 2, 3], head=[4, 5]) for index, name in enumerate(names)}
    sealed = Sealed()
    opened, _ = plain(play(sealed, context(*names, bits=16, whole=True), values))
    assert {block: (weight, count) for block, (_, weight, count) in opened.items()} == {
        "body": (320, 5),
        "head": (320, 5),
    }
    noise = sealed.noise(context(*names, bits=16, whole=True))
    assert np.abs(np.array(opened["body"][0]) - [10, 10, 15]).max() <= noise
    for phase in ("advertise", "upload"):
        with pytest.raises(CohortTooSmallError):
            play(sealed, context(*names, bits=16, whole=True), values, {"n2": phase})
    # Once everybody has uploaded, enough holders are enough: the sum is the whole circle's whoever helps.
    assert plain(play(sealed, context(*names, bits=16, whole=True), values, {"n2": "open"}))[1] == tuple(names)


def test_only_a_circle_is_masked_without_recovery() -> None:
    values = {name: contribution(64, {}, body=[1, 2, 3], head=[4, 5]) for name in ("n0", "n1", "n2")}
    with pytest.raises(ProtectionError, match="circle"):
        play(MASKED, context("n0", "n1", "n2"), values)


def test_a_block_that_one_member_lacks_is_not_even_uploaded() -> None:
    names = [f"n{index}" for index in range(4)]
    values = {
        name: contribution(64, {}, body=[1, 2, 3], **({"head": [4, 5]} if name != "n3" else {})) for name in names
    }
    about = context(*names, whole=True)
    opened, _ = plain(play(MASKED, about, values))
    assert opened == {"body": ([4, 8, 12], 256, 4)}
    machine, nodes = RoundMachine(MASKED, about), halves(MASKED, about, values)
    machine.begin()
    sizes = set()
    for phase in PHASES:
        for name in names:
            answer = nodes[name].answer(phase, machine.asked[name])
            machine.accept(name, phase, replace(answer, bulk=b""), InMemory(answer.bulk))
            sizes.add(len(answer.bulk))
        machine.close()
    assert sizes == {0, 16}  # one word for the three values of `body`, one for the weight


@pytest.mark.parametrize("protection", [MASKED, UnsafeNone(), Sealed()])
def test_where_everybody_shares_everything_nobody_leaves_a_block_out(protection: Masked) -> None:
    """Or one site could keep a block of the model as it is for ever."""
    names = [f"n{index}" for index in range(4)]
    values = {
        name: contribution(64, {}, body=[1, 2, 3], **({"head": [4, 5]} if name != "n3" else {})) for name in names
    }
    with pytest.raises(ProtectionError, match="leaves out"):
        play(protection, context(*names, whole=True, partial=False), values)
    with pytest.raises(ProtectionError, match="leaves out"):
        play(protection if protection is not MASKED else UnsafeNone(), context(*names, partial=False), values)


def test_the_largest_values_of_the_largest_circle_fit() -> None:
    names = [f"n{index:03d}" for index in range(40)]
    values = {name: contribution(64, {}, body=[32767, -32767] * 3 + [0]) for name in names}
    opened, _ = plain(play(MASKED, context(*names, blocks=layout(body=7), whole=True), values))
    assert opened["body"][0] == [40 * 32767, -40 * 32767] * 3 + [0]
