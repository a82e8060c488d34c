"""Between torch modules and the flat vectors that travel.

A block carries its module's parameters and floating-point buffers. Integer buffers stay at the site:
`num_batches_tracked` counts one site's batches, so it has no meaningful average, is not a float32, and
would tell how much a site has trained. Buffers outside every block stay too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from threading import RLock

import torch
from torch import Tensor, nn

from secure_fl.blocks import Blocks, BlockShape, Layout, TensorShape, Vector
from secure_fl.errors import LayoutMismatchError
from secure_fl.tasks.base import Task
from secure_fl.tasks.own_code import made_model, named_blocks

_Modules = Mapping[str, nn.Module]
# torch's own generator is one for the whole process: whoever seeds it, and draws from it, does so alone. Simulations
# may overlap, and one must not make its first model from what another's training has left.
GENERATOR = RLock()


def layout_of(task: Task, model: nn.Module) -> Layout:
    """The blocks of `model`.

    Raises `LayoutMismatchError`, with names, unless each parameter is float32 and in exactly one block.
    """
    modules = named_blocks(task, model)
    _require_each_parameter_once(model, modules)
    return Layout(tuple(_block_shape(name, module) for name, module in modules.items()))


def read_blocks(task: Task, model: nn.Module, only: Iterable[str] | None = None) -> dict[str, Vector]:
    """A copy of the model's values, block by block, or only of the blocks `only`."""
    wanted = None if only is None else set(only)
    layout = layout_of(task, model)
    if wanted is not None:
        layout = layout.select(name for name in layout.names if name in wanted)
    values = {
        f"{block}/{name}": tensor.cpu().numpy()
        for block, module in task.blocks(model).items()
        if wanted is None or block in wanted
        for name, tensor in _tensors(module).items()
    }
    return layout.join(values)


def write_blocks(task: Task, model: nn.Module, blocks: Blocks, only: Collection[str] | None = None) -> None:
    """Write `blocks`, or those of them that `only` names, into the model; its other blocks keep their values.

    Everything is checked before anything is written: `LayoutMismatchError` leaves the model untouched.
    """
    whole = layout_of(task, model)
    layout = whole.select(blocks)
    if only is not None:
        layout = layout.select(set(blocks).intersection(whole.select(only).names))
    chosen = {name: blocks[name] for name in layout.names}
    layout.check(chosen)
    values = layout.tensors(chosen)
    modules = task.blocks(model)
    with torch.no_grad():
        for block in layout.names:
            for name, tensor in _tensors(modules[block]).items():
                # `torch.tensor` copies: received blocks are views of a message and not writable.
                tensor.copy_(torch.tensor(values[f"{block}/{name}"]))


def initial_blocks(task: Task, seed: int) -> tuple[Layout, dict[str, Vector]]:
    """The layout of the task's model and the initial values that `seed` gives it."""
    with seeded(seed):
        model = made_model(task)
    return layout_of(task, model), read_blocks(task, model)


class InitialBlocks(Mapping[str, Vector]):
    """The initial values that a seed gives a task's model. They are made when the first of them is asked for.

    A site that received every block never asks, and is spared a second model in memory.
    """

    def __init__(self, task: Task, seed: int, layout: Layout) -> None:
        self._task = task
        self._seed = seed
        self._layout = layout

    @cached_property
    def _blocks(self) -> dict[str, Vector]:
        return initial_blocks(self._task, self._seed)[1]

    def __getitem__(self, name: str) -> Vector:
        return self._blocks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.names)

    def __len__(self) -> int:
        return len(self._layout.names)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's generator at the beginning of `seed`, for one thread at a time; afterwards as it was."""
    # The CPU generator alone: `torch.manual_seed` would also reseed the caller's GPUs.
    with GENERATOR, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """The tensors of a module that travel, named as in its state dict; they share the module's memory."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return {
        name: tensor
        for name, tensor in module.state_dict().items()
        if name in parameters or (isinstance(tensor, Tensor) and (tensor.is_floating_point() or tensor.is_complex()))
    }


def _block_shape(name: str, module: nn.Module) -> BlockShape:
    tensors = _tensors(module)
    for inner, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise LayoutMismatchError(
                f"tensor '{name}/{inner}' is {dtype}; models travel as float32",
                advice="build the model in float32; lower precision can be used inside the training step",
            )
    return BlockShape(
        name=name,
        tensors=tuple(TensorShape(name=inner, shape=tuple(tensor.shape)) for inner, tensor in tensors.items()),
    )


def _require_each_parameter_once(model: nn.Module, modules: _Modules) -> None:
    # Tied parameters would travel twice and be averaged as if they were two: their copies could come apart.
    places: defaultdict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places[id(parameter)].append(name)
    for names in places.values():
        if len(names) > 1:
            raise LayoutMismatchError(
                f"parameters {_quoted(names)} are one tensor; a parameter belongs to exactly one block",
                advice="give each block its own tensor, or keep tied modules under one name in one block",
            )
    # An uncovered parameter would be trained here and silently never leave.
    owners: defaultdict[int, list[str]] = defaultdict(list)
    for block, module in modules.items():
        for parameter in module.parameters():
            owners[id(parameter)].append(block)
    for identity, (name,) in places.items():
        if len(owners[identity]) != 1:
            where = f"in blocks {_quoted(owners[identity])}" if owners[identity] else "in no block"
            raise LayoutMismatchError(
                f"parameter {name!r} is {where}; it belongs to exactly one",
                advice="correct the task's `blocks`",
            )


def _quoted(names: list[str]) -> str:
    return " and ".join(repr(name) for name in names)
