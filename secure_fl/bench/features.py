"""The features that the sites of a finished run have in common, seen along their two principal axes.

Every site's own model takes some of its own test rows as far as the last block that the site shares: with `fedasa` as
many cells as it chose, otherwise the last one of the strategy's request that is not the head. One person holds all the
sites' folders here: no deployed study can draw this.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from secure_fl import tasks
from secure_fl.report.scatter import Points
from secure_fl.results import traces
from secure_fl.study.settings import Study

if TYPE_CHECKING:
    from secure_fl.tasks.base import LocalData

_ROWS, _SITES = 400, 16  # at most, of all sites together


def depths(folder: Path) -> dict[str, int]:
    """How many cells each site of a run shared in the end, where the strategy has it choose."""
    noted = {site.name: traces.read(site / "traces.jsonl") for site in sorted((folder / "nodes").iterdir())}
    return {
        name: int(rounds[max(rounds)]["depth"]["m*"])
        for name, rounds in noted.items()
        if rounds and "depth" in rounds[max(rounds)]
    }


def data_of(study: Study, site: str) -> LocalData:
    """What a simulated site of the study holds."""
    from secure_fl.tasks.base import Share, Source

    index, of = list(study.study.roster).index(site), len(study.study.roster)
    share = Share(index=index, of=of, seed=study.study.seed, partition=study.simulation.partition_settings())
    path = Path(study.simulation.path) if study.simulation.path else None
    task = tasks.create(study.task.name, study.task.settings)
    return task.load(Source(path=path, format=study.simulation.format or None, share=share))


def shared_features(folder: Path) -> Points | None:
    """Of the run in `folder`; None where nothing is shared, or rows have no classes."""
    import torch
    from safetensors.torch import load_file

    from secure_fl.strategies.fedasa import outputs
    from secure_fl.tasks.model_blocks import initial_blocks

    study = Study.read(folder / "study.toml")
    task, strategy = tasks.create(study.task.name, study.task.settings), study.make_strategy()
    layout, _ = initial_blocks(task, study.study.seed)
    head = task.head(layout.names)
    shared = [name for name in strategy.request_for(task, layout).blocks if name not in head]
    if task.kind != "classification" or not shared:
        return None
    chosen, roster = depths(folder), list(study.study.roster)
    places, classes, sites = [], [], []
    for index in np.unique(np.linspace(0, len(roster) - 1, min(_SITES, len(roster))).astype(int)).tolist():
        site = roster[index]
        own = folder / "nodes" / site / "model.safetensors"
        if not own.exists():
            continue  # It was never there at the end.
        test = data_of(study, site).test
        rows = torch.linspace(0, len(test) - 1, min(len(test), _ROWS // min(_SITES, len(roster)))).long()
        model = task.model()
        model.load_state_dict({name.replace("/", "."): tensor for name, tensor in load_file(own).items()})
        last = task.cells(layout.names)[chosen[site]] if site in chosen else shared[-1]
        places.append(outputs(task, model, (last,), test.inputs[rows])[0].numpy())
        classes += test.targets[rows].tolist()
        sites += [site] * len(rows)
    if len(sites) < 3:
        return None
    axes, explained = _principal(np.concatenate(places))
    return Points(places=axes, classes=tuple(map(int, classes)), sites=tuple(sites), explained=explained)


def _principal(rows: npt.NDArray[np.float32]) -> tuple[tuple[tuple[float, float], ...], float]:
    """The rows on their first two principal axes, and the part of the variance that those have."""
    centred = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
    left, strengths, _ = np.linalg.svd(centred, full_matrices=False)
    variance = strengths**2
    placed = left[:, :2] * strengths[:2]
    # A sign is no finding: each axis points to where its largest row is.
    placed *= np.sign(placed[np.abs(placed).argmax(axis=0), [0, 1]])
    return tuple((float(x), float(y)) for x, y in placed), float(variance[:2].sum() / (variance.sum() or 1.0))
