"""A task's own code, called so that its mistakes are said to be the task's: which method fails, where, and what to do.

For whoever writes a task, or tries one: the text of an exception may quote a row. What a deployed node does with such
errors is its own business (node/reasons.py).
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from secure_fl.errors import SecureFLError, TaskUnavailableError
from secure_fl.tasks import in_process

if TYPE_CHECKING:
    from torch import nn

    from secure_fl.tasks.base import LocalData, Source, Task

T = TypeVar("T")

_KINDS = ("classification", "regression")
_OURS = Path(__file__).parents[1]


def run_own(work: Callable[[], T], what: str, *, advice: str) -> T:
    """The result of `work`, which calls the task's method `what`. Raises `TaskUnavailableError` where that fails."""
    try:
        return work()
    except SecureFLError:
        raise
    except Exception as error:  # A task may fail in any way it likes.
        raise TaskUnavailableError(
            f"the task's `{what}` fails: {type(error).__name__}: {error}{_line_of(error)}", advice=advice
        ) from error


def mend(task: type[Task]) -> str:
    """What to do about a mistake in a task: no command finds one that only this process has."""
    name = f"{task.__module__}:{task.__qualname__}"
    here = in_process.find(name) is not None
    return "correct the task" if here else f"correct the task; `secure-fl task check {name}` says where it fails"


def require_declared(name: str, task: Task) -> Task:
    """`task`, if what it says of itself can be used. Raises `TaskUnavailableError`."""
    from secure_fl.tasks.base import Preprocessing
    from secure_fl.tasks.metrics import Metric

    kind: Any = getattr(task, "kind", None)
    _require(
        kind in _KINDS,
        f"task {name!r} does not say of which kind it is" if kind is None else f"task {name!r}: kind is {kind!r}",
        'write kind = "classification" or kind = "regression" in the class',
    )
    words = get_args(Preprocessing)
    _require(
        task.preprocessing in words,
        f"task {name!r}: preprocessing is {task.preprocessing!r}",
        f"one of {', '.join(words)}",
    )
    metrics: Any = task.metrics
    listed = isinstance(metrics, tuple | list)
    odd = [metric for metric in metrics if not isinstance(metric, Metric)] if listed else [metrics]
    wrong = (
        f"has {odd[0]!r} in it, which is no metric" if odd and listed else f"is {metrics!r}, and no tuple of metrics"
    )
    _require(
        not odd,
        f"task {name!r}: `metrics` {wrong}",
        "for example metrics = (Auc(), Sensitivity(at_specificity=0.9)), from secure_fl.tasks.metrics",
    )
    run_own(lambda: [(metric.name, metric.size) for metric in metrics], "metrics", advice=mend(type(task)))
    return task


def require_settings(name: str, task: type[Task]) -> None:
    """Raise `TaskUnavailableError` where a task's `Settings` are none."""
    from secure_fl.settings import Settings

    _require(
        inspect.isclass(task.Settings) and issubclass(task.Settings, Settings),
        f"task {name!r}: Settings is {task.Settings!r}",
        "write class MySettings(TaskSettings), and Settings = MySettings in the task",
    )


def made_model(task: Task, *, advice: str = "") -> nn.Module:
    """The task's model. Raises `TaskUnavailableError` where the task makes none."""
    from torch import nn

    model: Any = run_own(task.model, "model", advice=advice or mend(type(task)))
    _require(
        isinstance(model, nn.Module),
        f"the task's `model` returns {_a(model)}, and no torch module",
        "return the module that it builds",
    )
    found: nn.Module = model
    return found


def named_blocks(task: Task, model: nn.Module, *, advice: str = "") -> dict[str, nn.Module]:
    """The model's blocks. Raises `TaskUnavailableError` where the task names none."""
    from torch import nn

    blocks = run_own(lambda: dict(task.blocks(model)), "blocks", advice=advice or mend(type(task)))
    for name, block in blocks.items():
        _require(
            isinstance(name, str) and isinstance(block, nn.Module),
            f"the task's `blocks` returns {name!r}: {_a(block)}",
            "return names of blocks and their modules",
        )
    return blocks


def loaded_data(task: Task, source: Source, *, advice: str = "") -> LocalData:
    """A site's data, as the task loads them. Raises `DataError`, or `TaskUnavailableError` for what are no data."""
    from secure_fl.tasks.base import LocalData, Split

    data: Any = run_own(lambda: task.load(source), "load", advice=advice or mend(type(task)))
    _require(
        isinstance(data, LocalData) and isinstance(data.train, Split) and isinstance(data.test, Split),
        f"the task's `load` returns {_a(data)}, and not the rows to train on and to test on",
        "return LocalData.cut(inputs, targets, train, test); see docs/tasks.md",
    )
    found: LocalData = data
    return found


def _require(fits: bool, message: str, advice: str) -> None:
    if not fits:
        raise TaskUnavailableError(message, advice=advice)


def _a(value: object) -> str:
    return "nothing" if value is None else f"an object of type {type(value).__name__}"


def _line_of(error: BaseException) -> str:
    """The last line of somebody else's file that led there."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if _OURS not in Path(frame.filename).parents and "torch" not in frame.filename
    ]
    return f", in {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
