"""`masked` opens what `none` opens, bit for bit, whoever drops out when."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from secure_fl.errors import CohortTooSmallError
from secure_fl.protect.cohort.signed import threshold
from secure_fl.protect.contract import RoundContext
from secure_fl.protect.recovery.protection import MaskedWithRecovery as Masked
from tests.protect.cohorts import (
    Contributions,
    cases,
    context,
    contribution,
    exact_sums,
    guarded_sums,
    layout,
    plain,
    play,
)
from tests.protect.laws import law

MASKED = Masked()
PHASES = ("advertise", "share", "upload", "consistency", "unmask")


@law
@given(cases(), st.data())
def test_the_sum_equals_the_oracle_whoever_drops_out_when(
    case: tuple[RoundContext, Contributions], data: st.DataObject
) -> None:
    about, everybody = case
    gone = data.draw(st.dictionaries(st.sampled_from(sorted(everybody)), st.sampled_from(PHASES)))
    advertised = [name for name in everybody if gone.get(name) != "advertise"]
    assume(len(advertised) >= about.min_cohort)
    need = max(threshold(len(advertised), about.colluders), about.min_cohort)
    stays = {
        phase: [n for n in advertised if gone.get(n, "never") not in PHASES[: i + 1]] for i, phase in enumerate(PHASES)
    }
    if len(stays["unmask"]) < need:
        with pytest.raises(CohortTooSmallError):
            play(MASKED, about, everybody, gone)
        return
    opened, cohort = plain(play(MASKED, about, everybody, gone))
    survivors = {name: everybody[name] for name in stays["upload"]}
    assert cohort == tuple(sorted(survivors))
    expected = guarded_sums(about, survivors)
    # A block that had too few holders before the uploads was never uploaded, however it would look afterwards.
    early = exact_sums(about, {name: everybody[name] for name in stays["share"]})
    assert opened == {block: value for block, value in expected.items() if block in early}


def test_two_drop_out_before_the_upload_and_one_after_it() -> None:
    names = [f"n{index}" for index in range(8)]
    values = {name: contribution(64, {}, body=[index, -index, 7], head=[1, 2]) for index, name in enumerate(names)}
    gone = {"n1": "upload", "n4": "upload", "n6": "consistency"}
    opened, cohort = plain(play(MASKED, context(*names), values, gone))
    alive = [0, 2, 3, 5, 6, 7]
    assert cohort == tuple(f"n{index}" for index in alive)
    assert opened["body"] == ([sum(alive), -sum(alive), 42], 64 * 6, 6)
    assert opened["head"] == ([6, 12], 64 * 6, 6)


def test_nested_cohorts_open_block_by_block() -> None:
    names = [f"n{index}" for index in range(9)]
    deep = set(names[:5])
    values = {
        name: contribution(64, {}, body=[1, 2, 3], **({"head": [4, 5]} if name in deep else {})) for name in names
    }
    opened, _ = plain(play(MASKED, context(*names), values))
    assert opened["body"] == ([9, 18, 27], 9 * 64, 9)
    assert opened["head"] == ([20, 25], 5 * 64, 5)


def test_a_block_that_would_expose_one_site_by_difference_stays_closed() -> None:
    names = [f"n{index}" for index in range(6)]
    values = {
        name: contribution(64, {}, body=[1, 2, 3], **({"head": [4, 5]} if name != "n5" else {})) for name in names
    }
    opened, _ = plain(play(MASKED, context(*names), values))
    assert set(opened) == {"body"}


def test_a_block_of_too_few_is_never_even_uploaded() -> None:
    names = ["n0", "n1", "n2", "n3"]
    values = {name: contribution(64, {}, body=[1, 2, 3], **({"head": [4, 5]} if name < "n2" else {})) for name in names}
    opened, _ = plain(play(MASKED, context(*names), values))
    assert set(opened) == {"body"}


@pytest.mark.parametrize(
    ("nodes", "colluders", "expected"), [(3, 1, 3), (4, 1, 3), (10, 1, 6), (10, 3, 7), (100, 1, 51)]
)
def test_the_threshold_is_more_than_half_of_nodes_and_colluders(nodes: int, colluders: int, expected: int) -> None:
    assert threshold(nodes, colluders) == expected
    assert 2 * expected > nodes + colluders >= 2 * (expected - 1)


def test_three_sites_and_one_colluder_tolerate_no_dropout() -> None:
    names = ["n0", "n1", "n2"]
    values = {name: contribution(64, {}, body=[1, 2, 3], head=[4, 5]) for name in names}
    assert plain(play(MASKED, context(*names), values))[0]["body"] == ([3, 6, 9], 192, 3)
    for phase in PHASES[1:]:
        with pytest.raises(CohortTooSmallError):
            play(MASKED, context(*names), values, {"n1": phase})


def test_the_largest_values_of_the_most_sites_fit() -> None:
    names = [f"n{index:03d}" for index in range(40)]
    blocks = layout(body=7)
    values = {name: contribution(64, {}, body=[32767, -32767] * 3 + [0]) for name in names}
    opened, _ = plain(play(MASKED, context(*names, blocks=blocks), values))
    assert opened["body"][0] == [40 * 32767, -40 * 32767] * 3 + [0]


def test_uploads_look_uniform_whatever_is_in_them() -> None:
    from coordinator.machine import RoundMachine
    from tests.protect.cohorts import InMemory, halves

    names = ["n0", "n1", "n2"]
    blocks = layout(body=60_000)
    values = {name: contribution(64, {}, body=[0] * 60_000) for name in names}
    about = context(*names, blocks=blocks)
    machine = RoundMachine(MASKED, about)
    nodes = halves(MASKED, about, values)
    machine.begin()
    uploads = []
    for phase in ("advertise", "share", "upload"):
        for name in names:
            answer = nodes[name].answer(phase, machine.asked[name])
            machine.accept(name, phase, answer, InMemory(answer.bulk))
            uploads.append(answer.bulk)
        machine.close()
    for raw in uploads[-3:]:
        counts = np.bincount(np.frombuffer(raw, np.uint8), minlength=256)
        expected = len(raw) / 256
        assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * (2 * 255) ** 0.5
