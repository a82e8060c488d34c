"""What `secure-fl task check` looks at: whether a task can be federated, one line for each thing, with the fix."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from secure_fl import tasks
from secure_fl.blocks import Layout
from secure_fl.errors import DataError, DoubtError, NotPrivateError, SecureFLError, SettingsError, TaskUnavailableError
from secure_fl.operations.doctor import Check
from secure_fl.privacy.readiness import require_preprocessing, require_ready
from secure_fl.tasks.base import LocalData, PartitionSettings, Share, Source, Split, Task
from secure_fl.tasks.code_digest import task_code
from secure_fl.tasks.files import shown_sha256
from secure_fl.tasks.metrics import Metric
from secure_fl.tasks.model_blocks import initial_blocks, layout_of, seeded
from secure_fl.tasks.own_code import loaded_data, made_model, named_blocks, run_own

T = TypeVar("T")

_ROWS = 16  # of made-up data, and of a batch
_SEED = 1
_SITES = 5  # that share data which come with a task
_STATISTICS = (nn.modules.batchnorm._BatchNorm,)
_NORMS = "use GroupNorm or LayerNorm"
_CHECK = "secure-fl task check"
_ADVICE = "correct it; `python -m pytest` beside the task shows all of the traceback"


class TaskCheck:
    """A task, and what is found of it on the way. A later check uses what an earlier one made."""

    def __init__(self, name: str, settings: Mapping[str, Any], source: Source, *, private: bool) -> None:
        self._name = name
        self._settings = settings
        self._source = source
        self._private = private
        self._task: Task | None = None
        self._model: nn.Module | None = None
        self._data: LocalData | None = None

    def checks(self) -> Iterator[Check]:
        """In order. Without a task, a model or data, what needs them is left out."""
        yield "task", self._find
        if self._task is None:
            return
        yield "preprocessing", self._preprocessing
        yield "model", self._make
        if self._model is None:
            return
        yield "same start everywhere", self._start
        yield "plain numbers", self._plain
        yield "batch statistics", self._statistics
        yield "data", self._load
        if self._data is None:
            return
        yield "training", self._train
        yield "metrics", self._evaluate
        yield "differential privacy", self._readiness

    # --- one check each -----------------------------------------------------------------------------------------

    def _find(self) -> str:
        found = self._created()
        code, file = task_code(type(found)).text, shown_sha256(self._name)
        self._task = found
        # A site that lists the file is shown that digest by `node approve`, and one that has the module the source's.
        single = f"; the file with sha256:{file}" if file else ""
        return f"{type(found).__name__}, for {found.kind}; {code}{single}"

    def _created(self) -> Task:
        try:
            return tasks.create(self._name, self._settings)
        except TaskUnavailableError as error:
            if _CHECK not in error.hint:
                raise
            # Elsewhere people are sent here to see what fails: here it is.
            cause, module = error.__cause__, tasks.module_of(self._name)
            missing = isinstance(cause, ModuleNotFoundError) and cause.name == module.partition(".")[0]
            said = "" if cause is None or str(cause) in error.message else f": {cause}"
            advice = f"run it in the folder that has {module}.py, or install the package that has {module}"
            raise TaskUnavailableError(error.message + said, advice=advice if missing else _ADVICE) from cause

    def _preprocessing(self) -> str:
        try:
            require_preprocessing(self.task)
        except NotPrivateError as error:
            raise self._against_privacy(error) from None
        return f"{self.task.preprocessing!r}: each row is prepared by itself"

    def _make(self) -> str:
        with seeded(_SEED):
            model = made_model(self.task, advice=_ADVICE)
        named_blocks(self.task, model, advice=_ADVICE)
        layout = layout_of(self.task, model)
        if not layout.names:
            raise SettingsError(
                "the model has no block with state: nothing could be shared",
                advice="give the model named children with parameters, or override `blocks`",
            )
        self._model = model
        stays = ", ".join(_run(lambda: self.task.head(layout.names), "head"))
        return f"{_sizes(layout)}; {stays} stays at the site where a strategy gives each site its own last layer"

    def _start(self) -> str:
        """Sites make personal blocks themselves, and a lead who changes machines makes the same study again."""
        first, second = (_run(lambda: initial_blocks(self.task, _SEED), "model") for _ in range(2))
        if first[0].digest(first[1]) != second[0].digest(second[1]):
            raise SettingsError(
                "the same seed makes another model every time",
                advice="draw in `model` from torch's global generator alone, which the caller seeds; not from NumPy, "
                "`random` or a generator of the task's own",
            )
        return f"seed {_SEED} makes the model {first[0].digest(first[1]).hex()[:12]} each time"

    def _plain(self) -> str:
        """Models travel as float32 and never as pickles, which could run code."""
        found = [name for name, value in self.model.state_dict().items() if not isinstance(value, Tensor)]
        if found:
            raise SettingsError(
                f"the model keeps {', '.join(found)}, which are no tensors and could only travel as a pickle",
                advice="keep such things in the task's settings, or as tensors",
            )
        return "everything that travels is a float32 tensor"

    def _statistics(self) -> str:
        found = [name for name, module in self.model.named_modules() if isinstance(module, _STATISTICS)]
        if found:
            raise DoubtError(
                f"batch normalisation in {', '.join(found)}: averages of sites' statistics fit no site well, and "
                "under differential privacy it is refused",
                advice=_NORMS,
            )
        return "none"

    def _load(self) -> str:
        source, where = self._source, f"in {self._source.path}"
        if source.path is None:  # as a site of a simulation
            source, where = (
                Source(share=Share(index=0, of=_SITES, partition=PartitionSettings(), seed=_SEED)),
                "that come with the task",
            )
        try:
            data = loaded_data(self.task, source, advice=_ADVICE)
        except DataError:
            if self._source.path is not None:
                raise
            data, where = self._made_up(), "made up after the model; --data FILE tries real ones"
        self._data = data
        return f"{_shapes(data)}, {where}"

    def _train(self) -> str:
        """One batch, as a site would."""
        model, split = self.model, self.data.train
        model.train()
        batch = split.inputs[:_ROWS], split.targets[:_ROWS]

        def descend() -> Tensor:
            loss = self.task.loss(model(batch[0]), batch[1])
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        _run(descend, "loss")  # The first time takes longer, and tells nothing.
        model.zero_grad()
        began = time.perf_counter()
        loss = _run(descend, "loss")
        seconds = time.perf_counter() - began
        if not torch.isfinite(loss).all():
            raise DataError(
                "the loss of the first batch is not finite", advice="scale inputs and targets to about unit size"
            )
        still = [
            name
            for name, block in self.task.blocks(model).items()
            if all(parameter.grad is None for parameter in block.parameters())
        ]
        model.zero_grad()
        if still:
            raise DoubtError(
                f"block {', '.join(still)} has no gradient: it would leave every site unchanged",
                advice="let the loss depend on every block, or leave the block out of `blocks`",
            )
        return f"a batch of {len(batch[1])} rows took {1000 * seconds:.1f} ms, loss {float(loss):.3g}"

    def _evaluate(self) -> str:
        found = _run(lambda: self.task.evaluate(self.model, self.data.test), "evaluate")
        if broken := [metric.name for metric in self.task.metrics if metric.name not in found.sums]:
            raise DataError(
                f"the task's metrics fail on the test rows: {', '.join(broken)}",
                advice="the traceback above says where; docs/tasks.md says what a metric is given and returns",
            )
        own = {metric.name: _value(metric, found.sums) for metric in self.task.metrics}
        values = {"loss": found.loss, "accuracy": found.accuracy, "mse": found.mse, **own}
        shown = ", ".join(f"{name} {value:.3g}" for name, value in values.items() if value is not None)
        return f"untrained: {shown}"

    def _readiness(self) -> str:
        try:
            _run(lambda: require_ready(self.task, self.model, self.data, unit="record"), "loss")
        except NotPrivateError as error:
            raise self._against_privacy(error) from None
        return "noise can be added to what each row does"

    # --- what they share ----------------------------------------------------------------------------------------

    @property
    def task(self) -> Task:
        """The task, once it was found."""
        return _there(self._task)

    @property
    def model(self) -> nn.Module:
        """Its model, once it was made."""
        return _there(self._model)

    @property
    def data(self) -> LocalData:
        """Its data, once they were loaded."""
        return _there(self._data)

    def _against_privacy(self, error: NotPrivateError) -> SecureFLError:
        """Only who wants differential privacy is held to it."""
        if self._private:
            return error
        return DoubtError(f"not under differential privacy: {error.message}", advice=error.hint)

    def _made_up(self) -> LocalData:
        first = next((layer for layer in self.model.modules() if _has_own(layer)), None)
        if not isinstance(first, nn.Linear):
            raise DoubtError(
                "the model's first layer does not say which shape rows have, so that none can be made up",
                advice="--data FILE, with a few rows that may be anybody's",
            )
        with torch.no_grad(), seeded(_SEED):
            inputs = torch.randn(_ROWS, first.in_features)
            outputs = _run(lambda: self.model(inputs), "model")
            targets = torch.randn_like(outputs)
            if self.task.kind == "classification":
                targets = torch.arange(_ROWS) % outputs.shape[1]
        split = Split(inputs=inputs, targets=targets)
        return LocalData(train=split, test=split)


def _there(value: T | None) -> T:
    if value is None:
        raise TaskUnavailableError("an earlier check has failed")
    return value


def _run(work: Callable[[], T], what: str) -> T:
    return run_own(work, what, advice=_ADVICE)


def _has_own(layer: nn.Module) -> bool:
    return any(True for _ in layer.parameters(recurse=False))


def _value(metric: Metric, sums: Mapping[str, tuple[int, ...]]) -> float | None:
    return metric.value(sums[metric.name]) if metric.name in sums else None


def _sizes(layout: Layout) -> str:
    parts = " + ".join(f"{block.name} {block.size:,}" for block in layout)
    return f"{parts} = {layout.size:,} parameters, {4 * layout.size:,} bytes"


def _shapes(data: LocalData) -> str:
    return (
        f"{len(data.train)} rows to train on, {len(data.test)} to test on, inputs {list(data.train.inputs.shape[1:])}"
    )
