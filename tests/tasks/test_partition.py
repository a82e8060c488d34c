"""Laws of partitions: shares are disjoint, cover the data, and are the same at every site."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks.partition import (
    PartitionSettings,
    Share,
    assign,
    rotate_images,
    rotation,
)

KINDS = ("iid", "dirichlet", "pathological", "rotated", "rotated-pathological", "natural")
seeds = st.integers(0, 2**64)


def share(index: int = 0, of: int = 4, seed: int = 0, **values: Any) -> Share:
    return Share(index=index, of=of, seed=seed, partition=PartitionSettings.parse(values))


def labels(n: int = 400, classes: int = 5) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).permutation(np.arange(n) % classes)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    of=st.integers(1, 12),
    n=st.integers(240, 600),
    classes=st.integers(2, 8),
    min_samples=st.integers(2, 12),
    seed=seeds,
)
def test_shares_are_disjoint_covering_deterministic_and_large_enough(
    *, kind: str, of: int, n: int, classes: int, min_samples: int, seed: int
) -> None:
    targets, sites = labels(n, classes), np.arange(n) % 13
    # Enough classes each that every class has a holder, and at least one and at most all of them.
    each = min(classes, max(2, -(-classes // of)))

    def held(index: int) -> np.ndarray[Any, Any]:
        part = share(index, of, seed, kind=kind, alpha=5.0, classes=each, min_samples=min_samples)
        return assign(targets, part, classification=True, sites=sites)

    parts = [held(index) for index in range(of)]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    assert min(map(len, parts)) >= min_samples
    assert all(np.array_equal(part, held(index)) for index, part in enumerate(parts))


@given(seed=seeds, each=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_pathological_nodes_see_exactly_so_many_classes(seed: int, each: int) -> None:
    targets = labels()
    for index in range(5):
        part = share(index, 5, seed, kind="pathological", classes=each)
        assert len(np.unique(targets[assign(targets, part, classification=True)])) == each


@pytest.mark.parametrize(("of", "each"), [(2, 2), (4, 6)])
def test_pathological_refuses_hands_that_do_not_fit(of: int, each: int) -> None:
    with pytest.raises(SettingsError, match="cannot hold the data's 5 classes"):
        assign(labels(), share(of=of, kind="pathological", classes=each), classification=True)


def test_a_smaller_alpha_is_a_stronger_skew() -> None:
    def largest_class(alpha: float) -> float:
        targets = labels(2000)
        parts = [assign(targets, share(i, kind="dirichlet", alpha=alpha), classification=True) for i in range(4)]
        return float(np.mean([np.bincount(targets[part]).max() / len(part) for part in parts]))

    assert largest_class(0.1) > largest_class(1.0) > largest_class(100.0)


def test_dirichlet_gives_up_with_advice() -> None:
    part = share(of=20, kind="dirichlet", alpha=0.01, min_samples=20)
    with pytest.raises(SettingsError, match="never gave each of 20 nodes") as caught:
        assign(labels(), part, classification=True)
    assert "raise simulation.alpha" in caught.value.hint


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_rows_for_min_samples_is_refused(kind: str) -> None:
    with pytest.raises(SettingsError, match="min_samples = 101"):
        assign(labels(), share(kind=kind, min_samples=101), classification=True, sites=labels())


def test_a_site_smaller_than_min_samples_is_refused() -> None:
    sites = np.array([0] * 395 + [1] * 5)
    with pytest.raises(SettingsError, match="a node with 5 rows, min_samples = 10"):
        assign(labels(), share(of=2, kind="natural"), classification=True, sites=sites)


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "pathological"])
def test_a_group_is_at_one_site(kind: Any) -> None:
    """A patient of whom one site trains on some rows and another tests on the others would make results too good."""
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 200, 2000).astype(str)
    targets = rng.integers(0, 4, 200)[groups.astype(int)]
    partition = PartitionSettings(kind=kind, classes=2)
    shares = [Share(index=index, of=5, partition=partition, seed=1) for index in range(5)]
    held = [assign(targets, share, classification=True, groups=groups) for share in shares]
    assert sorted(np.concatenate(held)) == list(range(2000))
    owners = [set(groups[rows]) for rows in held]
    assert sum(map(len, owners)) == len(set(groups))
    if kind == "pathological":
        assert all(len(set(targets[rows])) == 2 for rows in held)
    by_row = [set(groups[assign(targets, share, classification=True)]) for share in shares]
    assert sum(map(len, by_row)) > len(set(groups))  # as it would be without


def test_natural_follows_the_site_labels() -> None:
    sites = np.array(["north", "east", "south", "west"])[labels(400, 4)]
    for index, name in enumerate(["east", "north", "south", "west"]):
        held = assign(labels(), share(index, kind="natural"), classification=False, sites=sites)
        assert np.array_equal(held, np.flatnonzero(sites == name))


def test_natural_needs_labels_for_enough_sites() -> None:
    with pytest.raises(SettingsError, match="no site labels"):
        assign(labels(), share(kind="natural"), classification=True)
    with pytest.raises(SettingsError, match="3 sites and the study has 4 nodes"):
        assign(labels(), share(kind="natural"), classification=True, sites=labels(400, 3))
    with pytest.raises(DataError, match="3 site labels for 400 rows"):
        assign(labels(), share(kind="natural"), classification=True, sites=labels(3))


@pytest.mark.parametrize("kind", ["dirichlet", "pathological", "rotated-pathological"])
def test_a_regression_has_no_classes_to_divide_by(kind: str) -> None:
    with pytest.raises(SettingsError, match="is a regression"):
        assign(labels(), share(kind=kind), classification=False)


@pytest.mark.parametrize(("index", "of", "seed"), [(-1, 4, 0), (4, 4, 0), (0, 4, -1)])
def test_an_impossible_share_is_refused(index: int, of: int, seed: int) -> None:
    with pytest.raises(SettingsError):
        share(index, of, seed)


def test_angles_take_turns_through_the_domains() -> None:
    angles = [rotation(share(i, 6, kind="rotated", domains=4)) for i in range(6)]
    assert angles == [0, 90, 180, 270, 0, 90]
    within = [rotation(share(i, 6, kind="rotated-pathological", domains=6, degrees=90)) for i in range(6)]
    assert within == [0, 15, 30, 45, 60, 75]
    assert rotation(share(1, kind="iid")) == 0


@given(quarters=st.integers(-8, 8), seed=st.integers(0, 100))
def test_quarter_turns_are_exact_and_undo_each_other(quarters: int, seed: int) -> None:
    images = np.random.default_rng(seed).random((3, 8, 8), np.float32)
    turned = rotate_images(images, quarters * 90)
    assert np.array_equal(turned, np.rot90(images, quarters, axes=(1, 2)))
    assert np.array_equal(rotate_images(turned, -quarters * 90), images)


@given(angle=st.floats(-720, 720))
@settings(max_examples=30, deadline=None)
def test_other_turns_keep_shape_type_and_value_range(angle: float) -> None:
    images = np.random.default_rng(0).random((2, 8, 8), np.float32)
    turned = rotate_images(images, angle)
    assert turned.shape == images.shape
    assert turned.dtype == np.float32
    assert turned.min() >= 0
    assert turned.max() <= 1


def test_inexact_turns_go_the_same_way_as_exact_ones() -> None:
    images = np.random.default_rng(0).random((2, 8, 8), np.float32)
    assert np.allclose(rotate_images(images, 90.0001), rotate_images(images, 90), atol=1e-2)


def test_oblong_images_cannot_make_a_quarter_turn() -> None:
    with pytest.raises(DataError, match="not square"):
        rotate_images(np.zeros((1, 4, 6), np.float32), 90)
