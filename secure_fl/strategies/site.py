"""What a strategy's node half works with: one site's model, data and memory, inside the training process.

Under differential privacy (`privacy`) every step on the data is one of DP-SGD: `batches` yields secret samples and
`descend` puts noise on the gradient, so that a strategy that goes through them trains under noise without a word. What
never influences anything that leaves may train without noise, in `free`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from secure_fl.blocks import Blocks, Layout, Vector
from secure_fl.errors import SettingsError, UnaccountedTrainingError
from secure_fl.strategies.training import Array, LocalTraining
from secure_fl.tasks.model_blocks import layout_of, read_blocks, write_blocks

if TYPE_CHECKING:
    from torch import Tensor, nn

    from secure_fl.privacy.dp_sgd import NoisyTraining, Sample
    from secure_fl.privacy.mechanism import Mechanism
    from secure_fl.tasks.base import LocalData, Metrics, Task

Penalty = Callable[["nn.Module"], "Tensor"]
Loss = Callable[["Tensor", "Tensor"], "Tensor"]  # of outputs and targets: a batch's mean
Batch: TypeAlias = "tuple[Tensor, Tensor]"  # inputs and targets
Step: TypeAlias = "Batch | Sample"  # what one step is taken on; under noise, a secret sample

log = logging.getLogger(__name__)


class Site:
    """One node in one round.

    `received` are the shared blocks as they came from the coordinator, `initial` the study's common start,
    `personal` the blocks this node kept from its last round; what `fit` leaves in `personal` is kept for the next.
    `state` is what the strategy remembers besides, in the types of JSON; what `fit` leaves in it is kept too.
    `combination` is what the last *combine* opened here, and nowhere else. `traces` are the round's notes. `shipped` is
    what the strategy's coordinator half sent beside the model, `budget` how many parameters the site lets go at once,
    `asked` which of the requested blocks its whole circle sends in this round: None for all.

    With `privacy`, training is under noise; `reserved_steps` is how many steps were set aside for it, and a further one
    raises. `privacy_seed` is for simulations alone: it has to differ in every execution, and voids the guarantee.
    `round` is the study's, where the caller has it: one more than the version of the model that was received.
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
        shipped: Mapping[str, Array] | None = None,
        budget: int | None = None,
        asked: tuple[str, ...] | None = None,
        state: Mapping[str, Any] | None = None,
        round: int | None = None,  # noqa: A002
        privacy: Mechanism | None = None,
        privacy_seed: bytes | None = None,
        reserved_steps: int = 0,
    ) -> None:
        self.task = task
        self.data = data
        self.training = training
        self.initial = initial
        self.received = received
        self.personal: Blocks = personal
        self.combination = combination
        self.shipped = shipped or {}
        self.budget = budget
        self.asked = asked
        self.state: dict[str, Any] = dict(state or {})
        self.traces: dict[str, dict[str, float]] = {}
        self.skipped = 0  # batches that gave no finite gradient
        self.device = torch.device(device)
        # Dropout and the like draw from the global generator, shuffling from one of its own.
        torch.manual_seed(seed)
        self._shuffle = torch.Generator().manual_seed(seed)
        self.model = task.model().to(self.device)
        self.layout: Layout = layout_of(task, self.model)
        self.round = round
        self.privacy = privacy
        self._free = 0  # how many `free` we are in
        self._freed = False  # whether the model may have been changed without noise
        self._noisy = None if privacy is None else self._noisy_training(privacy, privacy_seed, reserved_steps)

    def _noisy_training(self, privacy: Mechanism, seed: bytes | None, reserved_steps: int) -> NoisyTraining:
        from secure_fl.privacy.dp_sgd import NoisyTraining
        from secure_fl.privacy.noise import PrivateRandomness

        randomness = PrivateRandomness(seed)
        torch.manual_seed(randomness.torch_seed())  # Dropout must not follow from a seed that others know.
        return NoisyTraining(
            privacy,
            model=self.model,
            split=self.data.train,
            reserved_steps=reserved_steps,
            randomness=randomness,
        )

    @property
    def noised(self) -> bool:
        """Whether training is under noise here and now."""
        return self._noisy is not None and not self._free

    @property
    def noised_steps(self) -> int:
        """How many steps under noise were taken so far."""
        return 0 if self._noisy is None else self._noisy.steps

    @property
    def left_out(self) -> int:
        """How often, under noise, a unit had no finite gradient and counted as zero. For the site's own log only."""
        return 0 if self._noisy is None else self._noisy.left_out

    def try_noise(self) -> None:
        """Before a study: raise unless this model can be trained under noise, on a few of the site's own rows."""
        from secure_fl.privacy.per_unit import row_losses

        if self._noisy is not None:
            self.model.train()
            self._noisy.try_out(row_losses(self.task))

    @contextmanager
    def free(self) -> Iterator[None]:
        """Train without noise what never influences anything that leaves. Without `privacy` it makes no difference.

        With it, a free part comes last: afterwards nothing can be trained under noise and no `change` be taken, unless
        the free part was `aside`. And it has no say in whether the site answers: what fails in it is logged, the rest
        of it is passed over, and the round goes on. So what it makes is kept inside the block, or not at all.
        """
        if self._noisy is None:
            yield
            return
        self._free, self._freed = self._free + 1, True
        try:
            yield
        except Exception:
            if self._free > 1:
                raise
            log.exception("a part that trains without noise failed; what it makes is as it was before this round")
        finally:
            self._free -= 1

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

    def complete(self, *sets: Blocks) -> dict[str, Vector]:
        """A whole model: of several sets the later win, and what is in none of them has its initial value."""
        found = {name: blocks[name] for blocks in sets for name in blocks}
        return {name: found[name] if name in found else self.initial[name] for name in self.layout.names}

    def blocks(self, names: Iterable[str] | None = None) -> dict[str, Vector]:
        """A copy of the model's blocks as they are now, or only of `names`."""
        return read_blocks(self.task, self.model, only=names)

    def change(self, names: Iterable[str]) -> dict[str, Vector]:
        """What training changed in the blocks `names`, relative to what was received."""
        self._require_not_freed()
        self.model.zero_grad(set_to_none=True)  # as large as the model, and of no use any more
        changed = self.blocks(names)
        with np.errstate(invalid="ignore", over="ignore"):  # What is not finite counts as unchanged later.
            for name, vector in changed.items():
                np.subtract(vector, self.received[name], out=vector)
        return changed

    def train(
        self,
        *,
        penalty: Penalty | None = None,
        epochs: int | None = None,
        only: Iterable[str] | None = None,
        loss: Loss | None = None,
        free: bool = False,
    ) -> None:
        """Minimise the task's loss, or `loss`, plus `penalty` of the model on the local training data.

        `only` names the blocks to train. The others stay as they are to the last bit: they run in evaluation mode, so
        that no running statistic moves either. `free`: see `free`. A `penalty` may depend on weights only: its gradient
        is added after clipping and noise.
        """
        if free:
            with self.free():
                self.train(penalty=penalty, epochs=epochs, only=only, loss=loss)
            return
        trained = self.layout.names if only is None else self.layout.select(only).names
        optimizer = self.optimizer(trained)
        self.model.train()
        with self._frozen(name for name in self.layout.names if name not in trained):
            for batch in self.batches(epochs):
                self.descend(optimizer, batch, penalty=penalty, loss=loss)

    def batches(self, epochs: int | None = None, *, rows: Tensor | None = None) -> Iterator[Step]:
        """The training data, or only `rows` of them, in a new order every epoch.

        Under noise, samples: as many as stand for so many passes over the data, each for one step.
        """
        split, settings = self.data.train, self.training
        if self._noisy is not None and self.noised:
            if rows is not None:
                raise UnaccountedTrainingError("samples under noise are drawn from all rows")
            yield from self._noisy.samples(settings.epochs if epochs is None else epochs)
            return
        rows = torch.arange(len(split)) if rows is None else rows
        inputs, targets = split.inputs.to(self.device), split.targets.to(self.device)
        for _ in range(settings.epochs if epochs is None else epochs):
            order = rows[torch.randperm(len(rows), generator=self._shuffle)].to(self.device)
            for batch in torch.split(order, settings.batch_size):
                yield inputs[batch], targets[batch]

    def draw(self, fraction: float) -> Tensor:
        """That part of the training rows, at least one, at random."""
        count = max(1, round(fraction * self.samples))
        return torch.randperm(self.samples, generator=self._shuffle)[:count]

    def descend(
        self,
        optimizer: torch.optim.Optimizer,
        batch: Step,
        *,
        penalty: Penalty | None = None,
        loss: Loss | None = None,
    ) -> None:
        """One step of `optimizer` on one batch; none where the batch gives no finite gradient."""
        optimizer.zero_grad(set_to_none=True)
        self.backward(batch, penalty=penalty, loss=loss)
        optimizer.step()

    def backward(self, batch: Step, *, penalty: Penalty | None = None, loss: Loss | None = None) -> float:
        """Add the gradient of the loss on one batch to the parameters' `grad`; returns the loss.

        Where the loss or a gradient is NaN or infinite, no parameter has a `grad` afterwards and the batch counts for
        nothing: whoever made the model could otherwise see in a site's silence that it has a certain record.

        Under noise the `grad` is the noised one, record by record or group by group, and the loss is not told.
        """
        if not isinstance(batch, tuple):
            return self._noisy_backward(batch, penalty=penalty, loss=loss)
        if self.noised:
            raise UnaccountedTrainingError("a step under noise on rows that were not sampled for it")
        inputs, targets = batch
        value = (loss or self.task.loss)(self.model(inputs), targets)
        if penalty is not None:
            value = value + penalty(self.model)
        value.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        # One pass, and one number to look at: a sum is finite only if all of its terms are.
        if not torch.isfinite(torch.stack([value.detach(), *(gradient.sum() for gradient in gradients)]).sum()):
            self.model.zero_grad(set_to_none=True)
            self.skipped += 1
        return float(value.detach())

    def _noisy_backward(self, sample: Sample, *, penalty: Penalty | None, loss: Loss | None) -> float:
        from secure_fl.privacy.per_unit import row_losses

        if self._noisy is None:
            raise UnaccountedTrainingError("a sample of another site")
        self._require_not_freed()
        self._noisy.descent(sample, row_losses(self.task, loss))
        if penalty is not None:  # Of weights that are under noise already.
            parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            slopes = torch.autograd.grad(penalty(self.model), parameters, allow_unused=True)
            for parameter, slope in zip(parameters, slopes, strict=True):
                if slope is not None and parameter.grad is not None:
                    parameter.grad += slope
        return math.nan

    def _require_not_freed(self) -> None:
        if self._noisy is not None and self._freed:
            raise UnaccountedTrainingError(
                "the model was trained without noise before: that must not reach what leaves"
            )

    def pull(self, anchor: Sequence[Tensor], strength: float, only: Iterable[str] | None = None) -> Penalty:
        """The penalty strength·‖θ − anchor‖², where θ and the anchor are those of the blocks `only`, or of all."""
        places = self.parameters(only)

        def penalty(_: nn.Module) -> Tensor:
            pairs = zip(places, anchor, strict=True)
            return strength * sum(((w - w_0) ** 2).sum() for w, w_0 in pairs)  # type: ignore[return-value]

        return penalty

    def snapshot(self, only: Iterable[str] | None = None) -> list[Tensor]:
        """A copy of the parameters as they are now, in the order of `parameters`."""
        return [parameter.detach().clone() for parameter in self.parameters(only)]

    def restore(self, snapshot: Sequence[Tensor], only: Iterable[str] | None = None) -> None:
        """Put a snapshot back. Running statistics are no parameters and stay."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters(only), snapshot, strict=True):
                parameter.copy_(value)

    def parameters(self, only: Iterable[str] | None = None) -> list[nn.Parameter]:
        """The model's parameters, or those of the blocks `only`, in the layout's order."""
        names = self.layout.names if only is None else self.layout.select(only).names
        modules = self.task.blocks(self.model)
        return [parameter for name in names for parameter in modules[name].parameters()]

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Try something out: afterwards the model and all randomness are as if it had not happened."""
        before, order, freed = deepcopy(self.model.state_dict()), self._shuffle.get_state(), self._freed
        try:
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                yield
        finally:
            self.model.load_state_dict(before)
            self._shuffle.set_state(order)
            self._freed = freed  # Samples and noise do not go back: they are never used twice.

    def note(self, name: str, values: Mapping[str, float]) -> None:
        """Write numbers in the site's own diary, by part of the model; they never leave the site."""
        self.traces[name] = {part: float(value) for part, value in values.items()}

    def evaluate(self, blocks: Blocks) -> Metrics:
        """Metrics of the model made of `blocks` on the local test data."""
        self.load(blocks)
        return self.task.evaluate(self.model, self.data.test)

    def optimizer(self, only: Iterable[str] | None = None) -> torch.optim.Optimizer:
        """The study's optimizer over the model's parameters, or over those of the blocks `only`."""
        settings, parameters = self.training, self.parameters(only)
        if not parameters:
            raise SettingsError("this strategy trains a part of the model that has no parameters")
        if settings.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        return torch.optim.SGD(
            parameters,
            lr=settings.learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )

    @contextmanager
    def _frozen(self, names: Iterable[str]) -> Iterator[None]:
        """The blocks `names` in evaluation mode and without gradients, but for those a task froze itself: they stay."""
        modules = self.task.blocks(self.model)
        frozen = [modules[name].eval() for name in names]
        parameters = [p for module in frozen for p in module.parameters() if p.requires_grad]
        try:
            for parameter in parameters:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)
