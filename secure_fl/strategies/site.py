"""What a strategy's node half works with: one site's model, data and memory, inside the training process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch

from secure_fl.blocks import Blocks, Layout, Vector
from secure_fl.errors import NonFiniteUpdateError
from secure_fl.strategies.base import LocalTraining
from secure_fl.tasks.model_blocks import layout_of, read_blocks, write_blocks

if TYPE_CHECKING:
    from torch import Tensor, nn

    from secure_fl.tasks.base import LocalData, Metrics, Task

Penalty = Callable[["nn.Module"], "Tensor"]


class Site:
    """One node in one round.

    `received` are the shared blocks as they came from the coordinator, `initial` the study's common start,
    `personal` the blocks this node kept from its last round; what `fit` leaves in `personal` is kept for the next.
    `combination` is what the last *combine* opened here, and nowhere else.
    """

    def __init__(
        self,
        *,
        task: Task,
        data: LocalData,
        training: LocalTraining,
        initial: Blocks,
        received: Blocks,
        personal: Blocks,
        combination: Blocks,
        seed: int,
        device: str = "cpu",
        peers: tuple[str, ...] = (),
    ) -> None:
        self.task = task
        self.data = data
        self.training = training
        self.initial = initial
        self.received = received
        self.personal: Blocks = personal
        self.combination = combination
        self.peers = peers
        self.device = torch.device(device)
        # Dropout and the like draw from the global generator, shuffling from one of its own.
        torch.manual_seed(seed)
        self._shuffle = torch.Generator().manual_seed(seed)
        self.model = task.model().to(self.device)
        self.layout: Layout = layout_of(task, self.model)

    @property
    def head(self) -> tuple[str, ...]:
        """The blocks the task regards as its head."""
        return self.task.head(self.layout.names)

    @property
    def samples(self) -> int:
        """Number of local training samples."""
        return len(self.data.train)

    def load(self, *sets: Blocks) -> None:
        """Put blocks into the model; later sets win."""
        for blocks in sets:
            write_blocks(self.task, self.model, blocks)

    def blocks(self, names: Iterable[str] | None = None) -> dict[str, Vector]:
        """The model's blocks now, or only `names`."""
        wanted = None if names is None else set(names)
        return {
            name: vector
            for name, vector in read_blocks(self.task, self.model).items()
            if wanted is None or name in wanted
        }

    def change(self, names: Iterable[str]) -> dict[str, Vector]:
        """What training changed in the blocks `names`, relative to what was received."""
        return {name: vector - self.received[name] for name, vector in self.blocks(names).items()}

    def train(self, *, penalty: Penalty | None = None, epochs: int | None = None) -> None:
        """Minimise the task's loss (plus `penalty` of the model) on the local training data."""
        settings = self.training
        inputs = self.data.train.inputs.to(self.device)
        targets = self.data.train.targets.to(self.device)
        optimizer = self._optimizer()
        self.model.train()
        for _ in range(settings.epochs if epochs is None else epochs):
            order = torch.randperm(len(targets), generator=self._shuffle).to(self.device)
            for batch in torch.split(order, settings.batch_size):
                optimizer.zero_grad(set_to_none=True)
                loss = self.task.loss(self.model(inputs[batch]), targets[batch])
                if penalty is not None:
                    loss = loss + penalty(self.model)
                if not torch.isfinite(loss):
                    raise NonFiniteUpdateError("the training loss became NaN or infinite")
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    def evaluate(self, blocks: Blocks) -> Metrics:
        """Metrics of the model made of `blocks` on the local test data."""
        self.load(blocks)
        return self.task.evaluate(self.model, self.data.test)

    def _optimizer(self) -> torch.optim.Optimizer:
        settings = self.training
        if settings.optimizer == "adam":
            return torch.optim.Adam(
                self.model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
            )
        return torch.optim.SGD(
            self.model.parameters(),
            lr=settings.learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
