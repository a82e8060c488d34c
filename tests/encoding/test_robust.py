"""Robust means: what a plain NumPy loop gives, and never beyond what honest circles say."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.encoding import robust
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum
from secure_fl.encoding.robust import Kind, decode_circles, robust_mean
from secure_fl.encoding.update import decode_sums
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.errors import OverflowInvariantError, ProtectionError, TooFewCirclesError
from tests.protect.laws import law

KINDS: tuple[Kind, ...] = ("trimmed", "median")
CODEC = FixedPoint(bits=16, clip=1.0)


@st.composite
def circles(draw: st.DrawFn, *, colluders: int, most: int = 9, size: int | None = None) -> list[BlockSum]:
    """Sums that their contributors can have made, the ends of the range among them."""
    length = draw(st.integers(0, 5)) if size is None else size
    opened = []
    for _ in range(draw(st.integers(2 * colluders + 1, max(most, 2 * colluders + 1)))):
        contributors = draw(st.integers(3, 6))
        weight = draw(st.integers(37 * contributors, WEIGHT_UNITS * contributors))
        limit = CODEC.limit * weight // WEIGHT_UNITS
        value = st.integers(-limit, limit) | st.sampled_from([-limit, 0, limit])
        total = np.array(draw(st.lists(value, min_size=length, max_size=length)), np.int32)
        opened.append(BlockSum(total=total, weight=weight, contributors=contributors))
    return opened


def plain_means(opened: list[BlockSum]) -> npt.NDArray[np.float64]:
    return np.stack([c.total / (CODEC.scale * (c.weight / WEIGHT_UNITS)) for c in opened])


def oracle(opened: list[BlockSum], kind: Kind, colluders: int) -> npt.NDArray[np.float64]:
    """One coordinate at a time, with what everybody has."""
    columns: list[float] = []
    for column in plain_means(opened).T:
        kept = sorted(column)[colluders : len(column) - colluders]
        columns.append(float(np.median(column) if kind == "median" else np.mean(kept)))
    return np.array(columns)


@pytest.mark.parametrize("kind", KINDS)
@law
@given(st.integers(0, 3).flatmap(lambda c: st.tuples(st.just(c), circles(colluders=c))))
def test_it_is_what_a_plain_loop_gives(kind: Kind, case: tuple[int, list[BlockSum]]) -> None:
    colluders, opened = case
    mean = robust_mean(opened, codec=CODEC, kind=kind, colluders=colluders)
    assert mean.dtype == np.float32
    expected = oracle(opened, kind, colluders)
    # One rounding to float32, and the last place of a double for the order of additions.
    assert (np.abs(mean - expected) <= np.spacing(np.abs(expected).astype(np.float32)) * 0.5 + 1e-15).all()


@pytest.mark.parametrize("kind", KINDS)
@law
@given(circles(colluders=1), st.randoms(use_true_random=False))
def test_the_order_of_circles_does_not_matter_to_the_last_bit(kind: Kind, opened: list[BlockSum], dice: Any) -> None:
    before = robust_mean(opened, codec=CODEC, kind=kind, colluders=1)
    dice.shuffle(opened)
    assert before.tobytes() == robust_mean(opened, codec=CODEC, kind=kind, colluders=1).tobytes()


@pytest.mark.parametrize("kind", KINDS)
@law
@given(st.data())
def test_colluders_circles_do_not_move_it_beyond_the_honest_ones(kind: Kind, data: st.DataObject) -> None:
    """Any c of the circles are replaced by anything that would be accepted."""
    colluders = data.draw(st.integers(1, 3), "colluders")
    opened = data.draw(circles(colluders=colluders, size=4), "circles")
    where = data.draw(st.sets(st.sampled_from(range(len(opened))), max_size=colluders), "where")
    replaced = data.draw(circles(colluders=colluders, size=4), "anything")
    for index, forged in zip(sorted(where), replaced, strict=False):
        opened[index] = forged
    honest = [CODEC.decode(circle) for index, circle in enumerate(opened) if index not in where]
    mean = robust_mean(opened, codec=CODEC, kind=kind, colluders=colluders)
    assert (np.min(honest, axis=0) <= mean).all()
    assert (mean <= np.max(honest, axis=0)).all()


def one_bad_circle(count: int = 5) -> list[BlockSum]:
    """Honest circles near 0.1; the last one's total is at the end of its range."""
    total = round(0.1 * CODEC.scale) * 5
    honest = [BlockSum(total=np.array([total + index]), weight=5 * 64, contributors=5) for index in range(count - 1)]
    return [*honest, BlockSum(total=np.array([-5 * CODEC.limit]), weight=5 * 64, contributors=5)]


def test_a_plain_mean_follows_one_circle_and_robust_ones_do_not() -> None:
    opened = one_bad_circle()
    whole = BlockSum(total=np.sum([circle.total for circle in opened], axis=0), weight=5 * 5 * 64, contributors=25)
    assert CODEC.decode(whole)[0] == pytest.approx(0.1 - 1.1 / 5, abs=1e-4)
    for kind in KINDS:
        assert robust_mean(opened, codec=CODEC, kind=kind, colluders=1)[0] == pytest.approx(0.1, abs=1e-4)
    # And with nobody counted on to collude, a trimmed mean is a plain one.
    assert robust_mean(opened, codec=CODEC, kind="trimmed", colluders=0) == pytest.approx(CODEC.decode(whole), abs=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3, 5])
def test_equal_circles_give_what_each_of_them_gives(kind: Kind, count: int) -> None:
    rng = np.random.default_rng(3)
    circle = BlockSum(total=rng.integers(-150_000, 150_000, 20_000), weight=311, contributors=5)
    mean = robust_mean([circle] * count, codec=CODEC, kind=kind, colluders=0)
    assert mean.tobytes() == CODEC.decode(circle).tobytes()


def test_rounding_does_not_lead_out_of_the_range_either() -> None:
    values = np.random.default_rng(4).uniform(-1, 1, 1000)
    rows = np.stack([values] * 7)
    assert (rows.mean(axis=0) != values).any()  # In doubles 7·x/7 is not always x.
    assert (robust._middle(rows) == values).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cells", [1, 7, 64])
def test_pieces_make_no_difference(kind: Kind, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    opened = [BlockSum(total=rng.integers(-9999, 9999, 50), weight=320, contributors=5) for _ in range(5)]
    whole = robust_mean(opened, codec=CODEC, kind=kind, colluders=2)
    monkeypatch.setattr(robust, "_CELLS", cells)
    assert whole.tobytes() == robust_mean(opened, codec=CODEC, kind=kind, colluders=2).tobytes()


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "colluders"), [(0, 0), (1, 1), (2, 1), (4, 2), (6, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_with_too_few_circles_there_is_no_mean(kind: Kind, count: int, colluders: int) -> None:
    with pytest.raises(TooFewCirclesError, match=f"{count} circles .* at least {2 * colluders + 1}"):
        robust_mean(one_bad_circle(9)[:count], codec=CODEC, kind=kind, colluders=colluders)


def test_a_circle_that_is_beyond_its_range_or_of_another_size_is_refused() -> None:
    opened = one_bad_circle(3)
    loud = BlockSum(total=np.array([5 * CODEC.limit + 1]), weight=5 * 64, contributors=5)
    with pytest.raises(OverflowInvariantError):
        robust_mean([*opened, loud], codec=CODEC, kind="median", colluders=1)
    long = BlockSum(total=np.array([1, 2]), weight=5 * 64, contributors=5)
    with pytest.raises(ProtectionError, match="different sizes"):
        robust_mean([*opened, long], codec=CODEC, kind="median", colluders=1)


# --- all blocks of a round --------------------------------------------------------------------------------------


def test_blocks_of_too_few_circles_are_absent_and_the_others_are_decoded() -> None:
    opened = [{"body": circle} for circle in one_bad_circle(4)]
    opened[0]["cell"], opened[1]["cell"] = opened[0]["body"], opened[1]["body"]
    means = decode_circles(opened, CODEC, kind="median", colluders=1)
    assert set(means) == {"body"}
    assert means["body"].contributors == 20
    assert opened == [{}, {}, {}, {}]


def test_a_round_without_any_such_block_makes_no_step() -> None:
    with pytest.raises(TooFewCirclesError, match="2 circles"):
        decode_circles([{"body": circle} for circle in one_bad_circle(2)], CODEC, kind="trimmed", colluders=1)
    with pytest.raises(TooFewCirclesError, match="0 circles"):
        decode_circles([{}, {}], CODEC, kind="trimmed", colluders=1)


def test_without_liars_and_with_equal_circles_it_is_the_plain_decoding() -> None:
    rng = np.random.default_rng(2)
    total = rng.integers(-9999, 9999, 50)
    opened = [{"body": BlockSum(total=total, weight=320, contributors=5)} for _ in range(3)]
    plain = decode_sums({"body": BlockSum(total=3 * total, weight=960, contributors=15)}, CODEC)
    means = decode_circles(opened, CODEC, kind="trimmed", colluders=1)
    assert means["body"].contributors == plain["body"].contributors
    assert means["body"].mean == pytest.approx(plain["body"].mean, rel=1e-6)
