"""Plain training, for tests that ask whether a task can be learnt at all."""

from __future__ import annotations

import torch
from torch import nn

from secure_fl.tasks.base import LocalData, Metrics, Split, Task


def fit(
    task: Task,
    model: nn.Module,
    rows: Split,
    optimiser: torch.optim.Optimizer,
    *,
    epochs: int,
    batch_size: int,
) -> None:
    """Some epochs over shuffled batches."""
    for _ in range(epochs):
        order = torch.randperm(len(rows))
        for start in range(0, len(rows), batch_size):
            batch = order[start : start + batch_size]
            optimiser.zero_grad()
            task.loss(model(rows.inputs[batch]), rows.targets[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()


def train(task: Task, data: LocalData, *, epochs: int, learning_rate: float) -> Metrics:
    """Train a fresh model with Adam and report how it does on the test rows."""
    torch.manual_seed(0)
    model = task.model().train()
    optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate)
    fit(task, model, data.train, optimiser, epochs=epochs, batch_size=32)
    return task.evaluate(model, data.test)
