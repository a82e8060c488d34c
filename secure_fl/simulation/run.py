"""A whole study on this machine, from settings to report."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secure_fl import tasks
from secure_fl.errors import NotReadyError, SecureFLError, SettingsError, StudyAbortedError, rebuild
from secure_fl.events import CoordinatorFailed, Event, Listener, PrivacyPlanned, Refused, RoundVoid, SatOut, StudyFailed
from secure_fl.files import write_atomically
from secure_fl.report import Step, render
from secure_fl.results import traces
from secure_fl.results.history import history, write_csv
from secure_fl.results.own_metrics import with_values
from secure_fl.results.record import StudyRecord
from secure_fl.results.summary import summarise
from secure_fl.settings import require_known
from secure_fl.simulation.engines import last_complaint, processes, require_willing, threads
from secure_fl.simulation.models import write_models
from secure_fl.simulation.spent import spent_by_site
from secure_fl.simulation.stopping import Stoppable
from secure_fl.simulation.units import plan_lines
from secure_fl.simulation.workspace import Workspace, imagined, prepare
from secure_fl.study.data import require_data
from secure_fl.study.settings import Study
from secure_fl.tasks.code_digest import own_code

if TYPE_CHECKING:
    from secure_fl.study.start import Start

_DO = " → "  # in a node's log: from here on, what to do
_HOPELESS = 3  # times that a node could not train: a training process that was killed is one
ENGINES = {"processes": processes, "threads": threads}


def run(
    study: Study,
    *,
    engine: str,
    folder: Path,
    policy: Mapping[str, Any],
    listener: Listener,
    start: Path | None = None,
    loop: Stoppable | None = None,
    checked: Callable[[], None] = lambda: None,
) -> tuple[StudyRecord, dict[str, Any]]:
    """Run `study` in `folder` and leave there everything the contract names. Another thread may stop it by its `loop`.

    With `start`, the file of a model, it trains on from that one. `checked` is called once nothing is wrong with the
    study that can be known before it starts; there is no folder yet.

    Raises `StudyAbortedError` when the study does not finish, after saving what there is.
    """
    require_known("engine", engine, ENGINES)
    started = time.monotonic()
    with ENGINES[engine]() as run_engine:
        study = study.completed()
        study, first = (study, None) if start is None else _continued(study, start)
        study.check(nodes=study.simulation.nodes)
        require_data(study)
        # Before there is a folder: a plan that cannot be made, or that the sites refuse, leaves nothing behind.
        lines = plan_lines(study) if study.privacy.mode != "none" else ()
        require_willing(imagined(folder, study, policy=policy))
        checked()
        workspace = prepare(folder, study, policy=policy, start=first)
        _require_same_code(workspace)
        if lines:
            listener(PrivacyPlanned(study_id=workspace.study.id, text="\n".join(lines)))
        loop = loop or Stoppable()
        troubles = _Troubles(workspace, listener, stop=loop.stop)
        try:
            loop.run(run_engine(workspace, troubles.listen))
        except asyncio.CancelledError:
            if not troubles.hopeless:  # Somebody else stopped it.
                raise
    record = _load_record(workspace)
    if record is None or record.outcome != "finished":
        raise troubles.explain()
    record = _with_own_metrics(record, workspace.study)
    report = folder / "report.html"
    spent = spent_by_site(workspace)
    summary = summarise(record, engine=engine, seconds=time.monotonic() - started, report=str(report), spent=spent)
    workspace.collect()
    write_models(workspace, record, summary)
    write_csv(folder / "history.csv", history(record))
    notes, rows = (
        {name: traces.read(workspace.node_folder(name) / file) for name in record.roster}
        for file in ("traces.jsonl", "rows.jsonl")
    )
    steps = next_steps(engine, policy)
    page = render(record, summary, workspace.study, steps=steps, written=datetime.now(UTC), notes=notes, rows=rows)
    write_atomically(report, page.encode())
    write_atomically(folder / "summary.json", json.dumps(summary, indent=2).encode())
    return record, summary


def _require_same_code(workspace: Workspace) -> None:
    """Raise `SettingsError` where a run goes on with another task or strategy of one's own than it began with."""
    study, noted = workspace.study, workspace.folder / "code.sha256"
    code = own_code(type(tasks.create(study.task.name, study.task.settings)), type(study.make_strategy()))
    if not workspace.resumed:
        write_atomically(noted, code.encode())
    elif noted.exists() and noted.read_text(encoding="utf-8") != code:
        raise SettingsError(
            f"{workspace.folder}: holds an unfinished run of other code: the task or the strategy has changed since",
            advice="choose another --out, or remove the folder",
        )


def _continued(study: Study, model: Path) -> tuple[Study, Start]:
    from secure_fl.study.given import continued  # torch

    return continued(study, model)


def next_steps(engine: str, policy: Mapping[str, Any]) -> tuple[Step, ...]:
    """How to repeat a run, for its report. A policy is no part of the study, so it has to be named again."""
    again = ["secure-fl", "run", "study.toml", "--engine", engine, "--out", "again"]
    for key, value in policy.items():
        again += ["--set", f"policy.{key}={json.dumps(value)}"]
    return (
        Step(
            why="Run it again in this page's folder: the same seed gives the same partition, model and batches.",
            command=shlex.join(again),
        ),
        Step(
            why="Read what this study would mean for a real site: what leaves it, and who learns what.",
            command="secure-fl study show study.toml",
        ),
    )


def _with_own_metrics(record: StudyRecord, study: Study) -> StudyRecord:
    """Values of metrics that only the task's code knows: here it is installed."""
    if not study.metrics.need_code:
        return record
    return with_values(record, study.metrics.own_formulas(tasks.create(study.task.name, study.task.settings)))


def _load_record(workspace: Workspace) -> StudyRecord | None:
    path = workspace.study_state / "record.json"
    return StudyRecord.load(path) if path.exists() else None


class _Troubles:
    """Remembers why nodes sat out, to explain a study that failed; stops one that nothing can come of any more.

    It stops the loop and raises nothing: whoever tells it an event may be serving a node, which would get the error.
    """

    def __init__(self, workspace: Workspace, listener: Listener, *, stop: Callable[[], None]) -> None:
        self._workspace = workspace
        self._listener = listener
        self._nodes: dict[str, str] = {}
        self._unready: Counter[str] = Counter()  # how often a node could not train
        self._failure: SecureFLError | None = None
        self._stop = stop
        self.hopeless = False

    def listen(self, event: Event) -> None:
        """Pass an event on, and remember it if it is bad news."""
        if self.hopeless:
            return  # What ends now, ends because it was stopped.
        self._listener(event)
        study = self._workspace.study
        match event:
            case SatOut(node=node, reason=reason):
                self._nodes[node] = reason
                self._unready[node] += reason == NotReadyError.code
            case RoundVoid():
                # A deployed study waits until a site is repaired. Here nobody repairs anything.
                broken = {name for name, often in self._unready.items() if often >= _HOPELESS}
                if broken and not study.can_go_on(study.study.roster.keys() - broken):
                    self._give_up()
            case Refused(node=node, reason=reason):
                self._nodes[node] = reason
                if not study.can_go_on(study.study.roster.keys() - self._nodes.keys()):
                    self._give_up()
            case StudyFailed() | CoordinatorFailed() if self._failure is None:
                self._failure = rebuild(event.code, event.message, advice=event.hint)

    def _give_up(self) -> None:
        if not self.hopeless:
            self.hopeless = True
            self._stop()

    def explain(self) -> SecureFLError:
        """One line: what failed, and what the first troubled node had to say."""
        failure = self._failure or StudyAbortedError("the study did not finish")
        for name, reason in self._nodes.items():
            log = self._workspace.node_folder(name) / "node.log"
            log = log if log.exists() else self._workspace.folder / "run.log"
            said = last_complaint(log, "sitting out: ") or last_complaint(log, "refusing ")
            said, _, hint = said.partition(_DO)
            text = f"{failure.message}; {name} says {reason}" + (f": {said}" if said else "")
            return rebuild(failure.code, text, advice=f"{hint}; see {log}" if hint else f"see {log}")
        return failure
