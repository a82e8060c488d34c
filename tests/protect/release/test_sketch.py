"""Sketches: distances of long vectors from short ones, by one projection for ever, whatever the study and the round."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import NonFiniteUpdateError
from secure_fl.protect.release import sketch as module
from secure_fl.protect.release.sketch import LIMIT, SIZE, in_units, sketch, sketched, squared_distance
from tests.protect.laws import law


@pytest.mark.parametrize(
    ("features", "numbers"), [(0, 0), (1, 1), (34, 4), (650, 59), (5_000, 450), (11_378, 1024), (10**6, 1024)]
)
def test_how_many_numbers_stand_for_how_many(features: int, numbers: int) -> None:
    assert sketched(features) == numbers
    drawn = sketch(np.random.default_rng(1).normal(size=features).astype(np.float32))
    assert drawn.shape == (SIZE,)
    assert np.count_nonzero(drawn) == numbers


@pytest.mark.parametrize("size", [650, 20_000, 70_000])
def test_distances_are_kept_within_the_stated_error(size: int) -> None:
    rng = np.random.default_rng(3)
    ratios = []
    for _ in range(60):
        mine, theirs = rng.normal(size=(2, size)).astype(np.float32)
        ratios.append(in_units(squared_distance(sketch(mine), sketch(theirs))) / float(((mine - theirs) ** 2).sum()))
    # Mean 1 with standard error √(2/k)/√60; the spread itself to a third, or half where a tenth of all is seen.
    spread = np.sqrt(2 / sketched(size))
    assert abs(np.mean(ratios) - 1) < 4 * spread / np.sqrt(60)
    assert spread / 1.5 < np.std(ratios) < spread * 1.5


@law
@given(st.integers(1, 40), st.data())
def test_a_sketch_is_linear_to_rounding(size: int, data: st.DataObject) -> None:
    value = st.lists(st.floats(-100, 100, width=32), min_size=size, max_size=size)
    mine, theirs = (np.array(data.draw(value), np.float32) for _ in range(2))
    apart = sketch(mine).astype(np.int64) + sketch(theirs)
    assert np.abs(sketch(mine + theirs) - apart).max() <= 2 + 1e-3 * 2**14  # float32's own rounding, and two halves


def test_a_known_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry by entry from the definition, in two blocks: s_r·(−1)^popcount(r & i)·d_i/√k, with draws of AES-256-CTR."""
    import hashlib
    import math

    from secure_fl.identity.signing import transcript
    from secure_fl.randomness import KeyStream, derive_key

    monkeypatch.setattr(module, "_BLOCK", 32)
    size, count = 45, 5
    values = [(7 * i % 11 - 5) / 8 for i in range(size)]
    places = [0.0] * count
    for start, width, held in ((0, 32, 32), (32, 16, 13)):
        label = transcript("feature projection", size.to_bytes(8, "little"), start.to_bytes(8, "little"))
        stream = KeyStream(derive_key(hashlib.sha256(label).digest(), b"sketch"))
        draws = np.frombuffer(stream.bytes(8 * width), "<u8").tolist()
        rows = sorted(range(width), key=lambda row: draws[row])[:count]
        columns = int.from_bytes(stream.bytes(width // 8), "little")
        signs = int.from_bytes(stream.bytes(1), "little")
        for place, row in enumerate(rows):
            for i in range(held):
                odd = (row & i).bit_count() + (columns >> i & 1) + (signs >> place & 1)
                places[place] += (-1) ** odd * values[start + i]
    expected = [round(place * 2**14 / math.sqrt(count)) for place in places]
    found = sketch(np.array(values, np.float32))
    assert found[:count].tolist() == expected
    assert not found[count:].any()


def test_every_feature_is_in_every_number() -> None:
    """A probe at one place finds no single feature: it moves all numbers of the sketch alike."""
    size = 650
    for place in (0, 1, 333, 649):
        unit = np.zeros(size, np.float32)
        unit[place] = 1
        assert set(np.abs(sketch(unit)[: sketched(size)]).tolist()) == {round(2**14 / np.sqrt(sketched(size)))}


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_no_number_is_refused(poison: float) -> None:
    with pytest.raises(NonFiniteUpdateError):
        sketch(np.array([0, poison], np.float32))


def test_what_does_not_fit_is_cut_off_and_the_site_still_answers() -> None:
    edge = LIMIT / 2**14
    for beyond in (edge, edge + 1, 3e38):
        assert abs(sketch(np.array([beyond], np.float32))[0]) == LIMIT
