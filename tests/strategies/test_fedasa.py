"""FedASA: alignment, aggregation by cells and losses by hand; what is chosen, shipped, shared and kept."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fl import strategies, tasks
from secure_fl.aggregation import Sum
from secure_fl.blocks import Blocks, BlockShape, Layout, TensorShape
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum
from secure_fl.encoding.update import decode_sums, encode_update
from secure_fl.errors import SettingsError
from secure_fl.randomness import KeyStream
from secure_fl.strategies.base import State
from secure_fl.strategies.fedasa import INPUTS, TARGETS, FedASA, distances, entropy, literal_loss, outputs
from secure_fl.strategies.site import Site
from secure_fl.tasks.base import LocalData, Source, Split, Task, TaskSettings
from secure_fl.tasks.model_blocks import initial_blocks


class Tower(Task):
    """Four inputs, three cells that keep the shape, two classes."""

    kind: ClassVar[Literal["classification", "regression"]] = "classification"

    def model(self) -> nn.Module:
        cells = {f"cell{number}": nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for number in (1, 2, 3)}
        return nn.Sequential(OrderedDict(stem=nn.Linear(4, 4), **cells, head=nn.Linear(4, 2)))

    def load(self, source: Source) -> LocalData:
        raise AssertionError

    def cells(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return names[:-1]

    def auxiliary(self, seed: int) -> Split:
        return rows(30, seed=100 + seed)


class Bare(Tower):
    """Cells, but nothing to compare them on."""

    auxiliary = Task.auxiliary  # type: ignore[assignment]


def rows(count: int, *, seed: int) -> Split:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return Split(inputs=x, targets=(x[:, 0] > 0).long())


TOWER = Tower(TaskSettings())
LAYOUT, INITIAL = initial_blocks(TOWER, 0)
CELLS = ("stem", "cell1", "cell2", "cell3")


def create(**settings: Any) -> FedASA:
    strategy = strategies.create("fedasa", {"auxiliary_epochs": 2, **settings})
    assert isinstance(strategy, FedASA)
    return strategy


def site(
    strategy: FedASA,
    *,
    received: Blocks | None = None,
    personal: Blocks | None = None,
    state: dict[str, int] | None = None,
    seed: int = 1,
    budget: int | None = None,
) -> Site:
    data = rows(40, seed=seed)
    return Site(
        task=TOWER,
        data=LocalData(train=data, test=data),
        training=strategy.settings,
        initial=INITIAL,
        received=received or {name: INITIAL[name] for name in CELLS},
        personal=personal or {},
        combination={},
        seed=seed,
        shipped=strategy.ship(TOWER, 0),
        budget=budget,
        state=state,
    )


# --- (8) --------------------------------------------------------------------------------------------------------


def test_the_distance_is_squared_summed_over_features_and_averaged_over_samples() -> None:
    auxiliary = torch.tensor([[1.0, 0, 2], [0, 1, 1]])
    features = [
        torch.tensor([[0.0, 0, 2], [0, 2, 1]]),
        torch.tensor([[1.0, 0.5, 2], [0, 1, 0.5]]),
        torch.tensor([[1.0, 0, 2.5], [0.5, 1, 1]]),
    ]
    assert distances(auxiliary, features) == [1.0, 0.25, 0.25]


class _Given(Tower):
    """A model whose features are those of the vector above, after 0, 1 and 2 cells."""

    def model(self) -> nn.Module:
        after: list[list[list[float]]] = [
            [[0.0, 0, 2], [0, 2, 1]],
            [[1.0, 0.5, 2], [0, 1, 0.5]],
            [[1.0, 0, 2.5], [0.5, 1, 1]],
        ]
        cells = {name: _Says(values) for name, values in zip(("stem", "cell1", "cell2"), after, strict=True)}
        return nn.Sequential(OrderedDict(**cells, head=nn.Linear(3, 2)))


class _Says(nn.Module):
    def __init__(self, values: list[list[float]]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, _: Tensor) -> Tensor:
        return self.values


@pytest.mark.parametrize(
    ("settings", "budget", "depth"),
    [
        ({}, None, 1),  # of equals, the smaller
        ({"depths": [0, 2]}, None, 2),
        ({"budget": 6}, None, 0),  # a cell has six parameters here
        ({"budget": 12}, None, 1),
        ({}, 6, 0),
        ({"budget": 12}, 6, 0),
        ({}, 1, 0),  # less than anything: the least there is, which the site's policy then refuses
    ],
)
def test_of_the_depths_a_site_can_afford_the_nearest(settings: dict[str, Any], budget: int | None, depth: int) -> None:
    task, strategy = _Given(TaskSettings()), create(**settings)
    data = rows(2, seed=0)
    here = Site(
        task=task, data=LocalData(train=data, test=data), training=strategy.settings,
        initial={}, received={}, personal={}, combination={}, seed=0, budget=budget,
        shipped={INPUTS: data.inputs.numpy(), TARGETS: np.array([[1, 0, 2], [0, 1, 1]], np.float32)},
    )  # fmt: skip
    assert strategy.align(here) == depth
    assert here.traces["distance"] == {"0": 1.0, "1": 0.25, "2": 0.25}


@pytest.mark.parametrize("seed", range(6))
def test_the_site_chooses_what_a_server_with_its_model_would_choose(seed: int) -> None:
    strategy = create(epochs=3 + seed, learning_rate=0.2)
    here = site(strategy, seed=seed)
    strategy.fit(here)
    # As in the paper: the server has the site's whole model and runs it cell by cell.
    shipped = {name: torch.tensor(values) for name, values in here.shipped.items()}
    modules = dict(here.model.eval().named_children())
    x, gaps = shipped[INPUTS], []
    with torch.no_grad():
        for cell in CELLS:
            x = modules[cell](x)
            gaps.append(float(((shipped[TARGETS] - x) ** 2).sum() / len(x)))
    assert here.traces["depth"] == {"m*": float(np.argmin(gaps))}
    assert list(here.traces["distance"].values()) == pytest.approx(gaps, rel=1e-5)


def test_looking_at_features_leaves_the_model_as_it_was() -> None:
    here = site(create())
    here.model.train()
    before = LAYOUT.digest(here.blocks())
    found = outputs(TOWER, here.model, CELLS, torch.zeros(5, 4))
    assert [tuple(features.shape) for features in found] == [(5, 4)] * 4
    assert here.model.training
    assert LAYOUT.digest(here.blocks()) == before
    assert not any(module._forward_hooks for module in here.model.modules())


# --- (9) --------------------------------------------------------------------------------------------------------


def test_each_cell_is_averaged_over_those_who_share_it() -> None:
    # N = (800, 400, 400), m* = (2, 0, 1): weights of 64, 32 and 32 units, and models of one number per cell.
    strategy = create()
    models = ({"stem": 1.0, "cell1": 1.5, "cell2": 0.7}, {"stem": 2.0}, {"stem": 4.0, "cell1": 3.6})
    current = {name: np.array([0.25], np.float32) for name in CELLS}
    one = (TensorShape(name="one", shape=(1,)),)
    layout = Layout(tuple(BlockShape(name=name, tensors=one) for name in CELLS))
    codec, stream = FixedPoint(bits=24, clip=8.0), KeyStream(bytes(32))
    sums: dict[str, BlockSum] = {}
    for model, weight in zip(models, (64, 32, 32), strict=True):
        change = {name: np.array([value], np.float32) - current[name] for name, value in model.items()}
        encoded, clipped = encode_update(change, layout=layout, codec=codec, weight=weight, stream=stream)
        assert not clipped
        for name, integers in encoded.items():
            so_far = sums.get(name, BlockSum(total=np.zeros(1, np.int64), weight=0, contributors=0))
            sums[name] = BlockSum(
                total=so_far.total + integers, weight=so_far.weight + weight, contributors=so_far.contributors + 1
            )
    after, _ = strategy.step(current, decode_sums(sums, codec), State())
    assert [float(after[name][0]) for name in CELLS] == pytest.approx([2.0, 2.2, 0.7, 0.25], abs=1e-5)


# --- losses -----------------------------------------------------------------------------------------------------

LOGITS, LABEL = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0])


def test_losses() -> None:
    assert LOGITS.softmax(1)[0].tolist() == pytest.approx([0.665241, 0.244728, 0.090031], abs=5e-7)
    assert float(entropy(LOGITS)) == pytest.approx(0.832396, abs=5e-7)
    assert float(functional.cross_entropy(LOGITS, LABEL)) == pytest.approx(0.407606, abs=5e-7)
    assert float(create(entropy=0.0).loss(LOGITS, LABEL)) == pytest.approx(0.407606, abs=5e-7)
    assert float(create().loss(LOGITS, LABEL)) == pytest.approx(0.490846, abs=5e-7)
    assert float(create(literal_loss=True).loss(LOGITS, LABEL)) == pytest.approx(3.096009, abs=5e-6)


def test_a_batchs_loss_is_the_mean_of_its_rows() -> None:
    logits, labels = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])
    for loss in (create().loss, literal_loss):
        each = [float(loss(logits[i : i + 1], labels[i : i + 1])) for i in range(5)]
        assert float(loss(logits, labels)) == pytest.approx(np.mean(each), rel=1e-5)


def test_a_loss_that_is_no_number_ends_nothing() -> None:
    strategy = create()
    here = site(strategy, received={name: INITIAL[name] * np.float32(np.inf) for name in CELLS})
    assert set(strategy.fit(here)) <= set(CELLS)
    assert here.skipped


# --- rounds -----------------------------------------------------------------------------------------------------


def test_only_as_many_cells_leave_as_were_chosen_and_the_rest_is_kept() -> None:
    for depth in range(4):
        strategy = create(depths=[depth])
        here = site(strategy)
        change = strategy.fit(here)
        shared = CELLS[: depth + 1]
        assert tuple(change) == shared
        # Hidden, the others leave as zeros, and nothing else is different.
        everything = create(depths=[depth], membership="hidden").fit(site(strategy))
        assert tuple(everything) == CELLS
        assert all(np.array_equal(everything[name], change.get(name, 0 * everything[name])) for name in CELLS)
        assert set(here.personal) == {*LAYOUT.names} - {*shared}
        assert here.state == {"depth": depth, "rounds taken": 1}
        # The next round samples what is shared from the common blocks, and nothing else.
        other = {name: vector + np.float32(0.5) for name, vector in here.received.items()}
        after = strategy.inference(site(strategy, received=other, personal=here.personal, state=here.state))
        for name in LAYOUT.names:
            expected = other[name] if name in shared else here.personal[name]
            assert after[name].tobytes() == expected.tobytes()


def test_a_site_chooses_in_its_first_rounds_only() -> None:
    strategy = create(alignment_rounds=2, learning_rate=0.1)
    personal: Blocks = {}
    state: dict[str, int] = {}
    noted = []
    for _ in range(4):
        here = site(strategy, personal=personal, state=state)
        strategy.fit(here)
        personal, state = here.personal, here.state
        noted.append("distance" in here.traces)
        assert "depth" in here.traces
        assert {*here.traces} <= {*strategy.notes}
    assert noted == [True, True, False, False]
    assert state["rounds taken"] == 4


def test_what_is_shared_and_what_is_not_have_rates_of_their_own() -> None:
    # One step over all rows: halving a rate halves the step, and the gradients are the same.
    plain = {"epochs": 1, "batch_size": 100, "momentum": 0.0, "learning_rate": 0.2, "depths": [1]}
    moved = []
    for rate in (None, 0.1):
        strategy = create(**plain, personal_rate=rate)
        personal = {name: INITIAL[name] for name in ("cell2", "cell3", "head")}
        here = site(strategy, personal=personal, state={"depth": 1, "rounds taken": 1})
        change = strategy.fit(here)
        moved.append((change, {name: here.personal[name] - INITIAL[name] for name in ("cell2", "cell3", "head")}))
    (shared, own), (same, slower) = moved
    for name in shared:
        assert shared[name] == pytest.approx(same[name], abs=1e-7)
    for name in own:
        assert own[name] == pytest.approx(2 * slower[name], abs=1e-6)


# --- what is shipped --------------------------------------------------------------------------------------------


def test_inputs_are_shipped_with_what_the_auxiliary_model_makes_of_them() -> None:
    strategy = create(auxiliary_samples=7, auxiliary_cells=1)
    shipped = strategy.ship(TOWER, 3)
    assert tuple(shipped) == strategy.shipped
    assert [values.shape for values in shipped.values()] == [(7, 4), (7, 4)]
    again = strategy.ship(TOWER, 3)
    assert all(shipped[name].tobytes() == again[name].tobytes() for name in shipped)
    # Untrained, it is the study's common start.
    untrained = create(auxiliary_epochs=0, auxiliary_cells=1).ship(TOWER, 0)
    model = TOWER.model()
    model.load_state_dict({name.replace("/", "."): torch.tensor(v) for name, v in LAYOUT.tensors(INITIAL).items()})
    expected = outputs(TOWER, model, CELLS, torch.tensor(untrained[INPUTS]))[1]
    assert untrained[TARGETS] == pytest.approx(expected.numpy(), abs=1e-6)
    # No more than there are.
    assert len(create(auxiliary_samples=1000).ship(TOWER, 0)[INPUTS]) == 30


def test_shipping_draws_nothing_from_the_processs_generator() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    create().ship(TOWER, 0)
    assert torch.equal(torch.get_rng_state(), before)


# --- tasks and settings -----------------------------------------------------------------------------------------


def test_the_cells_are_asked_for_and_nothing_else() -> None:
    assert create().request_for(TOWER, LAYOUT) == Sum(blocks=CELLS)
    assert not create().has_global_model


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (tasks.create("digits", {}), {}, "has none"),
        (tasks.create("bearings", {}), {}, "has none"),
        (Bare(TaskSettings()), {}, "auxiliary data"),
        (TOWER, {"depths": [0, 4]}, "count cells"),
        (TOWER, {"depths": [-1]}, "count cells"),
        (TOWER, {"auxiliary_cells": 4}, "count cells"),
    ],
)
def test_a_task_without_cells_or_auxiliary_data_is_refused(task: Task, settings: dict[str, Any], message: str) -> None:
    layout, _ = initial_blocks(task, 0)
    with pytest.raises(SettingsError, match=message):
        create(**settings).request_for(task, layout)


def test_hidden_membership_costs_what_all_cells_cost() -> None:
    """An exception that sites have to agree to, and no way to save bytes."""
    hidden = create(membership="hidden", budget=LAYOUT.select(CELLS).size)
    assert hidden.request_for(TOWER, LAYOUT) == Sum(blocks=CELLS)
    assert hidden.exceptions == ("hidden-membership",)
    assert "EXCEPTION" in hidden.explain()[0]
    assert create().exceptions == ()
    assert "EXCEPTION" not in create().explain()[0]
    with pytest.raises(SettingsError, match=r"more than strategy\.budget"):
        create(membership="hidden", budget=LAYOUT.select(CELLS).size - 1).request_for(TOWER, LAYOUT)
    with pytest.raises(SettingsError, match=r"^strategy\.membership"):
        create(membership="secret")


def test_the_papers_network_has_the_papers_numbers() -> None:
    task = tasks.create("bearings", {"network": "cells"})
    layout, _ = initial_blocks(task, 0)
    cells = task.cells(layout.names)
    assert layout.size == 323_434
    assert [layout[name].size for name in layout.names] == [10_464, *[12_352] * 4, 262_272, 1_290]
    sizes = [layout.select(cells[: depth + 1]).size for depth in range(5)]
    assert sizes == [10_464, 22_816, 35_168, 47_520, 59_872]
    assert 1 - sizes[-1] / layout.size == pytest.approx(0.8149, abs=5e-5)  # −81.49 %, the worst case
    features = outputs(task, task.model(), cells, torch.zeros(3, 512))
    assert {tuple(out.shape) for out in features} == {(3, 2048)}
