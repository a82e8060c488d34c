"""FedAdam: its steps by hand, how far they can go, and that it learns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl import strategies, tasks
from secure_fl.aggregation import Aggregate, BlockMean
from secure_fl.blocks import Blocks, BlockShape, Layout, TensorShape
from secure_fl.encoding.steps import require_step
from secure_fl.errors import SettingsError, StepTooLargeError
from secure_fl.strategies.base import State, Strategy
from secure_fl.strategies.fedopt import FedOpt
from secure_fl.strategies.site import Site
from secure_fl.tasks.base import PartitionSettings, Share, Source
from secure_fl.tasks.model_blocks import initial_blocks

LAYOUT = Layout((BlockShape(name="layer", tensors=(TensorShape(name="one", shape=(2,)),)),))


def create(**own: Any) -> FedOpt:
    strategy = strategies.create("fedopt", own)
    assert isinstance(strategy, FedOpt)
    return strategy


def opened(*mean: float) -> Aggregate:
    return Aggregate({"layer": BlockMean(mean=np.array(mean, np.float32), contributors=3)})


def test_two_steps_by_hand() -> None:
    strategy = create(server_rate=0.1, beta1=0.9, beta2=0.99, tau=0.001)
    current, state = {"layer": np.array([1.0, -1.0], np.float32)}, State()
    m, v, w = np.zeros(2), np.full(2, 1e-6), np.array([1.0, -1.0])
    for mean in ([0.5, 0.0], [0.25, -0.125]):
        m = 0.9 * m + 0.1 * np.array(mean)
        v = 0.99 * v + 0.01 * np.square(mean)
        w = w + 0.1 * m / (np.sqrt(v) + 0.001)
        blocks, state = strategy.step(current, opened(*mean), state)
        current = dict(blocks)
        np.testing.assert_allclose(current["layer"], w, rtol=1e-5)
    assert set(state.vectors) == {"layer: momentum", "layer: variance"}


def test_a_block_that_was_not_opened_stays_with_all_that_is_remembered() -> None:
    strategy, current = create(), {"layer": np.ones(2, np.float32)}
    moved, state = strategy.step(current, opened(0.5, 0.5), State(values={"kept": 1}))
    again, later = strategy.step(moved, Aggregate({}), state)
    assert again["layer"].tolist() == moved["layer"].tolist()
    assert {name: vector.tolist() for name, vector in later.vectors.items()} == {
        name: vector.tolist() for name, vector in state.vectors.items()
    }
    assert later.values == {"kept": 1}


means = st.lists(st.sampled_from([0.0, 1e-30, 1e-4, 0.01, 1.0, -1.0, 100.0, -1e4]), min_size=1, max_size=40)


@settings(deadline=None, max_examples=60)
@given(means, st.sampled_from([(0.9, 0.99), (0.0, 0.5), (0.9, 0.811), (0.99, 0.9999)]), st.floats(1e-3, 10))
def test_sites_accept_every_step_whatever_the_means_are(
    sent: list[float], betas: tuple[float, float], rate: float
) -> None:
    strategy = create(server_rate=rate, beta1=betas[0], beta2=betas[1])
    current: Blocks = {"layer": np.array([3.0, -0.1], np.float32)}
    state = State()
    for mean in sent:
        after, state = strategy.step(current, opened(mean, -mean), state)
        require_step(current, after, LAYOUT, largest=strategy.largest_step(1.0))
        current = after


def test_numbers_too_small_to_be_squared_do_not_make_a_large_step() -> None:
    """Δ² is 0 in float32, so that nothing but τ is left below m: without the cut the step would be 10,000·η."""
    strategy = create(tau=1e-30)
    current = {"layer": np.zeros(2, np.float32)}
    after, _ = strategy.step(current, opened(1e-25, -1e-25), State())
    require_step(current, after, LAYOUT, largest=strategy.largest_step(1.0))
    assert after["layer"][0] > 0


def test_the_bound_is_nearly_reached_and_no_larger_than_needed() -> None:
    """Means in proportion to (β1/β2)^(t−i) are where Cauchy and Schwarz have an equality."""
    strategy = create(server_rate=1.0)
    assert strategy.largest_step(1.0) == pytest.approx(0.1 / math.sqrt(0.01 * (1 - 0.81 / 0.99)))
    current: Blocks = {"layer": np.zeros(2, np.float32)}
    state = State()
    farthest = 0.0
    for step in range(60):
        mean = 10.0 * (0.9 / 0.99) ** (60 - step)
        after, state = strategy.step(current, opened(mean, -mean), state)
        farthest = max(farthest, float(np.abs(after["layer"] - current["layer"]).max()))
        current = after
    assert 0.95 * strategy.largest_step(1.0) < farthest <= strategy.largest_step(1.0) * (1 + 1e-6)
    with pytest.raises(StepTooLargeError):
        require_step({"layer": np.zeros(2, np.float32)}, {"layer": np.full(2, farthest, np.float32)}, LAYOUT, largest=2)


def test_betas_that_bound_nothing_are_refused() -> None:
    with pytest.raises(SettingsError, match="beta1² must be below beta2"):
        create(beta1=0.99, beta2=0.9)


def test_what_the_coordinator_does_with_opened_means_costs_no_privacy() -> None:
    strategy = create(epochs=3)
    assert strategy.charged_epochs() == 3
    assert strategy.private_notes == strategies.create("fedavg", {}).private_notes


def test_it_learns_digits() -> None:
    assert accuracy_after(create(), rounds=1) < 0.7
    assert accuracy_after(create(), rounds=6) > 0.8


def accuracy_after(strategy: Strategy, *, rounds: int, sites: int = 4) -> float:
    """The common model's accuracy at sites whose labels differ, after rounds in which all take part."""
    torch.set_num_threads(1)
    task = tasks.create("digits", {})
    layout, initial = initial_blocks(task, 0)
    partition = PartitionSettings(kind="dirichlet", alpha=0.5)
    shares = [Share(index=number, of=sites, partition=partition, seed=0) for number in range(sites)]
    data = [task.load(Source(share=share)) for share in shares]
    current: Blocks = initial
    state = State()

    def site(number: int, seed: int) -> Site:
        return Site(
            task=task, data=data[number], training=strategy.settings, initial=initial, received=current,
            personal={}, combination={}, seed=seed,
        )  # fmt: skip

    for round_ in range(rounds):
        changes = [strategy.fit(site(number, 100 * round_ + number)) for number in range(sites)]
        mean = Aggregate(
            {
                name: BlockMean(mean=np.mean([change[name] for change in changes], axis=0), contributors=sites)
                for name in layout.names
            }
        )
        before = current
        current, state = strategy.step(current, mean, state)
        require_step(before, current, layout, largest=strategy.largest_step(1.0))
    scores = [site(number, 0).evaluate(current).accuracy for number in range(sites)]
    return float(np.mean([score for score in scores if score is not None]))
