"""Whole rounds between real processes over mutual TLS, with trivial training: what each protection costs whom.

The protections take turns within one run, because a machine is not equally quick all the time; ratios are formed within
a turn. Before, each runs once with a tiny model: what a process takes then is the process itself, and is subtracted.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from secure_fl import protect
from secure_fl.aggregation import RequestKind
from secure_fl.bench.parties import ROLES, Role, Use, Watch
from secure_fl.errors import UsageError
from secure_fl.events import Event, RoundCommitted
from secure_fl.results.record import RoundRecord, StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.settings import require_known, set_dotted
from secure_fl.study.settings import Study

UNPROTECTED = "none"
FLAT_ROUNDS = 30
SETTLED = 5  # growth is counted from this round on
_SPAN = 3  # rounds whose highest stands for memory at a time: a sample now and then misses a peak
FLAT_LEAST = SETTLED + _SPAN
_TASK = "secure_fl.bench.synthetic:Synthetic"  # by name: it needs torch, and `--help` does not
_CHANGE = 0.01  # of a parameter in a round: far below the clip, far above a step of the fixed-point grid
_TINY = 1000
_FLOAT32 = 4
_HOURS = 4 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured."""

    nodes: int
    parameters: int
    rounds: int
    repeat: int
    protections: tuple[str, ...]
    assignments: tuple[str, ...] = ()  # as in `--set`, for every study alike

    def __post_init__(self) -> None:
        if not self.protections:
            raise UsageError("no protection to measure", advice=f"for example --protections {UNPROTECTED},masked")
        for name in self.protections:
            require_known("protection", name, protect.known())
            if not protect.describe(name).serves(RequestKind.SUM):
                raise UsageError(f"protection {name!r} does not serve {RequestKind.SUM.value!r}")
        if self.rounds < 2:
            raise UsageError("one round says nothing: the first is not counted", advice="--rounds 2 or more")

    @property
    def model_bytes(self) -> int:
        """One model of float32."""
        return _FLOAT32 * self.parameters

    @property
    def all_rounds(self) -> int:
        """How many rounds will be committed, the closing evaluations included."""
        return len(self.protections) * (1 + self.repeat) * (self.rounds + 1)

    def study(self, protection: str, parameters: int) -> Study:
        """The study of one run."""
        table: dict[str, Any] = {
            "study": {"name": "bench-round", "rounds": self.rounds},
            "task": {"name": _TASK, "dataset": "synthetic", "parameters": parameters},
            "strategy": {
                "name": "fedavg",
                "epochs": 1,
                "momentum": 0.0,
                "learning_rate": _CHANGE * parameters,  # its gradient is one over their number
            },
            "protection": {"kind": protection},
            "rounds": {"deadline": _HOURS, "phase_deadline": _HOURS, "gather": 600.0},
            "simulation": {"nodes": self.nodes, "partition": "natural"},
        }
        for assignment in self.assignments:
            set_dotted(table, assignment)
        return Study.parse(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The moment a round was committed, and what the parties used since the one before."""

    at: float
    round: RoundRecord
    uses: tuple[Use, ...]

    def highest(self, role: Role, what: str) -> int:
        """The largest figure among the processes of a role; 0 without any."""
        return max((getattr(use, what) for use in self.uses if use.role == role), default=0)

    @property
    def whole(self) -> bool:
        """Whether everybody took part, at the first attempt."""
        return self.round.attempts == 1 and all(node.outcome == "took part" for node in self.round.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One study, from its processes' start to their end."""

    marks: tuple[Mark, ...]  # one per training round, and the closing evaluation
    record: StudyRecord
    summary: Mapping[str, Any]
    seconds: float
    watching: float  # processor seconds of the observer

    @property
    def training(self) -> tuple[Mark, ...]:
        """The marks of training rounds."""
        return tuple(mark for mark in self.marks if mark.round.kind is RoundKind.TRAIN)

    def walls(self) -> list[float]:
        """Seconds from one commit to the next; the first round, which has none before it, is left out."""
        return [after.at - before.at for before, after in zip(self.training, self.training[1:], strict=False)]

    def processor(self) -> dict[Role, list[float]]:
        """Processor seconds per round of every process, from the first commit to the last, by role."""
        first, last = self.training[0], self.training[-1]
        before = {use.pid: use.seconds for use in first.uses}
        rounds = len(self.training) - 1
        spent: dict[Role, list[float]] = {role: [] for role in ROLES}
        for use in last.uses:
            spent[use.role].append((use.seconds - before.get(use.pid, 0.0)) / rounds)
        return spent

    def peak(self, role: Role, what: str) -> int:
        """The largest figure of a role in the whole study, in bytes."""
        return max(mark.highest(role, what) for mark in self.marks)

    def growth(self, role: Role) -> int | None:
        """How much higher anonymous memory peaks in the last rounds than around the fifth; None if that is too soon."""
        peaks = [mark.highest(role, "anonymous") for mark in self.training]
        if len(peaks) < FLAT_LEAST:
            return None
        return max(peaks[-_SPAN:]) - max(peaks[SETTLED - _SPAN : SETTLED])


def run(plan: Plan, *, started: Callable[[str], None], committed: Callable[[], None]) -> dict[str, Any]:
    """The JSON object of `secure-fl bench round`, and under `runs` what it was made from."""
    small = min(_TINY, plan.parameters)
    # All of them before the first is run: a mistake in the last would come to light late.
    studies = {name: (plan.study(name, small), plan.study(name, plan.parameters)) for name in plan.protections}
    tiny: dict[str, Played] = {}
    for name, (study, _) in studies.items():
        started(f"{name}, {small:,} parameters")
        tiny[name] = play(study, committed)
    runs: dict[str, list[Played]] = {name: [] for name in plan.protections}
    for turn in range(plan.repeat):
        for name, (_, study) in studies.items():
            started(f"{name}, {plan.parameters:,} parameters, {turn + 1} of {plan.repeat}")
            runs[name].append(play(study, committed))
    played = [run for several in runs.values() for run in several]
    return {
        "nodes": plan.nodes,
        "parameters": plan.parameters,
        "rounds": plan.rounds,
        "repeat": plan.repeat,
        "protections": {
            name: _figures(plan, runs[name], runs.get(UNPROTECTED), tiny[name]) for name in plan.protections
        },
        # Beside the parties, on the same cores: how much of one core the measuring took.
        "observer": sum(run.watching for run in played) / sum(run.seconds for run in played),
        "runs": {name: [_detail(run) for run in (tiny[name], *runs[name])] for name in plan.protections},
    }


def play(study: Study, committed: Callable[[], None]) -> Played:
    """Run one study in a folder that does not survive it, and observe its processes."""
    from secure_fl.simulation.run import run as run_study  # late: mistakes in the settings should answer at once

    marks: list[Mark] = []
    with throw_away_folder() as folder, Watch() as watch:

        def listen(event: Event) -> None:
            if isinstance(event, RoundCommitted):
                marks.append(Mark(at=time.monotonic(), round=event.record, uses=watch.mark()))
                committed()

        begun = time.monotonic()
        record, summary = run_study(study, engine="processes", folder=folder / "run", policy={}, listener=listen)
        seconds = time.monotonic() - begun
    return Played(marks=tuple(marks), record=record, summary=summary, seconds=seconds, watching=watch.seconds)


@contextmanager
def throw_away_folder() -> Iterator[Path]:
    """A temporary folder that is gone afterwards, whatever happened and whoever is still writing into it."""
    folder = Path(tempfile.mkdtemp(prefix="secure-fl-bench-"))
    try:
        yield folder
    finally:
        for _ in range(50):  # a worker whose node was interrupted may write for another moment
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)
        else:
            shutil.rmtree(folder)  # and say why it cannot be removed


# --- figures --------------------------------------------------------------------------------------------------


def _figures(plan: Plan, runs: Sequence[Played], plain: Sequence[Played] | None, tiny: Played) -> dict[str, Any]:
    processor = [_processor(run) for run in runs]
    return {
        "seconds_per_round": statistics.median(second for run in runs for second in run.walls()),
        "ratio": _ratio(runs, plain, lambda run: statistics.median(run.walls())),
        "cpu": {key: statistics.fmean(spent[key] for spent in processor) for key in processor[0]},
        "cpu_ratio": _ratio(runs, plain, lambda run: _processor(run)["total"]),
        "memory": {role: _memory(plan, runs, tiny, role) for role in ROLES},
        "bytes_up_per_node_round": _mean(run.summary["bytes_up_per_node_round"] for run in runs),
        "bytes_down_per_node_round": _mean(run.summary["bytes_down_per_node_round"] for run in runs),
        "incomplete_rounds": sum(not mark.whole for run in runs for mark in run.marks),
    }


def _ratio(runs: Sequence[Played], plain: Sequence[Played] | None, of: Callable[[Played], float]) -> float | None:
    """To the run without protection in the same turn, the median over turns; None where there is none."""
    if plain is None:
        return None
    return statistics.median(of(run) / of(other) for run, other in zip(runs, plain, strict=True))


def _processor(run: Played) -> dict[str, float]:
    spent = run.processor()
    return {
        "coordinator": sum(spent["coordinator"]),
        "node": statistics.fmean(spent["node"]),
        "node_max": max(spent["node"]),
        "worker": statistics.fmean(spent["worker"]),
        "total": sum(sum(seconds) for seconds in spent.values()),
    }


def _memory(plan: Plan, runs: Sequence[Played], tiny: Played, role: Role) -> dict[str, Any]:
    """Of the process of this role that took most."""

    def beyond(what: str) -> float:
        return (max(run.peak(role, what) for run in runs) - tiny.peak(role, what)) / plan.model_bytes

    growths = [grown for run in runs if (grown := run.growth(role)) is not None]
    return {
        "anonymous_bytes": max(run.peak(role, "anonymous") for run in runs),
        "resident_bytes": max(run.peak(role, "resident") for run in runs),
        "high_water_bytes": max(run.peak(role, "high_water") for run in runs),
        "models": beyond("anonymous"),
        "resident_models": beyond("high_water"),
        "growth": max(growths) / plan.model_bytes if growths else None,
    }


def _detail(run: Played) -> dict[str, Any]:
    return {
        "parameters": run.record.parameters,
        "seconds": run.seconds,
        "seconds_per_round": run.walls(),
        "cpu": _processor(run),
        "rounds": [
            {"number": mark.round.number, "kind": mark.round.kind, "parties": [asdict(use) for use in mark.uses]}
            for mark in run.marks
        ],
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
