"""Strategies beside each other on the same data, seeds and rounds: how good, how even, how many bytes.

Each combination of strategy, protection and seed is one `secure-fl run` in a folder of its own. One that is finished is
not run again and one that was interrupted goes on, so the whole can be stopped at any time.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from secure_fl.errors import SettingsError
from secure_fl.events import ignore
from secure_fl.record import StudyRecord
from secure_fl.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One strategy under one protection, over all seeds. What a task does not measure is None."""

    strategy: str
    protection: str
    accuracy: float | None  # mean over nodes, then over seeds
    accuracy_std: float | None  # over seeds
    fairness_std: float | None  # over nodes, mean over seeds: smaller is more even
    worst_accuracy: float | None  # the worst node of any seed
    mse: float | None
    mse_std: float | None
    bytes_up_per_node_round: float | None
    rounds_to_target: float | None  # mean over seeds; None unless every seed reached it
    bytes_to_target: float | None  # up, per node
    seconds: float


def run(
    table: Mapping[str, Any],
    *,
    strategies: Sequence[str],
    protections: Sequence[str],
    seeds: Sequence[int],
    target: float | None,
    folder: Path,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Run what is missing and compare everything. `table` is a study without strategy, protection and seed."""
    comparisons = []
    for strategy, protection in product(strategies, protections):
        runs = []
        for seed in seeds:
            note(f"{strategy}, {protection}, seed {seed}")
            runs.append(_one(table, strategy, protection, seed, folder / f"{strategy}-{protection}-{seed}"))
        comparisons.append(asdict(_compare(strategy, protection, runs, target)))
    study = Study.parse(table)
    return {
        "task": study.task.name,
        "partition": study.simulation.partition,
        "nodes": study.simulation.nodes,
        "rounds": study.study.rounds,
        "seeds": list(seeds),
        "target": target,
        "results": comparisons,
    }


def _one(
    table: Mapping[str, Any], strategy: str, protection: str, seed: int, folder: Path
) -> tuple[StudyRecord, dict[str, Any]]:
    from secure_fl.simulation.run import run as run_study  # needs torch, which `--help` should not wait for

    study = Study.parse(
        {
            **table,
            "study": {**table.get("study", {}), "seed": seed},
            "strategy": {**table.get("strategy", {}), "name": strategy},
            "protection": {**table.get("protection", {}), "kind": protection},
            "metrics": {"share": "per-node"},
        }
    )
    done = folder / "summary.json"
    if not done.exists():
        return run_study(study, engine="threads", folder=folder, policy={}, listener=ignore)
    kept = Study.read(folder / "study.toml")
    wanted = study.completed()
    roster = kept.study.model_copy(update={"roster": {}})
    if kept.model_copy(update={"study": roster}) != wanted:
        raise SettingsError(f"{folder}: holds a run with other settings", advice="choose another --out")
    record = StudyRecord.load(folder / "coordinator" / "state" / "studies" / kept.id / "record.json")
    return record, json.loads(done.read_text(encoding="utf-8"))


def _compare(
    strategy: str, protection: str, runs: Sequence[tuple[StudyRecord, dict[str, Any]]], target: float | None
) -> Comparison:
    summaries = [summary for _, summary in runs]
    accuracies = [summary["mean_accuracy"] for summary in summaries]
    errors = [summary["mean_mse"] for summary in summaries]
    reached = [_reached(record, target) for record, _ in runs] if target is not None else [None]
    return Comparison(
        strategy=strategy,
        protection=protection,
        accuracy=_mean(accuracies),
        accuracy_std=_std(accuracies),
        fairness_std=_mean([summary["std_accuracy"] for summary in summaries]),
        worst_accuracy=min(
            (node["accuracy"] for summary in summaries for node in summary["nodes"] if node["accuracy"] is not None),
            default=None,
        ),
        mse=_mean(errors),
        mse_std=_std(errors),
        bytes_up_per_node_round=_mean([summary["bytes_up_per_node_round"] for summary in summaries]),
        rounds_to_target=_mean([None if at is None else at[0] for at in reached]),
        bytes_to_target=_mean([None if at is None else at[1] for at in reached]),
        seconds=sum(summary["seconds"] for summary in summaries),
    )


def _reached(record: StudyRecord, target: float) -> tuple[float, float] | None:
    """After how many rounds, and bytes up per node, the mean accuracy was there first.

    The accuracy in round r's record is that of the model before it: r − 1 rounds made it.
    """
    sent = 0.0
    for entry in record.rounds:
        if entry.mean_accuracy is not None and entry.mean_accuracy >= target:
            return entry.number - 1, sent
        taken = [node.bytes_up for node in entry.nodes if node.outcome == "took part"]
        sent += statistics.fmean(taken) if taken else 0.0
    return None


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean; None where one of them is unknown."""
    known = list(values)
    return None if not known or None in known else statistics.fmean(value for value in known if value is not None)


def _std(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if not known or None in known else statistics.pstdev(value for value in known if value is not None)
