"""Exported models load with torch's own `load_state_dict`, whatever a task calls its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from secure_fl import Study, load_model
from secure_fl.checkpoints import save_arrays
from secure_fl.errors import LayoutMismatchError, SettingsError, StorageError, TaskUnavailableError
from secure_fl.tasks import resolve
from secure_fl.tasks.base import LocalData, Source, Task, TaskSettings
from secure_fl.tasks.model_blocks import initial_blocks, layout_of, read_blocks
from secure_fl.tasks.state_dict import convert, read_model, save_model, torch_names


class Net(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, width), nn.Linear(width, width)])
        self.norm = nn.BatchNorm1d(width)
        self.out = nn.Linear(width, 2)
        self.register_buffer("scale", torch.full((1,), 3.0))  # in no block
        self.register_buffer("steps", torch.tensor(7))

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.norm(self.layers[1](torch.relu(self.layers[0](rows))))
        scaled: Tensor = self.out(hidden) * self.scale
        return scaled


class Width(TaskSettings):
    width: int = 6


class Wide(Task):
    """Its blocks have other names than the modules, and one is made of two of them."""

    kind = "classification"
    Settings = Width
    settings: Width

    def model(self) -> nn.Module:
        return Net(self.settings.width)

    def blocks(self, model: nn.Module) -> Mapping[str, nn.Module]:
        assert isinstance(model, Net)
        return {"body": nn.ModuleList([model.layers[1], model.norm]), "foot": model.layers[0], "head": model.out}

    def load(self, source: Source) -> LocalData:
        raise NotImplementedError


TASK = Wide(Width())


def trained(seed: int = 3) -> tuple[nn.Module, dict[str, np.ndarray]]:
    torch.manual_seed(seed)
    model = TASK.model()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor))
    return model, read_blocks(TASK, model)


def test_a_state_dict_has_torchs_names_and_types(tmp_path: Path) -> None:
    model, blocks = trained()
    save_model(tmp_path / "m.safetensors", TASK, blocks, seed=0)
    state = load_file(tmp_path / "m.safetensors")
    fresh = TASK.model()
    fresh.load_state_dict(state)  # strict: every name, and no other
    assert state["norm.num_batches_tracked"].dtype == torch.int64
    for name, tensor in model.state_dict().items():
        if name not in {"scale", "steps"}:  # never travel
            assert torch.equal(state[name], tensor), name
    assert state["scale"].tolist() == [3.0]
    rows = torch.randn(5, 4)
    model.eval()
    with torch.no_grad():
        model.get_buffer("scale").fill_(3.0)
        assert torch.equal(load_model(tmp_path / "m.safetensors", TASK)(rows), model(rows))


def test_checkpoints_are_converted_and_read_as_they_are(tmp_path: Path) -> None:
    model, blocks = trained()
    save_arrays(tmp_path / "c.safetensors", layout_of(TASK, model).tensors(blocks))
    convert(tmp_path / "c.safetensors", tmp_path / "m.safetensors", TASK, seed=0)
    for path in ("c.safetensors", "m.safetensors"):
        found = read_model(tmp_path / path, TASK)
        assert all(np.array_equal(read_blocks(TASK, found)[name], blocks[name]) for name in blocks)
        assert not found.training
    assert "body/0.weight" in torch_names(TASK, model)
    assert torch_names(TASK, model)["body/0.weight"] == "layers.1.weight"


def test_a_part_of_a_model_is_not_completed_with_chance(tmp_path: Path) -> None:
    # Under a strategy with a personal head the coordinator has the rest alone.
    model, blocks = trained()
    shared = layout_of(TASK, model).select(("body", "foot"))
    save_arrays(tmp_path / "c.safetensors", shared.tensors(blocks))
    convert(tmp_path / "c.safetensors", tmp_path / "m.safetensors", TASK, seed=0)
    assert not {name for name in load_file(tmp_path / "m.safetensors") if name.startswith("out")}
    with pytest.raises(LayoutMismatchError, match=r"'out\.bias' of the task's model is not in the file") as refused:
        read_model(tmp_path / "m.safetensors", TASK)
    assert "load a site's own" in refused.value.hint


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    _, blocks = trained()
    path = tmp_path / "m.safetensors"
    save_model(path, TASK, blocks, seed=0)
    with pytest.raises(LayoutMismatchError, match=r"is \[6\]; the task's model has \[8\]"):
        load_model(path, Wide, width=8)
    with pytest.raises(LayoutMismatchError, match="not in the file"):
        load_model(path, "digits")
    with pytest.raises(SettingsError, match="has settings already"):
        load_model(path, TASK, width=8)
    save_arrays(path, {**{name: np.zeros(1, np.float32) for name in ("extra",)}, **_whole(blocks)})
    with pytest.raises(LayoutMismatchError, match="'extra' is not in the task's model"):
        load_model(path, Wide)
    path.write_bytes(b"no model")
    with pytest.raises(SettingsError, match="is not a safetensors file"):
        load_model(path, Wide)
    path.unlink()
    with pytest.raises(StorageError, match="no such file"):
        load_model(path, Wide)


@pytest.mark.parametrize("wrong", [nn.Linear, nn.Linear(1, 1), int, 3, None])
def test_what_is_no_task_is_refused_as_simulate_does(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(SettingsError, match="task is a name, a Task class or a Task object, not"):
        load_model(tmp_path / "m.safetensors", wrong)
    with pytest.raises(SettingsError, match="task is a name, a Task class or a Task object, not"):
        Study.of(task=wrong if wrong is not None else [])


def test_a_module_built_into_python_is_no_folder() -> None:
    with pytest.raises(TaskUnavailableError, match=r"module 'sys' has no 'nothing'$") as refused:
        resolve("sys:nothing")
    assert "after the colon" in refused.value.hint


def _whole(blocks: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return initial_blocks(TASK, 0)[0].tensors(blocks)
