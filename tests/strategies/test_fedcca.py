"""FedCCA: whom a site selects and how much each counts, by hand; what trains, what is kept, what is opened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from secure_fl import strategies
from secure_fl.aggregation import Combine
from secure_fl.blocks import BlockShape, Layout, TensorShape
from secure_fl.errors import SettingsError
from secure_fl.protect.release.combinations import row_total, servable, whole_weights
from secure_fl.strategies.fedcca import FedCCA
from tests.strategies import regression
from tests.strategies.regression import INITIAL, LAYOUT, Weights

RATE = 0.125
# Two pairs of sites, worked out in algorithm (4)–(7) with NumPy: φ_fc, σ = 2, and a model of one number.
PHI = {"a": (0.0, 0.0), "b": (0.5, 0.0), "c": (4.0, 0.0), "d": (4.0, 0.5)}
THETA = {"a": 1.0, "b": 2.0, "c": 10.0, "d": 20.0}


def create(**settings: Any) -> FedCCA:
    """One plain gradient step per epoch, over all rows."""
    plain = {"epochs": 1, "batch_size": 100, "learning_rate": RATE, "momentum": 0.0}
    strategy = strategies.create("fedcca", {**plain, **settings})
    assert isinstance(strategy, FedCCA)
    return strategy


def squared(me: str, phi: dict[str, tuple[float, float]] = PHI) -> dict[str, float]:
    """As a node would be told, were sketches exact."""
    return {name: (x - phi[me][0]) ** 2 + (y - phi[me][1]) ** 2 for name, (x, y) in phi.items()}


# --- selection and weights --------------------------------------------------------------------------------------


def test_dissimilarity_criterion_and_selection() -> None:
    strategy = create(sigma=2.0)
    gaps = {me: strategy.dissimilarities(me, squared(me)) for me in PHI}
    assert list(gaps["a"].values()) == pytest.approx([0.117503, 0.999665, 0.999704], abs=5e-7)
    criteria = [strategy.threshold(gaps[me]) for me in PHI]
    assert criteria[0] == pytest.approx(0.264609, abs=5e-7)
    # The other three from (5) and (6) by hand: squares 12.25 and 12.5 for b, 16, 12.25, .25 and 16.25, 12.5, .25.
    near, far = 1 - math.exp(-0.125), [1 - math.exp(-square / 2) for square in (12.25, 12.5, 16, 16.25)]
    assert criteria[1:] == pytest.approx(
        [(near + far[0] + far[1]) / 8, (near + far[2] + far[0]) / 8, (near + far[3] + far[1]) / 8]
    )
    assert [strategy.selected(gaps[me]) for me in PHI] == [("b",), ("a",), ("d",), ("c",)]


def test_the_combination_in_real_numbers_and_as_a_row_of_integers() -> None:
    strategy = create(sigma=2.0)
    combined = []
    for me in PHI:
        wanted = strategy.attend(me, squared(me))
        whole = sum(wanted.values())
        shares = {name: weight / whole for name, weight in wanted.items()}
        assert sorted(shares.values()) == pytest.approx([0.468791, 0.531209], abs=5e-7)
        combined.append(sum(share * THETA[name] for name, share in shares.items()))
        row = whole_weights(wanted, row_total(len(PHI)))
        assert sorted(row.values()) == [30, 34]
        assert row[me] == 34
        # These are pairs: the guard opens none of them.
        assert servable({me: row}, nodes=sorted(PHI), colluders=1) == {}
    assert combined[:2] == pytest.approx([1.468791, 1.531209], abs=5e-7)


def test_whoever_selected_somebody_fills_up_with_the_nearest_and_nobody_else_does() -> None:
    phi = {"a": (0.0, 0.0), "b": (0.1, 0.0), "c": (3.0, 0.0), "d": (2.0, 0.0), "e": (4.0, 0.0), "z": (2.5, 0.0)}
    strategy = create()
    wanted = strategy.attend("a", squared("a", phi))
    assert set(wanted) == {"a", "b"}
    gaps = strategy.dissimilarities("a", squared("a", phi))
    filled = strategy.widen("a", wanted, squared("a", phi), 4)
    assert filled == {**wanted, "d": 1 - gaps["d"], "z": 1 - gaps["z"]}
    assert strategy.widen("a", filled, squared("a", phi), 4) == filled
    assert strategy.widen("a", wanted, squared("a", phi), 2) == wanted
    assert create(fill=False).widen("a", wanted, squared("a", phi), 4) == wanted
    assert strategy.widen("a", {"a": 1.0}, squared("a", phi), 4) == {"a": 1.0}  # It keeps its own model.
    assert (strategy.widest_row(6), create(fill=False, max_selected=2).widest_row(6)) == (6, 3)
    assert create(max_selected=2).widest_row(6) == 6


def test_groups_that_are_large_enough_are_served() -> None:
    phi = {f"{group}{i}": (8.0 * group, 0.1 * i) for group in range(2) for i in range(5)}
    strategy = create()
    total = row_total(len(phi))
    rows = {me: whole_weights(strategy.attend(me, squared(me, phi)), total) for me in phi}
    for me, row in rows.items():
        assert set(row) == {name for name in phi if name[0] == me[0]}
        assert sum(row.values()) == total
        assert max(row.values()) <= total / 2
    assert servable(rows, nodes=sorted(phi), colluders=1) == rows


def test_at_most_so_many_and_the_nearest() -> None:
    phi = {"a": (0.0, 0.0), "b": (0.1, 0.0), "c": (0.2, 0.0), "d": (0.1, 0.0), "z": (50.0, 0.0)}
    strategy = create(max_selected=2)
    assert strategy.selected(strategy.dissimilarities("a", squared("a", phi))) == ("b", "d")
    assert set(strategy.attend("a", squared("a", phi))) == {"a", "b", "d"}


def test_a_wider_criterion_selects_more() -> None:
    phi = {name: (float(place), 0.0) for place, name in enumerate("abcdef")}
    narrow, wide = (create(criterion=factor) for factor in (0.2, 0.5))
    assert set(narrow.attend("a", squared("a", phi))) == {"a", "b"}
    assert set(wide.attend("a", squared("a", phi))) == {"a", "b", "c"}


def test_without_sigma_the_unit_does_not_matter() -> None:
    far = {name: (16 * x, 16 * y) for name, (x, y) in PHI.items()}
    strategy = create()
    assert strategy.attend("a", squared("a", far)) == pytest.approx(strategy.attend("a", squared("a")))
    # σ is ten medians of what the site sees: .25, 16 and 16.25.
    assert strategy.dissimilarities("a", squared("a"))["c"] == pytest.approx(1 - math.exp(-0.1))


def test_alone_or_among_equals() -> None:
    strategy = create()
    assert strategy.attend("a", {"a": 0.0}) == {"a": 1.0}
    assert strategy.attend("a", dict.fromkeys("abcd", 0.0)) == dict.fromkeys("abcd", 1.0)


# --- training ---------------------------------------------------------------------------------------------------


def test_both_models_train_and_only_theta_leaves() -> None:
    strategy = create(encoder_epochs=2)
    assert strategy.request(LAYOUT, ("head",)) == Combine(blocks=("body", "head"))
    here = regression.site(strategy, received=INITIAL)
    change = strategy.fit(here)
    start = Weights.of(INITIAL)
    once = start.plus(start.gradient(), -RATE)
    twice = once.plus(once.gradient(), -RATE)
    assert tuple(change) == LAYOUT.names
    for name in LAYOUT.names:
        assert change[name] == pytest.approx(np.array(getattr(once, name) - INITIAL[name]), abs=1e-6)
        assert here.personal[name] == pytest.approx(np.atleast_1d(getattr(once, name)), abs=1e-6)
        assert here.personal[f"{name}: phi"] == pytest.approx(np.atleast_1d(getattr(twice, name)), abs=1e-6)
    # φ_fc: of φ, and here its head, since the body is no fully connected layer.
    assert strategy.features(here) == pytest.approx([twice.head], abs=1e-6)


@pytest.mark.parametrize("name", ["fedcca", "fedamp"])
def test_a_site_whose_first_training_came_to_nothing_is_compared_by_what_it_began_with(name: str) -> None:
    """It would fall silent otherwise, and a model can bring that about."""
    strategy = strategies.create(name, {})
    here = regression.site(strategy, received=INITIAL)
    blocks = strategy.compared(here.layout, here.head) if isinstance(strategy, FedCCA) else here.layout.names
    assert strategy.features(here) == pytest.approx(np.concatenate([here.initial[block] for block in blocks]))


def test_sites_are_compared_by_the_layer_that_makes_the_representation() -> None:
    def layout(*blocks: tuple[str, Sequence[tuple[int, ...]]]) -> Layout:
        tensors = {
            name: tuple(TensorShape(name=str(i), shape=shape) for i, shape in enumerate(shapes))
            for name, shapes in blocks
        }
        return Layout(tuple(BlockShape(name=name, tensors=made) for name, made in tensors.items()))

    head = ("head", [(10, 64), (10,)])
    conv, linear, embedding = [(16, 1, 3, 3), (16,)], [(64, 256), (64,)], [(100, 64)]
    for block, found in ((linear, ("before",)), (conv, ("head",)), (embedding, ("head",)), ([(64,)], ("head",))):
        assert create().compared(layout(("first", conv), ("before", block), head), ("head",)) == found
    assert create().compared(layout(head), ("head",)) == ("head",)


def test_theta_goes_on_from_what_was_opened_and_phi_from_where_it_was() -> None:
    strategy = create()
    kept = {name: vector + np.float32(0.25) for name, vector in INITIAL.items()}
    phi = {name: vector - np.float32(0.25) for name, vector in INITIAL.items()}
    personal = {**kept, **{f"{name}: phi": vector for name, vector in phi.items()}}
    opened = {name: np.full_like(vector, 0.5) for name, vector in INITIAL.items()}
    for combination, begin in ((opened, {n: INITIAL[n] + opened[n] for n in INITIAL}), ({}, kept)):
        here = regression.site(strategy, received=INITIAL, personal=personal, combination=combination)
        assert LAYOUT.digest(create(predicts="combined").inference(here)) == LAYOUT.digest(begin)
        assert LAYOUT.digest(strategy.inference(here)) == LAYOUT.digest(kept)
        strategy.fit(here)
        theta = Weights.of(begin).plus(Weights.of(begin).gradient(), -RATE)
        own = Weights.of(phi).plus(Weights.of(phi).gradient(), -RATE)
        assert here.personal["head"] == pytest.approx([theta.head], abs=1e-6)
        assert here.personal["head: phi"] == pytest.approx([own.head], abs=1e-6)


@pytest.mark.parametrize(
    "setting", [{"sigma": 0.0}, {"criterion": 0.0}, {"max_selected": 0}, {"encoder_epochs": 0}, {"predicts": "both"}]
)
def test_settings_are_checked(setting: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=rf"^strategy\.{next(iter(setting))}: "):
        create(**setting)
