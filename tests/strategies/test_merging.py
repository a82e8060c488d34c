"""Circles that open at different times: the laws of merging, numbers by hand, and that nothing is used twice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl import strategies
from secure_fl.aggregation import Aggregate, BlockMean
from secure_fl.blocks import Blocks, Vector
from secure_fl.encoding.steps import require_step
from secure_fl.errors import RoundError, SettingsError, StepTooLargeError
from secure_fl.strategies.base import State
from secure_fl.strategies.merging import (
    Arrival,
    MergeSettings,
    Merging,
    discount,
    own_part,
    with_own_part,
)
from tests.strategies.regression import INITIAL, LAYOUT

law = settings(deadline=None, max_examples=60)
LARGE = 1e6
small = st.floats(-8, 8, width=32)
vectors = st.lists(small, min_size=3, max_size=3).map(lambda values: np.array(values, np.float32))


def model(*values: float) -> dict[str, Vector]:
    return {"layer": np.array(values, np.float32)}


def opened(contributors: int = 3, **means: Sequence[float] | Vector) -> Aggregate:
    return Aggregate(
        {name: BlockMean(mean=np.array(mean, np.float32), contributors=contributors) for name, mean in means.items()}
    )


def arrival(
    circle: int, change: Aggregate, *, base: int = 0, staleness: int = 0, share: float = 1.0, weight: float = 1.0
) -> Arrival:
    return Arrival(circle=circle, base=base, staleness=staleness, share=share, weight=weight, change=change)


def merging(kind: Any = "cache", **own: Any) -> Merging:
    return Merging(kind=kind, **{"discount": "root", "largest": LARGE, **own})


def mean_of(
    how: Merging, current: Blocks, arrivals: Sequence[Arrival], bases: Mapping[int, Blocks] | None = None
) -> Aggregate:
    return how.merged(current, arrivals, lambda version: (bases or {0: current})[version], State())[0]


# --- discounts --------------------------------------------------------------------------------------------------


def test_discounts_by_hand() -> None:
    assert [round(discount("paper", age), 6) for age in (0, 1, 3)] == [1, 0.735759, 0.398297]  # AiFed (10)
    assert [discount("root", age) for age in (0, 3, 8)] == pytest.approx([1, 1 / 2, 1 / 3])
    assert [discount("none", age) for age in (0, 1000)] == [1, 1]
    assert 0.5 * discount("root", 3) == 0.25  # FedAsync, α = a = 1/2
    assert discount("paper", 100_000) == 0  # and no error


# --- laws -------------------------------------------------------------------------------------------------------


@law
@given(vectors, vectors)
def test_one_fresh_circle_of_all_sites_is_fedavgs_mean_to_the_last_bit(current: Vector, change: Vector) -> None:
    how = [merging("delta"), merging("cache"), merging("mix")]
    for each in how:
        found = mean_of(each, {"layer": current}, [arrival(0, opened(layer=change))])
        assert found["layer"].mean.tolist() == change.tolist()
        assert found["layer"].mean.dtype == np.float32


@law
@given(vectors, st.lists(st.tuples(vectors, st.integers(3, 9)), min_size=1, max_size=4))
def test_circles_that_are_all_fresh_are_averaged_by_their_share(
    current: Vector, circles: list[tuple[Vector, int]]
) -> None:
    sites = sum(size for _, size in circles)
    arrivals = [
        arrival(number, opened(layer=change), share=size / sites) for number, (change, size) in enumerate(circles)
    ]
    expected = sum(change.astype(float) * size for change, size in circles) / sites
    for kind in ("cache", "delta"):  # All came, so that both are the same.
        found = mean_of(merging(kind), {"layer": current}, arrivals)["layer"]
        np.testing.assert_allclose(found.mean, expected, atol=1e-5)
        assert found.contributors == 3 * len(circles)


@law
@given(vectors, st.lists(st.tuples(vectors, st.integers(3, 9), st.integers(37, 64)), min_size=1, max_size=4))
@pytest.mark.parametrize("kind", ["cache", "delta"])
def test_circles_that_are_all_fresh_are_the_ratio_of_sums_of_a_synchronous_round(
    kind: str, current: Vector, circles: list[tuple[Vector, int, int]]
) -> None:
    sites = sum(size for _, size, _ in circles)
    arrivals = [
        arrival(number, opened(layer=change), share=size / sites, weight=weight / 64)
        for number, (change, size, weight) in enumerate(circles)
    ]
    expected = np.average(
        [change.astype(float) for change, _, _ in circles],
        axis=0,
        weights=[size * weight for _, size, weight in circles],
    )
    found = mean_of(merging(kind), {"layer": current}, arrivals)["layer"]
    np.testing.assert_allclose(found.mean, expected, atol=1e-5)


@law
@given(
    vectors,
    st.lists(st.tuples(vectors, st.integers(0, 5), st.floats(0.01, 0.3), st.integers(0, 2)), min_size=1, max_size=5),
    st.floats(0.01, 1),
)
@pytest.mark.parametrize("kind", ["cache", "delta", "mix"])
def test_where_all_weigh_alike_it_does_not_matter_how_much(
    kind: str, current: Vector, circles: list[tuple[Vector, int, float, int]], weight: float
) -> None:
    """To the last bit: also over several flushes, with what is remembered."""
    bases = {version: {"layer": current + np.float32(version)} for version in range(9)}
    states = [State(), State()]
    for flush in range(3):
        version = 5 + flush
        found = []
        for place, each in enumerate((1.0, weight)):
            arrivals = [
                arrival(number, opened(layer=change), base=version - age, staleness=age, share=share, weight=each)
                for number, (change, age, share, comes) in enumerate(circles)
                if comes == flush
            ]
            if arrivals:
                how = merging(kind)
                mean, states[place] = how.merged(bases[version], arrivals, bases.__getitem__, states[place])
                found.append(mean["layer"].mean.tobytes() if mean else b"")
        assert len(set(found)) <= 1


@law
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 64)), min_size=1, max_size=12),
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
)
def test_no_flush_is_more_than_the_changes_in_it(turns: list[tuple[int, int]], sizes: list[int]) -> None:
    """Whatever circles weigh and weighed before: what is added up is an average of changes, or less."""
    current, state = model(0.0), State()
    for base, (circle, weight) in enumerate(turns):
        share = sizes[circle] / sum(sizes)
        came = [arrival(circle, opened(layer=[1.0]), base=base, share=share, weight=weight / 64)]
        mean, state = merging("delta").merged(current, came, lambda _: current, through_disk(state))
        assert 0 < mean["layer"].mean[0] <= 1


@law
@given(
    vectors,
    st.lists(st.tuples(vectors, st.integers(0, 5), st.floats(0.01, 0.3)), min_size=2, max_size=5),
    st.randoms(use_true_random=False),
)
@pytest.mark.parametrize("kind", ["delta", "cache"])
def test_the_order_of_arrivals_in_a_flush_does_not_matter(
    kind: str, current: Vector, circles: list[tuple[Vector, int, float]], random: Any
) -> None:
    bases = {version: {"layer": current + np.float32(version)} for version in range(6)}
    arrivals = [
        arrival(number, opened(layer=change), base=5 - staleness, staleness=staleness, share=share)
        for number, (change, staleness, share) in enumerate(circles)
    ]
    shuffled = list(arrivals)
    random.shuffle(shuffled)
    one, other = (mean_of(merging(kind), bases[5], each, bases)["layer"].mean for each in (arrivals, shuffled))
    assert one.tobytes() == other.tobytes()


@law
@given(vectors, st.lists(vectors, min_size=1, max_size=3), st.floats(1e-3, 2.0))
@pytest.mark.parametrize("kind", ["delta", "cache", "mix"])
def test_no_coordinate_goes_beyond_what_sites_accept(
    kind: str, base: Vector, changes: list[Vector], largest: float
) -> None:
    current = {"layer": base + np.float32(3)}  # The model went on while they trained.
    arrivals = [arrival(number, opened(layer=change), base=0, staleness=7) for number, change in enumerate(changes)]
    how = merging(kind, largest=largest, discount="none")
    found = mean_of(how, current, arrivals, {0: {"layer": base}})["layer"].mean
    assert float(np.abs(found.astype(float)).max()) <= largest


def test_without_the_cut_a_site_would_refuse_the_model() -> None:
    """A circle that missed a hundred versions pulls further than one round may move a model."""
    strategy = strategies.create("fedavg", {})
    far = {name: vector + np.float32(5) for name, vector in INITIAL.items()}
    late = [arrival(0, opened(body=[0.1, 0.1], head=[0.1]), staleness=100)]

    def stepped(largest: float) -> Blocks:
        mean, _ = merging("cache", largest=largest).merged(far, late, lambda _: INITIAL, State())
        return strategy.step(far, mean, State())[0]

    require_step(far, stepped(0.5), LAYOUT, largest=0.5)
    with pytest.raises(StepTooLargeError):
        require_step(far, stepped(LARGE), LAYOUT, largest=0.5)


# --- numbers by hand --------------------------------------------------------------------------------------------

# AiFed: n = (100, 200, 100), ages 0, 1, 3, LIR = (2, 1, 1.5). n·LIR is the sites' own weight, as parts of 200.
WEIGHTS = [own / 200 for own in (200, 200, 150)]
AGES = (0, 1, 3)


def aged(models: Sequence[float | None]) -> list[Arrival]:
    """Three circles whose models, trained from 1 in versions 3, 2 and 0, are these; None: the layer was not sent."""
    return [
        arrival(
            circle,
            opened() if there is None else opened(layer=[there - 1]),
            base=3 - age,
            staleness=age,
            share=1 / 3,
            weight=weight,
        )
        for circle, (there, weight, age) in enumerate(zip(models, WEIGHTS, AGES, strict=True))
    ]


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ((1.0, 2.0, 3.0), 1.655304),  # β = (.491526, .361644, .146830)
        ((1.0, None, 3.0), 2.740237),  # a layer that was not sent counts as the global one, which is 5
        ((1.0, 0.0, 0.0), 0.491526),
        ((0.0, 1.0, 0.0), 0.361644),
        ((0.0, 0.0, 1.0), 0.146830),
    ],
)
def test_aifeds_weights_and_layers_that_were_not_sent(models: Sequence[float | None], expected: float) -> None:
    current, bases = model(5.0), dict.fromkeys(range(4), model(1.0))
    found = mean_of(merging("cache", discount="paper"), current, aged(models), bases)["layer"]
    assert current["layer"][0] + found.mean[0] == pytest.approx(expected, abs=1e-6)


def test_delta_adds_what_came_by_its_share_and_age() -> None:
    current = model(1.0, 1.0)
    arrivals = [
        arrival(0, opened(layer=[1.0, 0.0]), base=3, staleness=0, share=0.25),
        arrival(1, opened(layer=[0.0, 1.0]), base=0, staleness=3, share=0.5),
    ]
    found = mean_of(merging("delta", rate=2.0), current, arrivals)["layer"]
    assert found.mean.tolist() == [0.5, 0.5]
    assert found.contributors == 6


def test_delta_weighs_a_circle_against_all_that_were_heard() -> None:
    """Two circles of half the sites each, one of which weighs a third of the other: 3/4 and 1/4 of the study."""
    how, current = merging("delta"), model(0.0)
    state, found = State(), []
    for circle, base, weight in ((0, 0, 0.75), (1, 0, 0.25), (0, 1, 0.75)):
        came = [arrival(circle, opened(layer=[1.0]), base=base, share=0.5, weight=weight)]
        mean, state = how.merged(current, came, lambda _: current, through_disk(state))
        found.extend(mean["layer"].mean.tolist())
    assert found == [0.5, 0.25, 0.75]  # When nobody else was heard, the others counted as much.


def test_mix_goes_a_part_of_the_way_to_each_model_in_turn() -> None:
    current, bases = model(2.0), {0: model(0.0), 3: model(2.0)}
    one = arrival(0, opened(layer=[4.0]), base=0, staleness=3)  # its model is 4, its weight 1/2·1/2
    two = arrival(1, opened(layer=[6.0]), base=3)  # its model is 8, its weight 1/2
    how = merging("mix", rate=0.5)
    assert mean_of(how, current, [one], bases)["layer"].mean.tolist() == [0.5]
    assert mean_of(how, current, [one, two], bases)["layer"].mean.tolist() == [0.5 + 0.5 * 5.5]
    assert mean_of(how, current, [two, one], bases)["layer"].mean.tolist() == [3 + 0.25 * (4 - 5)]


def test_a_block_that_nobody_sent_keeps_its_value() -> None:
    for kind in ("delta", "cache", "mix"):
        found = mean_of(merging(kind), INITIAL, [arrival(0, opened(head=[1.0]))])
        assert list(found) == ["head"]


# --- what is remembered -----------------------------------------------------------------------------------------


def through_disk(state: State) -> State:
    """As the coordinator keeps it: values as JSON, vectors as arrays."""
    return State(values=json.loads(json.dumps(state.values)), vectors=dict(state.vectors))


def test_the_cache_remembers_each_circles_last_model_and_how_old_it_is() -> None:
    how, versions, state = merging("cache"), {0: model(0.0)}, State()
    arrivals = [  # circle, base, change: circle 1 comes once, with a model of 8
        (0, 0, 2.0),
        (1, 0, 8.0),
        (0, 1, 1.0),
    ]
    expected = 0.0
    caches: list[dict[int, tuple[float, int]]] = [{}]
    for version, (circle, base, change) in enumerate(arrivals):
        current = versions[version]
        came = arrival(circle, opened(layer=[change]), base=base, staleness=version - base, share=0.5)
        mean, state = how.merged(current, [came], versions.__getitem__, through_disk(state))
        cache = {**caches[-1], circle: (float(versions[base]["layer"][0]) + change, base)}
        caches.append(cache)
        weights = {c: discount("root", version - born) for c, (_, born) in cache.items()}
        expected = sum(weights[c] * there for c, (there, _) in cache.items()) / sum(weights.values())
        versions[version + 1] = {"layer": current["layer"] + mean["layer"].mean}
        assert versions[version + 1]["layer"][0] == pytest.approx(expected, abs=1e-5)
    # By hand, of the last step: circle 0's model is 2 + 1, an age of 1; circle 1's is 8, an age of 2.
    one, two = 1 / np.sqrt(2), 1 / np.sqrt(3)
    assert expected == pytest.approx((3 * one + 8 * two) / (one + two))
    assert len(state.vectors) == 2  # one model per circle, and no more


def test_a_layer_that_is_not_sent_any_more_leaves_the_cache() -> None:
    how, both = merging("cache"), {"layer": np.zeros(1, np.float32), "other": np.zeros(1, np.float32)}
    versions = dict.fromkeys(range(3), both)
    _, state = how.merged(both, [arrival(0, opened(layer=[1.0], other=[1.0]))], versions.__getitem__, State())
    mean, state = how.merged(both, [arrival(0, opened(other=[1.0]), base=1)], versions.__getitem__, state)
    assert list(mean) == ["other"]
    assert len(state.vectors) == 1


@pytest.mark.parametrize("kind", ["delta", "cache", "mix"])
def test_what_the_strategy_remembers_is_left_alone(kind: str) -> None:
    mine = State(values={"steps": 3}, vectors={"layer": np.ones(1, np.float32)})
    current = model(1.0)
    _, state = merging(kind).merged(current, [arrival(0, opened(layer=[1.0]))], lambda _: current, mine)
    assert own_part(state) == mine
    stepped = with_own_part(state, State(values={"steps": 4}))
    assert own_part(stepped) == State(values={"steps": 4})
    # What merging remembers survives a strategy that returns a state of its own making.
    with pytest.raises(RoundError, match="merged already"):
        merging(kind).merged(current, [arrival(0, opened(layer=[1.0]))], lambda _: current, through_disk(stepped))


@pytest.mark.parametrize("kind", ["delta", "cache", "mix"])
def test_nothing_is_used_twice(kind: str) -> None:
    current, how = model(1.0), merging(kind)
    first = arrival(0, opened(layer=[1.0]), base=4, staleness=1, share=0.5)
    with pytest.raises(RoundError, match="once in a flush"):
        mean_of(how, current, [first, first], {4: current})
    _, state = how.merged(current, [first], lambda _: current, State())
    for base in (4, 3):  # the same again, or something older
        again = arrival(0, opened(layer=[9.0]), base=base, staleness=2, share=0.5)
        with pytest.raises(RoundError, match="merged already"):
            how.merged(current, [again], lambda _: current, through_disk(state))
    for later in (arrival(0, first.change, base=5, share=0.5), arrival(1, first.change, base=4, share=0.5)):
        how.merged(current, [later], lambda _: current, through_disk(state))


def test_arrivals_are_not_changed_by_merging() -> None:
    change, current = opened(layer=[1.0, 2.0]), model(0.5, 0.5)
    arrivals = [arrival(0, change, share=0.5), arrival(1, opened(layer=[3.0, 3.0]), share=0.5)]
    for kind in ("delta", "cache", "mix"):
        mean_of(merging(kind), current, arrivals)
        assert change["layer"].mean.tolist() == [1.0, 2.0]
        assert current["layer"].tolist() == [0.5, 0.5]


def test_what_does_not_fit_is_refused() -> None:
    current = model(0.0)
    with pytest.raises(RoundError, match="same version"):
        mean_of(merging(), current, [arrival(0, opened()), arrival(1, opened(), base=1)])
    with pytest.raises(RoundError, match="no circle has arrived"):
        mean_of(merging(), current, [])
    with pytest.raises(RoundError, match="which the model does not have"):
        mean_of(merging(), current, [arrival(0, opened(tail=[1.0]))])
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(RoundError, match="share"):
            arrival(0, opened(), share=share)
    for weight in (0.0, 1.5, float("nan")):
        with pytest.raises(RoundError, match="weight"):
            arrival(0, opened(), weight=weight)
    with pytest.raises(RoundError, match="counted from 0"):
        arrival(0, opened(), staleness=-1)
    with pytest.raises(SettingsError, match="beyond it"):
        merging("mix", rate=1.5)
    with pytest.raises(SettingsError, match="has no rate"):
        merging("cache", rate=0.5)
    with pytest.raises(SettingsError, match="no merging 'caches'"):
        merging("caches")
    with pytest.raises(SettingsError, match="no discount 'half'"):
        merging(discount="half")
    for wrong in ({"rate": 0.0}, {"largest": float("inf")}, {"largest": float("nan")}):
        with pytest.raises(SettingsError, match="positive, finite"):
            merging("delta", **wrong)


# --- strategies -------------------------------------------------------------------------------------------------


def test_a_strategy_merges_as_the_study_says() -> None:
    rounds = MergeSettings(kind="delta", discount="none", rate=0.5)
    for name in ("fedavg", "fedper", "aifed", "fedopt"):
        found = strategies.create(name, {}).merging(rounds, largest=2.0)
        assert found == Merging(kind="delta", discount="none", rate=0.5, largest=2.0)


def test_baselines_that_are_defined_by_how_they_merge_do_so_whatever_the_study_says() -> None:
    rounds = MergeSettings()
    asynchronous = strategies.create("fedasync", {"discount": "none"}).merging(rounds, largest=2.0)
    assert asynchronous == Merging(kind="mix", discount="none", rate=0.6, largest=2.0)
    buffered = strategies.create("fedbuff", {"server_rate": 3.0}).merging(rounds, largest=2.0)
    assert buffered == Merging(kind="delta", discount="root", rate=3.0, largest=2.0)
    for name in ("fedasync", "fedbuff"):
        assert any("plain FedAvg" in said for said in strategies.create(name, {}).explain())


@pytest.mark.parametrize("name", ["fedamp", "fedcca"])
def test_combinations_cannot_be_merged(name: str) -> None:
    with pytest.raises(SettingsError, match="only sums can be merged"):
        strategies.create(name, {}).merging(MergeSettings(), largest=1.0)
