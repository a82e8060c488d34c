"""Whether a simulated study and its data fit together. Of a deployed one only its sites can say."""

from __future__ import annotations

from pathlib import Path

from secure_fl import tasks
from secure_fl.errors import DataError, SettingsError
from secure_fl.study.settings import Study
from secure_fl.tasks.public import FOLDER


def require_data(study: Study) -> None:
    """Load the first simulated site's share. The division is one of all sites, so what is wrong with it shows here.

    Raises `SettingsError` or `DataError`: no file, a partition that does not fit, too many sites, no groups.
    """
    task = tasks.create(study.task.name, study.task.settings)
    simulation = study.simulation
    if task.public_files and not simulation.path:
        raise SettingsError(
            f"task {study.task.name!r} reads files, and simulation.path is empty",
            advice=f"get {task.public_source}; then set simulation.path to it, or put it as {task.public_files[0]} "
            f"into a folder that the environment variable {FOLDER} names",
        )
    from secure_fl.tasks.base import Share, Source

    share = Share(
        index=0,
        of=len(study.study.roster) or simulation.nodes,
        partition=simulation.partition_settings(),
        seed=study.study.seed,
    )
    path = Path(simulation.path).resolve() if simulation.path else None
    data = task.load(Source(path=path, format=simulation.format or None, share=share))
    if study.privacy.unit == "group" and study.privacy.mode != "none" and data.train.groups is None:
        raise DataError(
            f'privacy.unit = "group": the data of task {study.task.name!r} do not say which rows belong together',
            advice='use unit = "record", or data whose rows carry a group (a patient, a machine)',
        )
