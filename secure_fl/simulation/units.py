"""How many units a simulated site declares: a person would know about how many; here somebody has to count."""

from __future__ import annotations

from pathlib import Path

from secure_fl import tasks
from secure_fl.study.settings import Study


def declared_units(study: Study) -> list[int]:
    """One number for each site, rounded to two digits as a site would, of what it has to train on."""
    from secure_fl.tasks.base import Share, Source  # torch, for studies under differential privacy alone

    simulation, sites = study.simulation, len(study.study.roster)
    task = tasks.create(study.task.name, study.task.settings)
    path = Path(simulation.path).resolve() if simulation.path else None
    counts = []
    for index in range(sites):
        share = Share(index=index, of=sites, partition=simulation.partition_settings(), seed=study.study.seed)
        train = task.load(Source(path=path, format=simulation.format or None, share=share)).train
        groups = train.groups if study.privacy.unit == "group" else None
        counts.append(len(train) if groups is None else len(set(groups.tolist())))
    return [_rounded(count) for count in counts]


def _rounded(count: int) -> int:
    return int(float(f"{count:.2g}"))
