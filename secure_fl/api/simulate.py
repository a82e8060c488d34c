"""`simulate`: a whole federation on this machine, from Python. `secure-fl run` calls the same function."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from secure_fl import strategies, tracking
from secure_fl.api.in_thread import Work, await_beside, run_beside
from secure_fl.api.progress import shown
from secure_fl.api.run import Run
from secure_fl.errors import SettingsError
from secure_fl.events import Event, Listener
from secure_fl.files import make_folder
from secure_fl.hints import shown_hints
from secure_fl.simulation.stopping import Stoppable
from secure_fl.strategies.base import Strategy
from secure_fl.study.settings import Study
from secure_fl.tasks import in_process

if TYPE_CHECKING:
    from secure_fl.tasks.base import Task

AnyStudy: TypeAlias = Study | Mapping[str, Any] | str | Path | None


@shown_hints()
def simulate(
    study: AnyStudy = None,
    *,
    task: str | type[Task] | Task | None = None,
    strategy: str | type[Strategy] | None = None,
    protection: str | None = None,
    rounds: int | None = None,
    nodes: int | None = None,
    seed: int | None = None,
    name: str | None = None,
    partition: str | None = None,
    privacy: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    metrics: str | None = None,
    settings: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None,
    engine: str = "threads",
    out: str | Path | None = None,
    start: str | Path | None = None,
    progress: bool = True,
    track: str | Sequence[str] = (),
    listener: Listener | None = None,
) -> Run:
    """Run a federation of simulated sites and wait for its end. It works in a notebook, too.

        run = simulate(task="digits", strategy="fedavg", rounds=3, nodes=5)
        run = simulate(Study.read("trial.toml"), task=MyTask(), settings={"strategy.epochs": 2})

    `study` is a study, the path of its file, or a mapping as `Study.of` takes it; without one the defaults run. The
    keywords up to `settings` change it. `task` may be a `Task` class or object, and `strategy` a `Strategy` class, that
    only this process has, as in a notebook. That needs the engine "threads", where all sites are in this process;
    "processes" starts a process for each site, which can import installed code only. `policy` is what every simulated
    site's [policy] says otherwise. `out` is the output folder, by default a new one in `runs`; an unfinished run in it
    is resumed. `start` is the file of a model to train on from. `track` is "tensorboard:DIR", "mlflow:URI" or a list of
    such.

    Ctrl-C stops everything that was started. Raises `SettingsError` before anything has begun, and `StudyAbortedError`
    or another `SecureFLError` for a study that does not finish.
    """
    with ExitStack() as stack:
        plan = _plan(
            stack,
            study,
            words={
                "task": task, "strategy": strategy, "protection": protection,
                "rounds": rounds, "nodes": nodes, "seed": seed, "name": name, "partition": partition,
                "privacy": privacy, "epsilon": epsilon, "delta": delta, "metrics": metrics,
            },
            settings=settings, policy=policy, engine=engine, out=out, start=start,
            progress=progress, track=track, listener=listener,
        )  # fmt: skip
        with plan.tracked() as tracked:
            return plan.finished(run_beside(plan.work(tracked), plan.shown_by(stack, tracked.listen)))


async def simulate_async(
    study: AnyStudy = None,
    *,
    task: str | type[Task] | Task | None = None,
    strategy: str | type[Strategy] | None = None,
    protection: str | None = None,
    rounds: int | None = None,
    nodes: int | None = None,
    seed: int | None = None,
    name: str | None = None,
    partition: str | None = None,
    privacy: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    metrics: str | None = None,
    settings: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None,
    engine: str = "threads",
    out: str | Path | None = None,
    start: str | Path | None = None,
    progress: bool = True,
    track: str | Sequence[str] = (),
    listener: Listener | None = None,
) -> Run:
    """As `simulate`, for whoever awaits it: the event loop goes on meanwhile, and cancelling stops the simulation."""
    with shown_hints(), ExitStack() as stack:
        plan = _plan(
            stack,
            study,
            words={
                "task": task, "strategy": strategy, "protection": protection,
                "rounds": rounds, "nodes": nodes, "seed": seed, "name": name, "partition": partition,
                "privacy": privacy, "epsilon": epsilon, "delta": delta, "metrics": metrics,
            },
            settings=settings, policy=policy, engine=engine, out=out, start=start,
            progress=progress, track=track, listener=listener,
        )  # fmt: skip
        async with plan.tracked() as tracked:
            work = await_beside(plan.work(tracked), plan.shown_by(stack), slow=tracked.listen)
            return plan.finished(await work)


class BlocksClosedWarning(UserWarning):
    """Some of the model was never opened, so that it was not trained: too few sites shared it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A checked call of `simulate`."""

    study: Study
    folder: Path
    start: Path | None
    policy: Mapping[str, Any]
    engine: str
    progress: bool
    track: tuple[str, ...]
    listener: Listener | None

    def work(self, tracked: tracking.Tracking) -> Work[Run]:
        """What the simulation's thread does."""

        def run(tell: Listener, loop: Stoppable) -> Run:
            from secure_fl.simulation.run import run as run_study  # torch, which mistakes need not wait for

            record, summary = run_study(
                self.study,
                engine=self.engine,
                folder=self.folder,
                policy=self.policy,
                listener=tell,
                start=self.start,
                loop=loop,
                checked=tracked.open,
            )
            return Run(folder=self.folder, study=Study.read(self.folder / "study.toml"), record=record, summary=summary)

        return run

    def tracked(self) -> tracking.Tracking:
        """What `track` names, not open yet."""
        return tracking.Tracking(
            self.track,
            name=self.folder.name,
            settings=self.study.to_table(),
            per_site=self.study.metrics.share == "per-node",
        )

    def shown_by(self, stack: ExitStack, *first: Listener) -> Listener:
        """Whoever is told what happens, until the stack is left."""
        listeners = [
            *first,
            stack.enter_context(shown(self.study, progress=self.progress)),
            *([self.listener] if self.listener is not None else []),
        ]

        def tell(event: Event) -> None:
            for listener in listeners:
                listener(event)

        return tell

    def finished(self, run: Run) -> Run:
        """The run, with a warning about what nobody should overlook."""
        if closed := run.summary["blocks_missing"]:
            text = f"never opened, and as they were before the first round: {', '.join(closed)}"
            warnings.warn(text, BlocksClosedWarning, stacklevel=3)
        return run


def _plan(
    stack: ExitStack,
    study: AnyStudy,
    *,
    words: Mapping[str, Any],
    settings: Mapping[str, Any] | None,
    policy: Mapping[str, Any] | None,
    engine: str,
    out: str | Path | None,
    start: str | Path | None,
    progress: bool,
    track: str | Sequence[str],
    listener: Listener | None,
) -> _Plan:
    if policy is not None and not isinstance(policy, Mapping):
        raise SettingsError(f"policy is a mapping, such as {{'epsilon': 1.0}}, not {policy!r}")
    chosen = _study(study, settings or {}, words).completed()
    targets = (track,) if isinstance(track, str) else tuple(track)
    tracking.check(targets)
    if engine != "threads":
        _require_elsewhere(chosen)
    return _Plan(
        study=chosen,
        folder=stack.enter_context(run_folder(out, chosen.study.name)),
        start=None if start is None else Path(start),
        policy=dict(policy or {}),
        engine=engine,
        progress=progress,
        track=targets,
        listener=listener,
    )


def _study(study: AnyStudy, settings: Mapping[str, Any], words: Mapping[str, Any]) -> Study:
    if isinstance(study, str | Path):
        study = Study.read(study)
    if study is not None and not isinstance(study, Study | Mapping):
        raise SettingsError(
            f"a study is a Study, the path of its file, or a mapping, not {study!r}",
            advice="for example simulate(Study.of(rounds=3)), simulate('trial.toml') or simulate(rounds=3)",
        )
    if not isinstance(study, Study):
        study = Study.of(study)
    changes = {key: value for key, value in words.items() if value is not None}
    if settings or changes:
        study = study.changed(settings, **changes)
    if "share" not in study.metrics.model_fields_set:
        # One person sees every site here; a deployed study has to ask for this, and each site to allow it.
        study = study.changed(metrics="per-node")
    return study


@contextmanager
def run_folder(out: str | Path | None, name: str) -> Iterator[Path]:
    """Where a run goes: `out`, or a new folder, of which nothing stays if nothing was begun in it."""
    if out is not None:
        yield Path(out)
        return
    folder = new_folder(name)
    try:
        yield folder
    finally:
        with suppress(OSError):  # not empty: that is the run
            folder.rmdir()
            folder.parent.rmdir()


def new_folder(name: str) -> Path:
    """Make the folder of a run for which nobody chose one. Several runs of one second get one each."""
    base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    found, number = base, 1
    while True:
        make_folder(base.parent)
        try:
            found.mkdir()
        except FileExistsError:
            number += 1
            found = base.with_name(f"{base.name}-{number}")
        except FileNotFoundError:  # Another run that came to nothing has just removed `runs`.
            continue
        else:
            return found


def _require_elsewhere(study: Study) -> None:
    """Raise `SettingsError` for code that only this process has: others could not import it."""
    advice = 'use engine="threads", or put it into a module that can be imported'
    here = in_process.find(study.task.name)
    if here is not None and (not isinstance(here, type) or not _importable(study.task.name, here)):
        raise SettingsError(
            f"task {study.task.name!r} exists in this process alone; other processes cannot import it", advice=advice
        )
    if strategies.is_in_process(study.strategy.name):
        raise SettingsError(
            f"strategy {study.strategy.name!r} exists in this process alone; other processes cannot import it",
            advice='use engine="threads", or install it as a package (docs/strategies/own.md)',
        )


def _importable(name: str, expected: type[Task]) -> bool:
    module, _, attribute = name.partition(":")
    if module == "__main__" or "<locals>" in attribute:
        return False
    try:
        return attrgetter(attribute)(import_module(module)) is expected
    except (ImportError, AttributeError):
        return False
