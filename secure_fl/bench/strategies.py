"""Strategies beside each other on the same data, seeds and rounds: how good, how even, how many bytes.

Each combination of strategy, protection and seed is one `secure-fl run` in a folder of its own. One that is finished is
not run again and one that was interrupted goes on, so the whole can be stopped at any time.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from secure_fl import strategies as registry
from secure_fl.bench.features import depths, shared_features
from secure_fl.errors import SettingsError
from secure_fl.events import ignore
from secure_fl.files import write_atomically
from secure_fl.report import comparison
from secure_fl.report.scatter import Points
from secure_fl.results.record import NodeRound, StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.settings import require_known
from secure_fl.study.settings import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSite:
    """One site at the end of one run."""

    seed: int
    name: str
    samples: int
    accuracy: float | None
    mse: float | None
    depth: int | None  # how many cells it shares, where that is its choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """After so many rounds: mean over sites, then mean and standard deviation over seeds."""

    round: int
    accuracy: float | None
    accuracy_std: float | None
    mse: float | None
    mse_std: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Sites whose number of training samples has the same power of ten, over the seeds that have any."""

    samples: tuple[int, int]  # the fewest and the most among them
    nodes: int  # in all runs together
    accuracy: float | None
    accuracy_std: float | None
    mse: float | None
    mse_std: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One strategy under one protection, over all seeds. What a task does not measure is None."""

    strategy: str
    protection: str
    accuracy: float | None  # mean over nodes, then over seeds
    accuracy_std: float | None  # over seeds; None for a single one
    fairness_std: float | None  # over nodes, mean over seeds: smaller is more even
    worst_accuracy: float | None  # the worst node of any seed
    mse: float | None
    mse_std: float | None
    fairness_std_mse: float | None
    worst_mse: float | None
    bytes_up_per_node_round: float | None
    bytes_up_per_node: float | None  # in the whole run
    rounds_to_target: float | None  # mean over seeds; None unless every seed reached it
    bytes_to_target: float | None  # up, per node
    combined: float | None  # of the times that a site took part in a combine, how often one was opened at it
    seconds: float  # of all seeds' runs, one after the other
    curve: tuple[Moment, ...]
    groups: tuple[Group, ...]  # by number of samples, the fewest first
    nodes: tuple[MeasuredSite, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One finished run."""

    seed: int
    folder: Path
    record: StudyRecord
    summary: dict[str, Any]

    @property
    def sites(self) -> list[MeasuredSite]:
        """Every site that was measured, as its last measurement found it."""
        last: dict[str, NodeRound] = {}
        chosen = depths(self.folder)
        for entry in self.record.rounds:
            last |= {node.name: node for node in entry.nodes if node.samples is not None}
        return [
            MeasuredSite(
                seed=self.seed,
                name=name,
                samples=last[name].samples or 0,
                accuracy=node.accuracy,
                mse=node.mse,
                depth=chosen.get(name),
            )
            for name, node in sorted(last.items())
        ]


def run(
    table: Mapping[str, Any],
    *,
    strategies: Sequence[str],
    protections: Sequence[str],
    seeds: Sequence[int],
    target: float | None,
    folder: Path,
    started: Callable[[str], None],
    finished: Callable[[], None],
) -> dict[str, Any]:
    """Run what is missing and compare everything; leaves the result, its page and its charts in `folder`.

    `table` is a study without strategy, protection and seed. A section with the name of one of `strategies` has the
    settings of that one alone; with a `name` in it, what is compared is that strategy under a name of its own.
    """
    common = {key: value for key, value in table.items() if key not in strategies}
    combinations = list(product(strategies, protections))
    # All of them are looked at first: a mistake in the last one should not come to light hours later.
    studies = {(*pair, seed): _study(table, common, *pair, seed) for pair in combinations for seed in seeds}
    comparisons, features = [], []
    for strategy, protection in combinations:
        runs: list[Run] = []
        for seed in seeds:
            started(f"{strategy}, {protection}, seed {seed}")
            runs.append(run_once(studies[strategy, protection, seed], seed, folder / f"{strategy}-{protection}-{seed}"))
            finished()
        comparisons.append(asdict(_compare(strategy, protection, runs, target)))
        features.append(shared_features(runs[0].folder))
    study = Study.parse(common)
    result = {
        "task": study.task.name,
        "partition": study.simulation.partition,
        "nodes": study.simulation.nodes,
        "rounds": study.study.rounds,
        "seeds": list(seeds),
        "target": target,
        "results": comparisons,
    }
    _write(result, features, folder)
    return result


def _study(table: Mapping[str, Any], common: Mapping[str, Any], strategy: str, protection: str, seed: int) -> Study:
    own = {"name": strategy, **table.get(strategy, {})}
    require_known("strategy", own["name"], registry.known())
    study = Study.parse(
        {
            **common,
            "study": {**common.get("study", {}), "seed": seed},
            "strategy": {**common.get("strategy", {}), **own},
            "protection": {**common.get("protection", {}), "kind": protection},
            "metrics": {"share": "per-node"},
        }
    )
    study.make_strategy()
    return study


def run_once(study: Study, seed: int, folder: Path) -> Run:
    """One run, or what it left if it is finished. Raises `SettingsError` where `folder` has another one."""
    from secure_fl.simulation.run import run as run_study  # needs torch, which `--help` should not wait for

    done = folder / "summary.json"
    if not done.exists():
        record, summary = run_study(study, engine="threads", folder=folder, policy={}, listener=ignore)
        return Run(seed=seed, folder=folder, record=record, summary=summary)
    kept = Study.read(folder / "study.toml")
    wanted = study.completed()
    wanted = wanted.model_copy(update={"study": wanted.study.model_copy(update={"roster": kept.study.roster})})
    # By id, as a site would: a list in one is a tuple in the other, and means the same.
    if (wanted.id, wanted.simulation) != (kept.id, kept.simulation):
        raise SettingsError(f"{folder}: holds a run with other settings", advice="choose another --out")
    record = StudyRecord.load(folder / "coordinator" / "state" / "studies" / kept.id / "record.json")
    summary = json.loads(done.read_text(encoding="utf-8"))
    return Run(seed=seed, folder=folder, record=record, summary=summary)


def _write(result: Mapping[str, Any], features: Sequence[Points | None], folder: Path) -> None:
    """The result for programs, for people, and for pages that people write."""
    write_atomically(folder / "results.json", json.dumps(result, indent=1).encode())
    write_atomically(folder / "report.html", comparison.render(result, features).encode())
    for name, drawing in comparison.drawings(result, features).items():
        write_atomically(folder / name, drawing.encode())


# --- figures --------------------------------------------------------------------------------------------------


def _compare(strategy: str, protection: str, runs: Sequence[Run], target: float | None) -> Comparison:
    summaries = [run.summary for run in runs]
    accuracies = [summary["mean_accuracy"] for summary in summaries]
    errors = [summary["mean_mse"] for summary in summaries]
    reached = [_reached(run.record, target) for run in runs] if target is not None else [None]
    sites = [run.sites for run in runs]
    return Comparison(
        strategy=strategy,
        protection=protection,
        accuracy=_mean(accuracies),
        accuracy_std=_std(accuracies),
        fairness_std=_mean([summary["std_accuracy"] for summary in summaries]),
        worst_accuracy=min((site.accuracy for run in sites for site in run if site.accuracy is not None), default=None),
        mse=_mean(errors),
        mse_std=_std(errors),
        fairness_std_mse=_mean(_std(site.mse for site in run) for run in sites),
        worst_mse=max((site.mse for run in sites for site in run if site.mse is not None), default=None),
        bytes_up_per_node_round=_mean([summary["bytes_up_per_node_round"] for summary in summaries]),
        bytes_up_per_node=_mean(_mean(node["bytes_up"] for node in summary["nodes"]) for summary in summaries),
        rounds_to_target=_mean([None if at is None else at[0] for at in reached]),
        bytes_to_target=_mean([None if at is None else at[1] for at in reached]),
        combined=_combined(runs),
        seconds=sum(summary["seconds"] for summary in summaries),
        curve=_curve(runs),
        groups=_groups(sites),
        nodes=tuple(site for run in sites for site in run),
    )


def _combined(runs: Sequence[Run]) -> float | None:
    rounds = [entry for run in runs for entry in run.record.rounds if entry.kind is RoundKind.TRAIN]
    if all(run.record.combinations_possible is None for run in runs):
        return None
    return sum(entry.combinations for entry in rounds) / sum(len(entry.cohort) for entry in rounds)


def _curve(runs: Sequence[Run]) -> tuple[Moment, ...]:
    """The means of all rounds; those in round r's record are of the model before it: r − 1 rounds made it."""
    by_round: dict[int, list[tuple[float | None, float | None]]] = {}
    for run in runs:
        for entry in run.record.rounds:
            by_round.setdefault(entry.number - 1, []).append((entry.mean_accuracy, entry.mean_mse))
    moments = []
    for number, values in sorted(by_round.items()):
        accuracies, errors = zip(*values, strict=True)
        moments.append(
            Moment(
                round=number,
                accuracy=_mean(accuracies),
                accuracy_std=_std(accuracies),
                mse=_mean(errors),
                mse_std=_std(errors),
            )
        )
    return tuple(moments)


def _groups(runs: Sequence[Sequence[MeasuredSite]]) -> tuple[Group, ...]:
    sites = [site for run in runs for site in run]
    groups = []
    for power in sorted({_power(site) for site in sites}):
        inside = [members for run in runs if (members := [site for site in run if _power(site) == power])]
        samples = [site.samples for members in inside for site in members]
        accuracies = [_mean(site.accuracy for site in members) for members in inside]
        errors = [_mean(site.mse for site in members) for members in inside]
        groups.append(
            Group(
                samples=(min(samples), max(samples)),
                nodes=len(samples),
                accuracy=_mean(accuracies),
                accuracy_std=_std(accuracies),
                mse=_mean(errors),
                mse_std=_std(errors),
            )
        )
    return tuple(groups)


def _power(site: MeasuredSite) -> int:
    return math.floor(math.log10(max(site.samples, 1)))


def _reached(record: StudyRecord, target: float) -> tuple[float, float] | None:
    """After how many rounds, and bytes up per node, the mean accuracy was there first."""
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
    """The standard deviation; None where one of them is unknown, and of a single one: it says nothing of a spread."""
    known = list(values)
    return None if len(known) < 2 or None in known else statistics.pstdev(value for value in known if value is not None)
