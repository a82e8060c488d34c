"""What a study learns: a model in blocks, a site's data, a loss and metrics.

A task is code that a site installs and reviews. The coordinator names it and ships settings and weights;
it never ships code.
"""

from __future__ import annotations

import zipfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fl.errors import DataError
from secure_fl.settings import Settings
from secure_fl.tasks.metrics import Metric
from secure_fl.tasks.partition import Indices, PartitionSettings, Share
from secure_fl.tasks.tally import Tally
from secure_fl.tasks.units import group_numbers

__all__ = [
    "Arrays",
    "LocalData",
    "Metrics",
    "PartitionSettings",
    "Preprocessing",
    "Share",
    "Source",
    "Split",
    "Task",
    "TaskSettings",
    "evaluating",
    "open_npz",
    "read_npz",
    "require_path",
]


Preprocessing: TypeAlias = Literal["none", "public", "data-dependent", "unknown"]


class TaskSettings(Settings):
    """Base of a task's own settings: the study's `[task]` table without its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a site's data are: a file of its own, a share of a common data set, or a share of a file."""

    path: Path | None = None
    format: str | None = None
    share: Share | None = None
    # Decides, unit by unit, what is trained on and what is tested on (cutting.py). A secret of the site: who knows it
    # knows which side a record they know of is on. Without one, a constant serves.
    split_key: bytes = field(default=b"", repr=False)


# Neither compared nor printed field by field: tensors have no single truth value, and rows are not for logs.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Split:
    """Inputs and their targets, row by row; and the group of each row, where rows belong together.

    Rows of one group are about the same patient or machine. Under `privacy.unit = "group"` it is whole groups that are
    protected, however many rows they have.
    """

    inputs: Tensor
    targets: Tensor
    groups: Tensor | None = None  # int64, (rows,)

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise DataError(f"{len(self.inputs)} inputs and {len(self.targets)} targets")
        if self.groups is not None and (
            self.groups.dtype != torch.int64 or self.groups.shape != self.targets.shape[:1]
        ):
            raise DataError("groups need one int64 number for each row")

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return f"Split({len(self)} samples, inputs {list(self.inputs.shape[1:])})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalData:
    """One site's rows: those it trains on and those it only tests on."""

    train: Split
    test: Split

    @classmethod
    def cut(
        cls,
        inputs: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        train: Indices,
        test: Indices,
        *,
        groups: npt.NDArray[Any] | None = None,
    ) -> LocalData:
        """The rows `train` and `test` (see `cutting.divide`) of the arrays, as tensors."""
        numbers = None if groups is None else group_numbers(groups)
        return cls(train=_rows(inputs, targets, numbers, train), test=_rows(inputs, targets, numbers, test))


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """How a model does on a split. `accuracy` is for classification, `mse` for regression."""

    loss: float
    accuracy: float | None
    mse: float | None
    samples: int
    sums: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of the metrics that the task declares


class Task(ABC):
    """A model in named blocks, the data to train it on, a loss and metrics.

    A subclass says what kind of task it is, builds a model and loads a site's data. The rest has defaults::

        class Spots(Task):
            kind = "classification"
            preprocessing = "none"

            def model(self) -> nn.Module:
                layers = OrderedDict(features=nn.Linear(4, 16), act=nn.ReLU(), head=nn.Linear(16, 2))
                return nn.Sequential(layers)

            def load(self, source: Source) -> LocalData:
                arrays = read_npz(source, shape=(4,), classes=2)
                train, test = divide(source, arrays.x, arrays.y, classification=True)
                return LocalData.cut(arrays.x, arrays.y, train, test)

    The blocks of this model are `features` and `head`. A task with settings adds
    `Settings = SpotsSettings` and, for the type checker, `settings: SpotsSettings`.
    """

    kind: ClassVar[Literal["classification", "regression"]]
    # How `load` makes inputs and targets out of a site's rows. "none": as they are recorded. "public": each row by
    # itself, with numbers that were known without looking at these data. "data-dependent": with means, ranges or a
    # vocabulary of the site's own rows, so that one row changes others; not possible under differential privacy.
    # "unknown", where a task does not say, is refused there too.
    preprocessing: ClassVar[Preprocessing] = "unknown"
    # What is measured beside loss and accuracy or squared error, such as (Auc(), Sensitivity(at_specificity=0.9)).
    metrics: ClassVar[tuple[Metric, ...]] = ()
    Settings: ClassVar[type[TaskSettings]] = TaskSettings
    # The largest change of a parameter in a round, where a study names none: as small as it can be with less than a
    # thousandth of an update beyond it. It is also how far a coordinator could move the model in a round.
    clip: ClassVar[float] = 1.0
    # Keys of a study and the values that suit this task where the study does not say: {"simulation.partition":
    # "natural", "strategy.learning_rate": 0.003}. `strategy.` keys are those that every strategy has (LocalTraining).
    defaults: ClassVar[Mapping[str, Any]] = {}
    # The same for one strategy, by its name.
    defaults_with: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    # Whether rows may belong to groups (`Split.groups`): otherwise `privacy.unit = "group"` is refused at once.
    may_have_groups: ClassVar[bool] = True
    # Of a task that cannot make up data: names under which a simulation looks for them in the folder SECURE_FL_DATA,
    # and where to get them.
    public_files: ClassVar[tuple[str, ...]] = ()
    public_source: ClassVar[str] = ""

    settings: TaskSettings

    def __init__(self, settings: TaskSettings | None = None) -> None:
        # Parsed, so that a setting without a default is asked for by name.
        self.settings = self.Settings.parse({}, where="task") if settings is None else settings

    @abstractmethod
    def model(self) -> nn.Module:
        """A fresh model on the CPU, initialised from torch's global generator, which the caller seeds."""

    @abstractmethod
    def load(self, source: Source) -> LocalData:
        """This site's data. Raises `DataError` when they cannot be read or do not fit the task."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch: cross-entropy or squared error, by `kind`."""
        if self.kind == "classification":
            return functional.cross_entropy(outputs, targets)
        return _squared_error(outputs, targets)

    def blocks(self, model: nn.Module) -> Mapping[str, nn.Module]:
        """The model's blocks, in order: by default its top-level children that have state to share."""
        return {name: child for name, child in model.named_children() if _has_state(child)}

    def head(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The blocks, out of `names`, that a site keeps where a strategy gives each its own last layer: the last."""
        return names[-1:]

    def cells(self, names: tuple[str, ...]) -> tuple[str, ...]:  # noqa: ARG002
        """The blocks o_0, o_1, …, o_M, out of `names`, that a strategy may share to different depths; none by default.

        They follow each other in the model, and what comes out of any of them has the same shape.
        """
        return ()

    def auxiliary(self, seed: int) -> Split | None:  # noqa: ARG002
        """Rows of this kind that belong to no site, for strategies whose coordinator has data; none by default."""
        return None

    def evaluate(self, model: nn.Module, split: Split, batch_size: int = 1024) -> Metrics:
        """Loss and metrics of `model` on `split`, averaged over samples; the model is left as it was found.

        Raises `DataError` for an empty split.
        """
        if len(split) == 0:
            raise DataError("there are no samples to evaluate on")
        device = next(model.parameters(), split.inputs).device
        score = _accuracy if self.kind == "classification" else _squared_error
        loss = scored = 0.0
        tally = Tally(self.metrics)
        with evaluating(model), torch.no_grad():
            for start in range(0, len(split), batch_size):
                outputs = model(split.inputs[start : start + batch_size].to(device))
                if self.kind == "classification" and (outputs.ndim < 2 or outputs.shape[1] < 2):
                    raise DataError(
                        "a task that classifies needs a model with an output for each class; this one has one output",
                        advice="for yes and no give it two, and leave out a final sigmoid: the loss is cross-entropy",
                    )
                targets = split.targets[start : start + batch_size].to(device)
                loss += float(self.loss(outputs, targets)) * len(targets)
                scored += float(score(outputs, targets)) * len(targets)
                tally.add(outputs, targets)
        mean = scored / len(split)
        return Metrics(
            loss=loss / len(split),
            accuracy=mean if self.kind == "classification" else None,
            mse=mean if self.kind == "regression" else None,
            samples=len(split),
            sums=tally.sums,
        )


def _rows(
    inputs: npt.NDArray[Any], targets: npt.NDArray[Any], groups: npt.NDArray[np.int64] | None, rows: Indices
) -> Split:
    return Split(
        inputs=_tensor(inputs[rows]),
        targets=_tensor(targets[rows]),
        groups=None if groups is None else torch.from_numpy(groups[rows]),
    )


def _tensor(rows: npt.NDArray[Any]) -> Tensor:
    """Rows as a tensor: real numbers as float32, like the models; class numbers and tokens as they are."""
    tensor = torch.from_numpy(np.ascontiguousarray(rows))
    # The strides that the shape implies, without a copy. NumPy may give an axis of length 1 another one, torch then
    # takes images of one channel for "channels last", and Opacus 1.6 computes wrong gradients from those.
    tensor = tensor.view(-1).view(tensor.shape)
    return tensor.float() if tensor.is_floating_point() else tensor


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    # (n, 1) against (n,) would broadcast to every pair of rows and train towards the mean, without a word.
    if outputs.shape != targets.shape:
        raise DataError(f"outputs of shape {list(outputs.shape)} for targets of shape {list(targets.shape)}")
    return functional.mse_loss(outputs, targets)


def _accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == targets).float().mean()


def _has_state(module: nn.Module) -> bool:
    return any(True for _ in module.parameters()) or any(b.is_floating_point() for b in module.buffers())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and back. Module by module, since a task may keep a frozen part in evaluation mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


# --- arrays in a file -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Arrays:
    """A data set in memory: rows, their classes and, where known, the site and the group each row came from."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]
    sites: npt.NDArray[Any] | None = None
    groups: npt.NDArray[Any] | None = None


def read_npz(source: Source, *, shape: tuple[int, ...], classes: int) -> Arrays:
    """The arrays `x` (n, *shape), `y` (n,) and, optionally, `sites` (n,) and `groups` (n,) of a site's .npz file.

    Raises `DataError`, in one line that names the file and what should be in it. No message quotes a value.
    """
    rows = ", ".join(["n", *map(str, shape)])
    expected = f"a .npz file with arrays x ({rows}) of numbers and y (n,) of integers 0 to {classes - 1}"
    if source.path is None:
        raise DataError(
            f"this site has no data file: the task reads {expected}",
            advice="set path in the [datasets.ID] section of the node file",
        )
    if source.format not in {None, "npz"}:
        raise DataError(f"{source.path}: format {source.format!r} is not supported; expected {expected}")
    found = open_npz(source.path, expected)
    try:
        arrays = Arrays(
            x=found["x"].astype(np.float32, casting="same_kind"),
            y=found["y"].astype(np.int64, casting="safe"),
            sites=found.get("sites"),
            groups=found.get("groups"),
        )
    except (KeyError, TypeError):
        raise DataError(f"{source.path}: an array is missing or not numeric; expected {expected}") from None
    problem = _problem(arrays, shape, classes)
    if problem:
        raise DataError(f"{source.path}: {problem}; expected {expected}")
    return arrays


def require_path(source: Source, expected: str, *, formats: Collection[str]) -> Path:
    """The file or folder of a site, if it exists and its format is one of `formats` or left open.

    Raises `DataError`, in one line that says what was `expected`.
    """
    if source.path is None:
        raise DataError(
            f"this site has no data file; expected {expected}",
            advice="set simulation.path, or path in the [datasets.ID] section of the node file",
        )
    if source.format is not None and source.format not in formats:
        raise DataError(f"{source.path}: format {source.format!r} is not supported; expected {expected}")
    if not source.path.exists():
        raise DataError(f"{source.path}: no such file or folder; expected {expected}")
    return source.path


def open_npz(path: Path, expected: str) -> dict[str, npt.NDArray[Any]]:
    """Every array of a .npz file; `DataError` names the file and says what was `expected`."""
    try:
        # Pickled arrays could run code as they are read.
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected {expected}") from None
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile):
        raise DataError(f"{path}: cannot be read; expected {expected}") from None


def _problem(arrays: Arrays, shape: tuple[int, ...], classes: int) -> str | None:
    """What is wrong with the arrays, in words; None when nothing is."""
    if arrays.x.shape[1:] != shape or arrays.y.ndim != 1:
        return f"x is {list(arrays.x.shape)} and y is {list(arrays.y.shape)}"
    others = [labels for labels in (arrays.sites, arrays.groups) if labels is not None]
    if len(arrays.x) != len(arrays.y) or any(labels.shape != arrays.y.shape for labels in others):
        return "the arrays differ in length"
    if len(arrays.y) < 2:
        return "fewer than 2 rows"
    if not np.isfinite(arrays.x).all():
        return "x has missing or infinite values"
    if arrays.y.min() < 0 or arrays.y.max() >= classes:
        return "y has values that are not classes of this task"
    return None
