"""Sketches: distances of long vectors from short ones, exact for short vectors, the same for every node of a round."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import NonFiniteUpdateError
from secure_fl.protect.release.sketch import LIMIT, SIZE, in_units, sketch, squared_distance
from tests.protect.laws import law

BINDING = bytes(range(32))


@law
@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=8), st.data())
def test_short_vectors_keep_their_distance(values: list[float], data: st.DataObject) -> None:
    others = data.draw(st.lists(st.floats(-100, 100, width=32), min_size=len(values), max_size=len(values)))
    mine, theirs = np.array(values, np.float32), np.array(others, np.float32)
    exact = float(((mine.astype(np.float64) - theirs) ** 2).sum())
    found = in_units(squared_distance(sketch(mine, binding=BINDING), sketch(theirs, binding=BINDING)))
    # Either value is off by half a step of 2⁻¹⁴ at most: a difference by one.
    assert abs(found - exact) <= len(values) * (2 * 200 * 2.0**-14 + 2.0**-28)


def test_long_vectors_keep_their_distance_within_the_stated_error() -> None:
    rng = np.random.default_rng(3)
    ratios = []
    for trial in range(60):
        mine, theirs = rng.normal(size=(2, 20_000)).astype(np.float32)
        binding = bytes([trial] * 32)
        found = in_units(squared_distance(sketch(mine, binding=binding), sketch(theirs, binding=binding)))
        ratios.append(found / float(((mine - theirs) ** 2).sum()))
    # Mean 1 with standard error √(2/1024)/√60; the spread itself to a third.
    spread = np.sqrt(2 / SIZE)
    assert abs(np.mean(ratios) - 1) < 4 * spread / np.sqrt(60)
    assert spread / 1.5 < np.std(ratios) < spread * 1.5


def test_a_sketch_belongs_to_its_round() -> None:
    features = np.linspace(-1, 1, 5000, dtype=np.float32)
    assert (sketch(features, binding=BINDING) == sketch(features, binding=BINDING)).all()
    assert (sketch(features, binding=BINDING) != sketch(features, binding=bytes(32))).any()


def test_a_known_answer() -> None:
    """Coordinate i goes to place d_i mod 1024 with sign −1 if bit 10 of d_i is set, d from AES-256-CTR of HKDF."""
    from secure_fl.randomness import KeyStream, derive_key

    size = 70_000  # more than one chunk
    values = [i % 97 for i in range(size)]
    features = np.array(values, np.float32) / np.float32(1024)
    draws = np.frombuffer(KeyStream(derive_key(BINDING, b"sketch")).bytes(2 * size), "<u2").tolist()
    places = [0] * SIZE
    for value, draw in zip(values, draws, strict=True):
        places[draw % 1024] += -16 * value if draw >> 10 & 1 else 16 * value
    assert sketch(features, binding=BINDING).tolist() == places


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_no_number_is_refused(poison: float) -> None:
    with pytest.raises(NonFiniteUpdateError):
        sketch(np.array([0, poison], np.float32), binding=BINDING)


def test_what_does_not_fit_is_cut_off_and_the_site_still_answers() -> None:
    edge = LIMIT / 2**14
    for beyond in (edge, edge + 1, 3e38):
        assert sketch(np.array([beyond, -beyond], np.float32), binding=BINDING)[:2].tolist() == [LIMIT, -LIMIT]
