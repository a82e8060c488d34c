"""The JSON object of `secure-fl run --json`, from a study's record."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from secure_fl.results.record import NodeRound, StudyRecord
from secure_fl.results.turns import circle_turns
from secure_fl.rounds import RoundKind

DEPLOYED = "separate machines"  # in place of an engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a site's part in a study cost in privacy."""

    epsilon: float
    delta: float
    budget_used: float | None = None  # of the site's own limit for the data set, over all studies; None without one


def summarise(
    record: StudyRecord,
    *,
    engine: str,
    seconds: float,
    report: str,
    spent: Mapping[str, Spent] | None = None,
) -> dict[str, Any]:
    """Names and fields are a contract. What is not known is null, never 0.

    Accuracies and errors are means over sites, each with its latest measurement and each counting the same, however
    many rows it has; `metrics`, which the task declares, are of the test rows of all sites together.

    `spent` is what each site spent. Where nobody knows but the site, as in a deployment, it is what the study promises,
    which each site enforces.
    """
    promised = _promised(record)
    nodes = [_node(record, name, (spent or {}).get(name, promised)) for name in record.roster]
    training = [round_ for round_ in record.rounds if round_.kind is RoundKind.TRAIN]
    last = record.rounds[-1] if record.rounds else None
    taken = [node for round_ in training for node in round_.nodes if node.outcome == "took part"]
    accuracies = [node["accuracy"] for node in nodes if node["accuracy"] is not None]
    shared = [value for name in record.roster if (value := _last_measured(record, name).global_accuracy) is not None]
    return {
        "study": record.study,
        "strategy": record.strategy,
        "protection": record.protection,
        "engine": engine,
        "rounds": len(training),
        "seconds": round(seconds, 3),
        "mean_accuracy": statistics.fmean(accuracies) if accuracies else last and last.mean_accuracy,
        "std_accuracy": statistics.pstdev(accuracies) if accuracies else None,
        "global_accuracy": statistics.fmean(shared) if shared else last and last.global_accuracy,
        "mean_mse": last and last.mean_mse,
        "metrics": dict(last.metrics) if last else {},
        "bytes_up_per_node_round": _mean(node.bytes_up for node in taken),
        "bytes_down_per_node_round": _mean(node.bytes_down for node in taken),
        "combinations_opened": record.combinations_opened,
        "combinations_possible": record.combinations_possible,
        "blocks_never_opened": list(record.blocks_never_opened),
        "blocks_missing": list(record.blocks_missing),
        "circles": _circles(record),
        # Whether noise came from a seed, as in a simulation: then no ε here protects anybody. null without noise.
        "seeded": None if promised is None else engine != DEPLOYED,
        "nodes": nodes,
        "report": report,
    }


def _promised(record: StudyRecord) -> Spent | None:
    privacy = json.loads(record.settings).get("privacy", {}) if record.settings else {}
    if privacy.get("mode", "none") == "none":
        return None
    return Spent(epsilon=privacy["epsilon"], delta=privacy["delta"])


def _circles(record: StudyRecord) -> list[dict[str, Any]] | None:
    """Where circles do not wait for each other: how often each was heard. Otherwise null."""
    found = [
        {
            "sites": list(circle.members),
            "turns": circle.turns,
            "dropped": circle.dropped,
            "share": circle.share,
            "mean_staleness": circle.mean_age,
            "largest_staleness": circle.oldest,
            "seconds_per_turn": circle.seconds,
        }
        for circle in circle_turns(record)
    ]
    return found or None


def _node(record: StudyRecord, name: str, spent: Spent | None) -> dict[str, Any]:
    rounds = [(round_.kind, node) for round_ in record.rounds for node in round_.nodes if node.name == name]
    last = _last_measured(record, name)
    training = [node for kind, node in rounds if kind is RoundKind.TRAIN]
    return {
        "name": name,
        "samples": last.samples,
        "accuracy": last.accuracy,
        "loss": last.loss,
        "metrics": dict(last.metrics),
        "epsilon": spent and spent.epsilon,
        "delta": spent and spent.delta,
        "budget_used": spent and spent.budget_used,
        "bytes_up": sum(node.bytes_up for _, node in rounds),
        "bytes_down": sum(node.bytes_down for _, node in rounds),
        "rounds_taken": sum(node.outcome == "took part" for node in training),
        "dropped": sum(node.outcome in ("dropped", "sat out") for node in training),
    }


def _last_measured(record: StudyRecord, name: str) -> NodeRound:
    """The latest of a site's rounds with a measurement of its own; one that says nothing where there is none."""
    for entry in reversed(record.rounds):
        for node in entry.nodes:
            if node.name == name and node.samples is not None:
                return node
    return NodeRound(name=name, outcome="absent")


def _mean(values: Iterable[int]) -> float | None:
    present = list(values)
    return statistics.fmean(present) if present else None
