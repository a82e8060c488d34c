"""Models as torch's own users know them: a state dict with dotted names, as `load_state_dict` takes it.

Inside the product a model is named blocks of flat vectors, and its tensors are called `block/tensor`. What people take
away, from a run or a deployed study, has the names that the task's `model()` gives its tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from secure_fl.blocks import Blocks
from secure_fl.checkpoints import open_tensors, save_tensors
from secure_fl.errors import LayoutMismatchError, SettingsError, StorageError
from secure_fl.tasks.base import Task
from secure_fl.tasks.model_blocks import layout_of, seeded, write_blocks
from secure_fl.tasks.own_code import made_model

Arrays = Mapping[str, npt.NDArray[Any]]


def torch_names(task: Task, model: nn.Module) -> dict[str, str]:
    """`block/tensor` → the name of the same tensor in the model's state dict."""
    # By identity: a task may name its blocks as it likes, and make them of parts of several modules.
    names = {id(tensor): name for name, tensor in model.state_dict(keep_vars=True).items()}
    found: dict[str, str] = {}
    for block, module in task.blocks(model).items():
        for inner, tensor in module.state_dict(keep_vars=True).items():
            if id(tensor) in names:
                found[f"{block}/{inner}"] = names[id(tensor)]
    return found


def save_model(path: Path, task: Task, blocks: Blocks, *, seed: int) -> None:
    """Write `blocks` as the state dict of the task's model; whatever never travels has a fresh model's value.

    Where blocks are missing, as those that a strategy keeps at the sites, only the tensors of the others are written.
    """
    with seeded(seed):
        model = made_model(task)
    write_blocks(task, model, blocks)
    save_tensors(path, {name: tensor.detach().cpu().numpy() for name, tensor in _written(task, model, blocks).items()})


def _written(task: Task, model: nn.Module, blocks: Blocks) -> dict[str, Tensor]:
    state = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
    if set(blocks) >= set(layout_of(task, model).names):
        return state
    names = torch_names(task, model)
    present = {name for key, name in names.items() if key.partition("/")[0] in blocks}
    return {name: tensor for name, tensor in state.items() if name in present}


def convert(source: Path, target: Path, task: Task, *, seed: int) -> None:
    """A checkpoint, whose tensors are `block/tensor`, as a state dict. Raises `LayoutMismatchError`."""
    with seeded(seed):
        layout = layout_of(task, made_model(task))
    with open_tensors(source) as found:
        present = {key.partition("/")[0] for key in found}
        blocks = layout.select(present).join(found)
    save_model(target, task, blocks, seed=seed)


def read_model(path: Path, task: Task) -> nn.Module:
    """The task's model with the values of a file, in evaluation mode.

    The file is a state dict, or a checkpoint with `block/tensor` names. Raises `LayoutMismatchError` with the first
    tensor that does not fit, `SettingsError` where the file is something else, and `StorageError` where it cannot be
    read.
    """
    with seeded(0):
        model = made_model(task)
    state: dict[str, Any] = model.state_dict()
    renamed = torch_names(task, model)
    given = {renamed.get(name, name): values for name, values in _read(path).items()}
    wanted = {name for name, tensor in state.items() if isinstance(tensor, Tensor)}
    travelling = set(renamed.values()) & {name for name in wanted if state[name].is_floating_point()}
    if missing := sorted(travelling - given.keys()):
        raise LayoutMismatchError(
            f"{path}: tensor {missing[0]!r} of the task's model is not in the file",
            advice=f"{_OTHER}; where sites keep a part of the model, load a site's own (nodes/NAME/model.safetensors)",
        )
    if unknown := sorted(given.keys() - wanted):
        raise LayoutMismatchError(f"{path}: tensor {unknown[0]!r} is not in the task's model", advice=_OTHER)
    for name, values in given.items():
        if tuple(values.shape) != tuple(state[name].shape):
            shapes = f"{list(values.shape)}; the task's model has {list(state[name].shape)}"
            raise LayoutMismatchError(f"{path}: tensor {name!r} is {shapes}", advice=_OTHER)
    # `torch.tensor` copies: what was read may be a view of the file.
    model.load_state_dict(state | {name: torch.tensor(np.asarray(values)) for name, values in given.items()})
    return model.eval()


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with open_tensors(path) as found:
            return dict(found)
    except StorageError as error:
        if not isinstance(error.__cause__, SafetensorError):
            raise
        # A person named this file: nothing is wrong with a disk.
        raise SettingsError(
            f"{path}: is not a safetensors file, or not a whole one",
            advice="name a model that a run or `secure-fl study export` wrote: model.safetensors",
        ) from None


_OTHER = "use the task, with the settings, that the model was trained with: they are in model.json beside it"
