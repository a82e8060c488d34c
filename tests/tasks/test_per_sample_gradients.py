"""Every built-in model can be trained under DP-SGD: Opacus finds each sample's own gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opacus import GradSampleModule
from torch import Tensor

from secure_fl import tasks

CLASSES, VALUES = torch.tensor([0, 1, 1, 0]), torch.linspace(-1, 1, 4)[:, None]
TOKENS = torch.tensor([[1, 2, 2, 0], [3, 0, 0, 0], [4, 5, 6, 7], [0, 0, 0, 0]])
MODELS: list[tuple[str, dict[str, Any], Tensor, Tensor]] = [
    ("digits", {}, torch.rand(4, 1, 8, 8), CLASSES),
    ("breast-cancer", {}, torch.rand(4, 30), CLASSES),
    ("mnist", {}, torch.rand(4, 1, 28, 28), CLASSES),
    ("mnist", {"network": "mlp"}, torch.rand(4, 1, 28, 28), CLASSES),
    ("fashion", {}, torch.rand(4, 1, 28, 28), CLASSES),
    ("cifar10", {}, torch.rand(4, 3, 32, 32), CLASSES),
    ("heart", {}, torch.rand(4, 35), CLASSES),
    ("printers", {"family": "sigmoid"}, VALUES, VALUES),
    ("printers", {"family": "gaussian"}, VALUES, VALUES),
    ("printers", {"family": "network"}, VALUES, VALUES),
    ("bearings", {}, torch.rand(4, 512), CLASSES),
    ("agnews", {"buckets": 20}, TOKENS, CLASSES),
    ("sine", {}, VALUES, VALUES),
    ("visits", {}, torch.rand(4, 8), CLASSES),
]


def test_all_built_in_tasks_are_here() -> None:
    assert {name for name, *_ in MODELS} == set(tasks.BUILT_IN)


# Opacus warns of its hooks, and of per-sample gradients by torch.func for modules it does not know.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "settings", "inputs", "targets"), MODELS)
def test_each_sample_has_its_own_gradient(name: str, settings: dict[str, Any], inputs: Tensor, targets: Tensor) -> None:
    task = tasks.create(name, settings)
    torch.manual_seed(0)
    model = task.model()
    alone = []
    for row in range(4):
        loss = task.loss(model(inputs[row : row + 1]), targets[row : row + 1])
        alone.append(torch.autograd.grad(loss, list(model.parameters())))
    wrapped = GradSampleModule(model, loss_reduction="mean")
    task.loss(wrapped(inputs), targets).backward()  # type: ignore[no-untyped-call]
    for position, parameter in enumerate(model.parameters()):
        expected = torch.stack([gradients[position] for gradients in alone])
        assert torch.allclose(parameter.grad_sample, expected, atol=1e-5)  # type: ignore[attr-defined]
