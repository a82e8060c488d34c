"""Training without waiting beside synchronous training, on the same data and in virtual time: bytes, seconds, accuracy.

Every method gets as many uploads as `rounds` synchronous rounds of all sites have. What counts is how many bytes and
virtual seconds it takes to 95 % of the best accuracy of synchronous FedAvg under the same seed, and its own best.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from secure_fl import tasks
from secure_fl.bench.simulated import Course, Federation, Method, Outcome, Point
from secure_fl.bench.virtual import Kind, profiles
from secure_fl.files import write_atomically
from secure_fl.settings import require_known
from secure_fl.strategies.merging import MergeSettings
from secure_fl.tasks.base import Source

REFERENCE = "sync"
TARGET = 0.95  # of the reference's best accuracy

_CACHE, _DELTA = MergeSettings(kind="cache"), MergeSettings(kind="delta")
_PAPER = MergeSettings(kind="cache", discount="paper")
_MORE = {"epochs": 4}  # Strategies have 2 by themselves.

# By name: who is opened together, then how it is merged.
_LISTED = (
    # All circles, opened together in every round.
    Method(name=REFERENCE, drawn=1.0),
    # Twelve of forty sites, others in each round: a sum that circles would not open.
    Method(name="sync-30", circles="sites", drawn=0.3),
    # The same twelve, but every site's last model counts. It needs single sites' models, which no protection opens.
    Method(name="cached-30", circles="sites", drawn=0.3, merge=MergeSettings(kind="cache", discount="none")),
    Method(name="fedasync", strategy="fedasync", circles="speed", merge=_CACHE),
    Method(name="fedbuff", strategy="fedbuff", circles="speed", merge=_DELTA, buffer=3),
    Method(name="random-cache", merge=_CACHE),
    Method(name="random-delta", merge=_DELTA),
    Method(name="speed-cache", circles="speed", merge=_CACHE),
    Method(name="speed-delta", circles="speed", merge=_DELTA),
    Method(name="speed-strict", circles="speed", merge=_CACHE, staleness=32),
    Method(name="speed-paper", circles="speed", merge=MergeSettings(discount="paper")),
    Method(name="aifed", strategy="aifed", settings={"gating": "none"}, circles="speed", merge=_CACHE),
    Method(name="aifed-public", strategy="aifed", settings={"gating": "public"}, circles="speed", merge=_CACHE),
    # Single sites that do not wait for each other: a flush is one sum of those who are done (`rounds.unit = "site"`).
    *(
        Method(name=f"sites-{count}", circles="sites", merge=_DELTA, buffer=count, one_sum=True)
        for count in (4, 10, 20)
    ),
    *(
        Method(
            name=f"aifed-sites10-{gate}",
            strategy="aifed",
            settings={"gating": gate},
            circles="sites",
            merge=_DELTA,
            buffer=10,
            one_sum=True,
        )
        for gate in ("none", "rank", "site")
    ),
    # Each site by itself, as these are published: an update is seen alone, or sites change from sum to sum.
    Method(name="fedasync-sites", strategy="fedasync", circles="sites", merge=_CACHE),
    Method(name="fedbuff-sites", strategy="fedbuff", circles="sites", merge=_DELTA, buffer=10),
    *(
        Method(name=f"aifed-sites-{gate}", strategy="aifed", settings={"gating": gate}, circles="sites", merge=_PAPER)
        for gate in ("none", "rank", "site")
    ),
    Method(name="sync-epochs", settings=_MORE, drawn=1.0),
    Method(name="speed-epochs", settings=_MORE, circles="speed", merge=_CACHE),
    Method(
        name="aifed-epochs",
        strategy="aifed",
        settings={"gating": "public", **_MORE},
        circles="speed",
        merge=_CACHE,
    ),
)
METHODS: Mapping[str, Method] = {method.name: method for method in _LISTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is the same for all methods and seeds."""

    task: str = "digits"
    task_settings: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""
    sites: int = 40
    size: int = 4  # of a circle
    rounds: int = 50
    labels: tuple[int, int] = (2, 6)
    profile: Kind = "tenth"
    row_seconds: float = 0.01  # of training, for one row in one epoch at the quickest site
    # For methods that do not say otherwise.
    strategy: Mapping[str, Any] = field(default_factory=dict)


def run(
    plan: Plan,
    *,
    methods: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    started: Callable[[str], None] = lambda _: None,
    finished: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run what is missing in `folder`, and compare. The reference is run in any case."""
    for name in methods:
        require_known("method", name, METHODS)
    chosen = list(dict.fromkeys((REFERENCE, *methods)))
    outcomes: dict[str, list[Outcome]] = {name: [] for name in chosen}
    for seed in seeds:
        found = _Seed(plan, seed)
        for name in chosen:
            started(f"{name}, seed {seed}")
            outcomes[name].append(_once(found, METHODS[name], folder / "runs" / f"{name}-{seed}.json"))
            finished()
    targets = [TARGET * _best(outcome) for outcome in outcomes[REFERENCE]]
    return {
        "plan": asdict(plan),
        "seeds": list(seeds),
        "targets": targets,
        "results": [_row(name, outcomes[name], targets) for name in chosen],
        "curves": {name: [_curve(outcome) for outcome in outcomes[name]] for name in chosen},
    }


def simulate(plan: Plan, method: Method, seed: int) -> Outcome:
    """One method under one seed."""
    return _Seed(plan, seed).course(method).run(updates=plan.rounds * plan.sites)


class _Seed:
    """The sites of one seed, made when the first method needs them: data are read once for all of them."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan, self.seed = plan, seed
        self._federation: Federation | None = None

    def course(self, method: Method) -> Course:
        plan = self.plan
        if self._federation is None:
            self._federation = Federation(
                tasks.create(plan.task, plan.task_settings),
                Source(path=Path(plan.path) if plan.path else None),
                sites=plan.sites,
                labels=plan.labels,
                seed=self.seed,
                row_seconds=plan.row_seconds,
            )
        speeds = profiles(plan.profile, plan.sites, self.seed)
        return Course(self._federation, configured(plan, method), speeds, size=plan.size)


def configured(plan: Plan, method: Method) -> Method:
    """A method with the plan's settings where it has none of its own."""
    values = {part: getattr(method, part) for part in Method.__dataclass_fields__}
    return Method(**{**values, "settings": {**plan.strategy, **method.settings}})


def _once(found: _Seed, method: Method, path: Path) -> Outcome:
    """A run that was kept for the same plan and method, or a new one."""
    asked = json.loads(json.dumps({"plan": asdict(found.plan), "method": asdict(method), "seed": found.seed}))
    if path.is_file():
        kept = json.loads(path.read_bytes())
        if kept["asked"] == asked:
            return _read(kept["outcome"])
    outcome = found.course(method).run(updates=found.plan.rounds * found.plan.sites)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"asked": asked, "outcome": asdict(outcome)}).encode())
    return outcome


def _read(kept: Mapping[str, Any]) -> Outcome:
    return Outcome(
        points=tuple(Point(**point) for point in kept["points"]),
        staleness={int(age): many for age, many in kept["staleness"].items()},
        turns=tuple(kept["turns"]),
        dropped=tuple(kept["dropped"]),
        clipped=kept["clipped"],
    )


# --- what is told of the runs -------------------------------------------------------------------------------


def _row(name: str, outcomes: Sequence[Outcome], targets: Sequence[float]) -> dict[str, Any]:
    """One method over all seeds. Means to the target are over the seeds that reached it."""
    pairs = zip(outcomes, targets, strict=True)
    reached = [point for outcome, target in pairs if (point := first_at(outcome, target)) is not None]
    ages: Counter[int] = Counter()
    for outcome in outcomes:
        ages.update(outcome.staleness)
    best, last = [_best(outcome) for outcome in outcomes], [outcome.points[-1] for outcome in outcomes]
    turns = [many for outcome in outcomes for many in outcome.turns]
    return {
        "method": name,
        "reached": len(reached),
        "megabytes_up": _mean([point.bytes_up / 1e6 for point in reached]),
        "megabytes_down": _mean([point.bytes_down / 1e6 for point in reached]),
        "seconds": _mean([point.seconds for point in reached]),
        "best": _mean(best),
        "best_std": statistics.stdev(best) if len(best) > 1 else None,
        "last": _mean([point.accuracy for point in last]),
        "seconds_in_all": _mean([point.seconds for point in last]),
        "staleness": dict(sorted(ages.items())),
        "turns_least": min(turns),
        "turns_most": max(turns),
        "dropped": sum(sum(outcome.dropped) for outcome in outcomes),
        "clipped": sum(outcome.clipped for outcome in outcomes),
        "circles": [{"turns": outcome.turns, "dropped": outcome.dropped} for outcome in outcomes],
    }


def first_at(outcome: Outcome, target: float) -> Point | None:
    """The first measured point with at least this accuracy."""
    return next((point for point in outcome.points if point.accuracy >= target), None)


def _best(outcome: Outcome) -> float:
    return max(point.accuracy for point in outcome.points)


def _curve(outcome: Outcome) -> list[dict[str, float]]:
    return [asdict(point) for point in outcome.points]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
