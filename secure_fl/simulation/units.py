"""How many units a simulated site declares: a person would know about how many; here somebody has to count."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from secure_fl import tasks
from secure_fl.study.settings import Study
from secure_fl.tasks import in_process


def plan_lines(study: Study) -> tuple[str, ...]:
    """What a simulated study costs, before it begins: at the site with fewest units, which needs most noise."""
    units = declared_units(study)
    plan = study.privacy_plan(units=min(units))
    if plan is None:
        return ()
    span = f"{min(units)}" if len(set(units)) == 1 else f"{min(units)} to {max(units)}"
    return (
        f"differential privacy at sites that declare {span} {plan.unit}s each; with {min(units)}:",
        *(f"  {line}" for line in plan.explain()),
        "  In a simulation noise comes from a seed, so that it protects nobody: this ε is for planning only.",
    )


def declared_units(study: Study) -> list[int]:
    """One number for each site, rounded to two digits as a site would, of what it has to train on.

    Raises `DataError` where a unit is a group and the task has none.
    """
    # Counted once, before and after the sites have certificates.
    anonymous = study.study.model_copy(update={"roster": {}, "initial": ""})
    counted = study.model_copy(update={"study": anonymous})
    # A task of this process may be defined anew under its name, and then has other rows.
    own = in_process.find(study.task.name)
    return list(_counted(counted.model_dump_json(), len(study.study.roster) or study.simulation.nodes, own))


@lru_cache(maxsize=8)
def _counted(settings: str, sites: int, _own: object) -> tuple[int, ...]:
    study = Study.parse(json.loads(settings))
    # torch, for studies under differential privacy alone
    from secure_fl.privacy.dp_sgd import units_of
    from secure_fl.tasks.base import Share, Source

    simulation = study.simulation
    task = tasks.create(study.task.name, study.task.settings)
    path = Path(simulation.path).resolve() if simulation.path else None
    counts = []
    for index in range(sites):
        share = Share(index=index, of=sites, partition=simulation.partition_settings(), seed=study.study.seed)
        train = task.load(Source(path=path, format=simulation.format or None, share=share)).train
        counts.append(len(set(units_of(train, study.privacy.unit).tolist())))
    return tuple(_rounded(count) for count in counts)


def _rounded(count: int) -> int:
    return int(float(f"{count:.2g}"))
