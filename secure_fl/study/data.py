"""Whether a simulated study and its data fit together. Of a deployed one only its sites can say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from secure_fl import tasks
from secure_fl.errors import SecureFLError, SettingsError, TaskUnavailableError
from secure_fl.study.settings import Study
from secure_fl.study.simulated import simulated_names
from secure_fl.tasks.own_code import loaded_data, made_model, mend
from secure_fl.tasks.public import FOLDER

if TYPE_CHECKING:
    from secure_fl.tasks.base import LocalData, Task

_ROWS = 8


def require_data(study: Study) -> None:
    """Load the first simulated site's share. The division is one of all sites, so what is wrong with it shows here.

    Raises `SettingsError` or `DataError`: no file, a partition that does not fit, too many sites, a model that does not
    fit the rows.
    """
    task = tasks.create(study.task.name, study.task.settings)
    simulation = study.simulation
    possible = simulated_names(simulation.nodes)
    for name in simulation.slow:
        if name not in possible:
            raise SettingsError(
                f"simulation.slow: no simulated site is called {name!r}",
                advice="they are called " + (f"{possible[0]} to {possible[-1]}" if len(possible) > 1 else possible[0]),
            )
    if task.public_files and not simulation.path:
        raise SettingsError(
            f"task {study.task.name!r} reads files, and simulation.path is empty",
            advice=f"get {task.public_source}; then set simulation.path to it, or put it into a folder that the "
            f"environment variable {FOLDER} names, as {' or '.join(task.public_files)}",
        )
    from secure_fl.tasks.base import Share, Source

    share = Share(
        index=0,
        of=len(study.study.roster) or simulation.nodes,
        partition=simulation.partition_settings(),
        seed=study.study.seed,
    )
    path = Path(simulation.path).resolve() if simulation.path else None
    _require_fit(task, loaded_data(task, Source(path=path, format=simulation.format or None, share=share)), study)


def _require_fit(task: Task, data: LocalData, study: Study) -> None:
    """A few rows through the model. Simulated sites would wait for a repair that nobody makes, and not say of what."""
    import torch

    from secure_fl.tasks.model_blocks import seeded

    rows, targets = data.train.inputs[:_ROWS], data.train.targets[:_ROWS]
    try:
        with seeded(study.study.seed), torch.no_grad():
            task.loss(made_model(task).eval()(rows), targets)
    except SecureFLError:
        raise
    except Exception as error:  # A task may fail in any way it likes. Here the rows are the user's own: quote it.
        raise TaskUnavailableError(
            f"the task {study.task.name!r} fails on the first rows: {type(error).__name__}: {error}",
            advice=mend(type(task)),
        ) from error
