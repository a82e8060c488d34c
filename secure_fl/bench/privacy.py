"""What differential privacy costs in accuracy: one study under several ε, beside itself without noise.

Each ε and seed is one `secure-fl run` in a folder of its own; finished ones are not repeated.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from secure_fl.bench.strategies import Run, run_once
from secure_fl.study.settings import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """One ε over all seeds; None is training without noise."""

    epsilon: float | None  # that the study promises
    spent: float | None  # the most at any site of any seed, recomputed from the ledgers
    noise: tuple[float, float] | None  # σ at the sites that need least and most, in multiples of the clip
    accuracy: float | None  # mean over sites, then over seeds
    accuracy_std: float | None  # over seeds
    mse: float | None
    worst: float | None  # the worst site of any seed
    seconds: float  # of a run, on average


def run(
    table: Mapping[str, Any],
    *,
    epsilons: Sequence[float | None],
    delta: float,
    seeds: Sequence[int],
    folder: Path,
    started: Callable[[str], None],
    finished: Callable[[], None],
) -> dict[str, Any]:
    """Run what is missing; `table` is a study without seed and without [privacy] epsilon and delta."""
    studies = {(epsilon, seed): _study(table, epsilon, delta, seed) for epsilon in epsilons for seed in seeds}
    rows = []
    for epsilon in epsilons:
        runs = []
        for seed in seeds:
            started(f"{_name(epsilon)}, seed {seed}")
            runs.append(run_once(studies[epsilon, seed], seed, folder / f"{_name(epsilon)}-{seed}"))
            finished()
        rows.append(asdict(_priced(epsilon, runs)))
    first = studies[epsilons[0], seeds[0]]
    return {
        "task": first.task.name,
        "strategy": first.strategy.name,
        "nodes": first.simulation.nodes,
        "rounds": first.study.rounds,
        "delta": delta,
        "seeds": list(seeds),
        "results": rows,
    }


def _study(table: Mapping[str, Any], epsilon: float | None, delta: float, seed: int) -> Study:
    privacy = {**table.get("privacy", {}), "mode": "none"}
    if epsilon is not None:
        privacy |= {"mode": "dp-sgd", "epsilon": epsilon, "delta": delta}
    common = {"study": {**table.get("study", {}), "seed": seed}, "privacy": privacy, "metrics": {"share": "per-node"}}
    return Study.parse({**table, **common})


def _priced(epsilon: float | None, runs: Sequence[Run]) -> Priced:
    summaries = [run.summary for run in runs]
    nodes = [node for summary in summaries for node in summary["nodes"]]
    accuracies = [s["mean_accuracy"] for s in summaries if s["mean_accuracy"] is not None]
    errors = [s["mean_mse"] for s in summaries if s["mean_mse"] is not None]
    worst = [node["accuracy"] for node in nodes if node["accuracy"] is not None]
    spent = [node["epsilon"] for node in nodes if node["epsilon"] is not None]
    return Priced(
        epsilon=epsilon,
        spent=max(spent, default=None),
        noise=_noise(runs) if epsilon is not None else None,
        accuracy=statistics.fmean(accuracies) if accuracies else None,
        accuracy_std=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        mse=statistics.fmean(errors) if errors else None,
        worst=min(worst, default=None),
        seconds=statistics.fmean(summary["seconds"] for summary in summaries),
    )


def _noise(runs: Sequence[Run]) -> tuple[float, float]:
    from secure_fl.simulation.units import declared_units

    found = []
    for run in runs:
        study = Study.read(run.folder / "study.toml")
        plans = [study.privacy_plan(units=units) for units in set(declared_units(study))]
        found += [plan.noise for plan in plans if plan is not None]
    return min(found), max(found)


def _name(epsilon: float | None) -> str:
    return "without noise" if epsilon is None else f"epsilon {epsilon:g}"
