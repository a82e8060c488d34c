"""The strategies on a task that is done by hand beside them."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest

from secure_fl import strategies
from secure_fl.blocks import Blocks, Vector
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum
from secure_fl.encoding.update import decode_sums, encode_update
from secure_fl.errors import LayoutMismatchError, UnknownNameError
from secure_fl.randomness import KeyStream
from secure_fl.strategies.base import Aggregate, BlockMean, State, Strategy, Sum
from tests.strategies.regression import INITIAL, LAYOUT, Weights, site, split

RATE = 0.125


def create(name: str, *, epochs: int = 1, **settings: float | str) -> Strategy:
    """A strategy that takes one plain gradient step per epoch, over all rows."""
    plain = {"epochs": epochs, "batch_size": 100, "learning_rate": RATE, "momentum": 0.0}
    return strategies.create(name, {**plain, **settings})


def flat(blocks: Blocks) -> list[float]:
    return [float(value) for name in ("body", "head") for value in blocks[name]]


def after(start: Blocks, *steps: float) -> list[float]:
    """start + each step, in float64."""
    return [a + b for a, b in zip(flat(start), steps, strict=True)]


# --- FedAvg -----------------------------------------------------------------------------------------------------


def test_fedavg_returns_one_gradient_step_for_every_block() -> None:
    strategy = create("fedavg")
    change = strategy.fit(site(strategy, received=INITIAL))
    assert tuple(change) == LAYOUT.names
    start = Weights.of(INITIAL)
    expected = [-RATE * g for g in start.gradient().flat()]
    assert flat(change) == pytest.approx(expected, abs=1e-6)


def test_fedavg_starts_from_what_it_received() -> None:
    strategy = create("fedavg")
    received = {name: vector + np.float32(0.5) for name, vector in INITIAL.items()}
    change = strategy.fit(site(strategy, received=received))
    expected = [-RATE * g for g in Weights.of(received).gradient().flat()]
    assert flat(change) == pytest.approx(expected, abs=1e-6)


def test_fedavg_asks_for_the_sum_of_all_blocks_and_keeps_nothing() -> None:
    strategy = create("fedavg")
    assert strategy.request(LAYOUT, ("head",)) == Sum(blocks=("body", "head"))
    here = site(strategy, received=INITIAL)
    strategy.fit(here)
    assert here.personal == {}
    assert strategy.has_global_model


# --- FedProx ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.0, 0.1, 3.0])
def test_fedprox_follows_the_proximal_gradient(mu: float) -> None:
    # At w_t the pull is zero; so two steps, the second of which is −η(∇F(w) + μ(w − w_t)).
    strategy = create("fedprox", epochs=2, mu=mu)
    start = Weights.of(INITIAL)
    first = start.plus(start.gradient(), -RATE)
    pull = first.plus(start, -1.0)
    second = first.plus(first.gradient().plus(pull, mu), -RATE)
    change = strategy.fit(site(strategy, received=INITIAL))
    assert after(INITIAL, *flat(change)) == pytest.approx(second.flat(), abs=1e-6)


def test_the_pull_is_felt() -> None:
    free, held = create("fedprox", epochs=2, mu=0.0), create("fedprox", epochs=2, mu=3.0)
    assert flat(free.fit(site(free, received=INITIAL))) != pytest.approx(
        flat(held.fit(site(held, received=INITIAL))), abs=1e-4
    )


def test_fedprox_without_a_pull_is_fedavg_bit_for_bit() -> None:
    prox, avg = create("fedprox", epochs=3, mu=0.0), create("fedavg", epochs=3)
    ours, theirs = prox.fit(site(prox, received=INITIAL)), avg.fit(site(avg, received=INITIAL))
    assert LAYOUT.digest(ours) == LAYOUT.digest(theirs)


# --- FedPer -----------------------------------------------------------------------------------------------------


def body_of(blocks: Blocks) -> dict[str, Vector]:
    return {"body": blocks["body"]}


def test_fedper_asks_for_the_body_and_returns_no_head() -> None:
    strategy = create("fedper")
    assert strategy.request(LAYOUT, ("head",)) == Sum(blocks=("body",))
    assert not strategy.has_global_model
    here = site(strategy, received=body_of(INITIAL))
    change = strategy.fit(here)
    assert set(change) == {"body"}
    assert set(here.personal) == {"head"}


def test_fedper_trains_both_and_keeps_the_head() -> None:
    strategy = create("fedper")
    here = site(strategy, received=body_of(INITIAL))
    change = strategy.fit(here)
    stepped = Weights.of(INITIAL).plus(Weights.of(INITIAL).gradient(), -RATE)
    assert here.personal["head"][0] == pytest.approx(stepped.head, abs=1e-6)
    assert (INITIAL["body"] + change["body"]).tolist() == pytest.approx(stepped.body.tolist(), abs=1e-6)


def test_fedper_goes_on_from_its_own_head() -> None:
    strategy = create("fedper")
    mine = {"head": np.array([2.5], np.float32)}
    here = site(strategy, received=body_of(INITIAL), personal=mine)
    assert strategy.inference(here)["head"] is mine["head"]
    strategy.fit(here)
    start = Weights.of({**INITIAL, **mine})
    assert here.personal["head"][0] == pytest.approx(start.plus(start.gradient(), -RATE).head, abs=1e-6)


# --- Local ------------------------------------------------------------------------------------------------------


def test_local_returns_nothing_and_goes_on_from_its_own_model() -> None:
    strategy = create("local")
    assert strategy.request(LAYOUT, ("head",)) == Sum(blocks=())
    assert not strategy.has_global_model
    weights, personal = Weights.of(INITIAL), dict[str, Vector]()
    for _ in range(3):
        here = site(strategy, received={}, personal=personal)
        assert strategy.fit(here) == {}
        personal = dict(here.personal)
        weights = weights.plus(weights.gradient(), -RATE)
        assert flat(personal) == pytest.approx(weights.flat(), abs=1e-5)


# --- what all of them do ----------------------------------------------------------------------------------------

EVERY = strategies.known()


@pytest.mark.parametrize("name", sorted({*EVERY} - {"fedasa"}))  # which needs cells, and has this test with them
def test_a_loss_that_is_no_number_changes_nothing_and_ends_nothing(name: str) -> None:
    strategy = create(name)
    received = {block: INITIAL[block] for block in strategy.request(LAYOUT, ("head",)).blocks}
    for poison in (np.nan, np.inf):
        here = site(strategy, received=received, train=split(np.full((4, 1), poison)))
        assert not any(vector.any() for vector in strategy.fit(here).values())
        assert here.skipped
        for block, vector in here.personal.items():
            start = INITIAL.get(block.partition(":")[0])  # fedcca keeps two models: `body: phi` is another body
            assert np.isfinite(vector).all()
            assert start is None or vector.tolist() == start.tolist()


def test_training_that_diverges_passes_over_what_is_no_number() -> None:
    strategy = create("fedavg", epochs=10, learning_rate=1e15)
    here = site(strategy, received=INITIAL)
    change = strategy.fit(here)
    assert here.skipped
    assert any(np.abs(vector).max() > 1e10 for vector in change.values())  # It did diverge.


def test_a_gradient_that_is_no_number_is_not_stepped_along() -> None:
    """The loss is finite, its slope is not: √x at 0."""
    strategy = create("fedavg")
    here = site(strategy, received=INITIAL)
    here.load(INITIAL)
    here.train(epochs=1, loss=lambda outputs, _: (outputs * 0).abs().sqrt().sum())
    assert here.skipped
    assert all((here.blocks()[name] == INITIAL[name]).all() for name in INITIAL)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_repeats_with_its_seed(optimizer: str) -> None:
    strategy = create("fedavg", epochs=3, batch_size=1, optimizer=optimizer)
    one, same, other = (strategy.fit(site(strategy, received=INITIAL, seed=seed)) for seed in (1, 1, 2))
    assert LAYOUT.digest(one) == LAYOUT.digest(same)
    assert LAYOUT.digest(one) != LAYOUT.digest(other)  # another order of the rows


def test_adam_takes_its_first_step_in_every_coordinate_alike() -> None:
    # At t = 1 Adam's step is η·g/(|g| + ε): the sign of the gradient.
    strategy = create("fedavg", optimizer="adam")
    expected = [-RATE * np.sign(g) for g in Weights.of(INITIAL).gradient().flat()]
    assert flat(strategy.fit(site(strategy, received=INITIAL))) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_what_leaves_and_what_stays_is_said(name: str) -> None:
    said = create(name).explain()
    assert said[0].startswith("Leaves: ")
    assert any(sentence.startswith("Stays: ") for sentence in said)


def test_a_setting_of_one_strategy_is_not_one_of_another() -> None:
    assert create("fedprox", mu=0.5)
    with pytest.raises(UnknownNameError, match=r"^unknown key 'strategy\.mu'"):
        create("fedavg", mu=0.5)


# --- the coordinator half ---------------------------------------------------------------------------------------


def aggregate(**means: list[float]) -> Aggregate:
    return Aggregate({name: BlockMean(mean=np.array(mean, np.float32), contributors=3) for name, mean in means.items()})


@pytest.mark.parametrize("name", sorted({*EVERY} - {"fedopt"}))  # whose step is Adam's
def test_a_step_adds_the_mean_and_keeps_what_was_not_opened(name: str) -> None:
    before = LAYOUT.digest(INITIAL)
    stepped, _ = create(name).step(INITIAL, aggregate(body=[0.5, -0.25]), State())
    LAYOUT.check(stepped)
    assert stepped["body"].tolist() == (INITIAL["body"] + np.array([0.5, -0.25], np.float32)).tolist()
    assert stepped["head"].tolist() == INITIAL["head"].tolist()
    assert LAYOUT.digest(INITIAL) == before


def test_a_step_without_anything_opened_changes_nothing() -> None:
    assert LAYOUT.digest(create("fedavg").step(INITIAL, aggregate(), State())[0]) == LAYOUT.digest(INITIAL)


def test_an_aggregate_is_a_mapping_of_means() -> None:
    both = aggregate(body=[1.0, 2.0], head=[3.0])
    assert (list(both), len(both), both["head"].contributors) == (["body", "head"], 2, 3)
    assert "tail" not in both


# --- between integers and floats --------------------------------------------------------------------------------

CODEC = FixedPoint(bits=16, clip=1.0)


def encode(update: Blocks) -> tuple[dict[str, list[int]], int]:
    blocks, clipped = encode_update(update, layout=LAYOUT, codec=CODEC, weight=64, stream=KeyStream(bytes(32)))
    return {name: values.tolist() for name, values in blocks.items()}, clipped


def test_an_update_is_encoded_in_the_order_of_the_layout_and_clipping_is_counted() -> None:
    update = {"head": np.array([2.0], np.float32), "body": np.array([1.0, -3.0], np.float32)}
    blocks, clipped = encode(update)
    assert list(blocks) == ["body", "head"]
    assert blocks == {"body": [32767, -32767], "head": [32767]}
    assert clipped == 2


def test_an_update_of_unknown_or_misshapen_blocks_is_refused() -> None:
    for update in (
        {"tail": np.zeros(1, np.float32)},
        {"body": np.zeros(3, np.float32)},
        {"body": np.zeros(2, np.float64)},
    ):
        with pytest.raises(LayoutMismatchError):
            encode(update)  # type: ignore[arg-type]


def test_opened_sums_become_means() -> None:
    sums = {"head": BlockSum(total=np.array([3 * 32767 // 3]), weight=3 * 64, contributors=3)}
    decoded = decode_sums(sums, CODEC)
    assert list(decoded) == ["head"]
    assert decoded["head"].mean.tolist() == pytest.approx([1 / 3])
    assert decoded["head"].contributors == 3


def test_the_example_of_the_contract_works() -> None:
    code = textwrap.dedent((Strategy.__doc__ or "").partition("::\n")[2].partition("    Where to find")[0])
    found: dict[str, Any] = {"Strategy": Strategy, "Sum": Sum}
    exec(code, found)  # noqa: S102
    strategy: Strategy = found["KeepHead"](Strategy.Settings())
    assert strategy.request(LAYOUT, ("head",)) == Sum(blocks=("body",))
    here = site(strategy, received={"body": INITIAL["body"]})
    assert tuple(strategy.fit(here)) == ("body",)
    assert tuple(here.personal) == ("head",)
    assert len(strategy.explain()) == 2
