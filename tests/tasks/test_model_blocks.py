"""Between torch and flat vectors nothing is lost, and what cannot travel is refused by name."""

from __future__ import annotations

import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from secure_fl.blocks import zeros
from secure_fl.errors import LayoutMismatchError
from secure_fl.tasks.base import LocalData, Source, Task, TaskSettings
from secure_fl.tasks.model_blocks import initial_blocks, layout_of, read_blocks, write_blocks


def net() -> nn.Sequential:
    features = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    return nn.Sequential(OrderedDict(features=features, act=nn.ReLU(), head=nn.Linear(4, 2)))


class Net(Task):
    kind = "classification"

    def __init__(self, build: Callable[[], nn.Module] = net) -> None:
        super().__init__(TaskSettings())
        self.build = build

    def model(self) -> nn.Module:
        return self.build()

    def load(self, source: Source) -> LocalData:
        raise NotImplementedError


def test_a_layout_has_parameters_and_float_buffers_under_their_state_dict_names() -> None:
    layout = layout_of(Net(), net())
    assert layout.names == ("features", "head")
    assert [(t.name, t.shape) for t in layout["features"].tensors] == [
        ("0.weight", (4, 3)),
        ("0.bias", (4,)),
        ("1.weight", (4,)),
        ("1.bias", (4,)),
        ("1.running_mean", (4,)),
        ("1.running_var", (4,)),
    ]


def test_values_survive_the_round_trip_and_counters_stay() -> None:
    task, source, target = Net(), net(), net()
    source(torch.randn(8, 3))
    write_blocks(task, target, read_blocks(task, source))
    theirs = target.state_dict()
    counter = "features.1.num_batches_tracked"
    assert all(torch.equal(v, theirs[k]) for k, v in source.state_dict().items() if k != counter)
    assert int(theirs[counter]) == 0


def test_read_blocks_are_copies() -> None:
    task, model = Net(), net()
    blocks = read_blocks(task, model)
    for vector in blocks.values():
        vector[:] = 7
    assert not any((vector == 7).all() for vector in read_blocks(task, model).values())


def test_a_partial_write_leaves_the_other_blocks() -> None:
    task, model = Net(), net()
    before, nothing = read_blocks(task, model), zeros(layout_of(task, model))
    write_blocks(task, model, {"head": nothing["head"]})
    write_blocks(task, model, nothing, only={"head"})
    write_blocks(task, model, {"head": nothing["head"]}, only=("features", "head"))
    after = read_blocks(task, model)
    assert np.array_equal(after["features"], before["features"])
    assert not after["head"].any()


def test_received_blocks_may_be_read_only() -> None:
    task, model = Net(), net()
    layout, blocks = initial_blocks(task, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_blocks(task, model, layout.unflatten(layout.flatten(blocks)))
    assert layout.digest(read_blocks(task, model)) == layout.digest(blocks)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tail": np.zeros(10, np.float32)},
        {"head": np.zeros(9, np.float32)},
        {"head": np.zeros((5, 2), np.float32)},
        {"head": np.zeros(10, np.float64)},
    ],
)
def test_a_write_that_does_not_fit_writes_nothing(
    wrong: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]],
) -> None:
    task, model = Net(), net()
    before = read_blocks(task, model)
    with pytest.raises(LayoutMismatchError):
        write_blocks(task, model, {"features": np.zeros_like(before["features"]), **wrong})
    after = read_blocks(task, model)
    assert all(np.array_equal(after[name], before[name]) for name in before)


def test_only_names_blocks_of_the_model() -> None:
    with pytest.raises(LayoutMismatchError, match="no block 'tail'"):
        write_blocks(Net(), net(), {}, only=["tail"])


def test_initial_values_come_from_the_seed_and_leave_the_caller_random_state() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    layout, first = initial_blocks(Net(), 1)
    assert torch.equal(torch.rand(1), expected)
    assert layout.digest(first) == layout.digest(initial_blocks(Net(), 1)[1])
    assert layout.digest(first) != layout.digest(initial_blocks(Net(), 2)[1])


# --- what cannot travel -----------------------------------------------------------------------------------


def tied_between_blocks() -> nn.Module:
    encode, decode = nn.Linear(3, 3), nn.Linear(3, 3)
    decode.weight = encode.weight
    return nn.Sequential(OrderedDict(encode=encode, decode=decode))


def same_module_twice() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(OrderedDict(encode=layer, decode=layer))


@pytest.mark.parametrize("build", [tied_between_blocks, same_module_twice])
def test_tied_parameters_are_refused_by_name(build: Callable[[], nn.Module]) -> None:
    with pytest.raises(LayoutMismatchError, match=r"'encode\.weight' and 'decode\.weight' are one tensor"):
        layout_of(Net(build), build())


class Overlapping(Net):
    def blocks(self, model: nn.Module) -> Mapping[str, nn.Module]:
        return {"all": model, "head": model.get_submodule("head")}


def test_overlapping_blocks_are_refused_by_name() -> None:
    with pytest.raises(LayoutMismatchError, match=r"'head\.weight' is in blocks 'all' and 'head'"):
        layout_of(Overlapping(), net())


class Loose(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(2, 2)


def test_a_parameter_outside_every_block_is_refused_by_name() -> None:
    with pytest.raises(LayoutMismatchError, match="'scale' is in no block"):
        layout_of(Net(Loose), Loose())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_only_float32_travels(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    model = nn.Sequential(OrderedDict(head=nn.Linear(2, 2, dtype=dtype)))
    with pytest.raises(LayoutMismatchError, match=f"'head/weight' is {name}"):
        layout_of(Net(), model)


def test_a_buffer_of_another_precision_is_refused_too() -> None:
    norm = nn.BatchNorm1d(4, affine=False, dtype=torch.float64)
    with pytest.raises(LayoutMismatchError, match="'norm/running_mean' is float64"):
        layout_of(Net(), nn.Sequential(OrderedDict(norm=norm)))


def test_studies_that_start_at_the_same_time_each_get_the_values_of_their_own_seed() -> None:
    def slow() -> nn.Module:
        first = nn.Linear(3, 4)
        time.sleep(0.01)  # Another thread has every chance to draw from the same generator.
        return nn.Sequential(OrderedDict(features=first, head=nn.Linear(4, 2)))

    seeds = list(range(8))
    alone = [initial_blocks(Net(slow), seed)[1] for seed in seeds]
    with ThreadPoolExecutor(len(seeds)) as pool:
        together = [blocks for _, blocks in pool.map(lambda seed: initial_blocks(Net(slow), seed), seeds)]
    for ours, theirs in zip(alone, together, strict=True):
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
