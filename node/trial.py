"""`python -m node.trial FILE STUDY.toml`: what would a study do at this site, if it took part?

The study's first round is played as far as the site's own part in it goes (docs/DATA_PATH.md, 2 to 7): policy, data,
training, integers. It is the code that a round runs, on a few batches. Nothing is sent, nothing is charged, and what is
written lies in a folder for this user alone that is gone in the end.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.agreements import changed_code
from node.approvals import Approvals
from node.config import DatasetSection, NodeFile
from node.desk import code_here, cost_here
from node.policy import Policy
from node.privacy import SitePrivacy
from node.store import NodeStore, StudyStore
from node.training.failing import task_fails
from node.training.seeds import data_secrets, secret_seed, simulated_secrets
from secure_fl import logs
from secure_fl.errors import DataError, RefusedError, SecureFLError, TrainingError
from secure_fl.operations.doctor import Finding, read_study
from secure_fl.randomness import KeyStream, SystemRandomness
from secure_fl.rounds import RoundKind
from secure_fl.study.context import round_context
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.settings import Study

if TYPE_CHECKING:
    from node.kept import KeptUpdate
    from node.training.jobs import Job, Result
    from node.training.trainer import Trainer
    from secure_fl.privacy.mechanism import Mechanism
    from secure_fl.study.start import Start

_FEW = 4  # batches that are trained; from those the time for all of them is estimated


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingBlock:
    """One block of the update that was trained: what it is called and how large it is, not what is in it."""

    name: str
    tensors: dict[str, list[int]]
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """What a round would send."""

    protection: str
    blocks: tuple[LeavingBlock, ...]
    stay: tuple[str, ...]  # blocks of the model that do not leave
    bits: int  # of each value
    upload_bytes: int  # the most that the protected update takes
    metrics_share: str
    metrics: dict[str, float | int | None]  # as measured here; they leave only as `metrics_share` says


@dataclass(slots=True, kw_only=True)
class Rehearsal:
    """What came of it."""

    study: str
    id: str = ""
    steps: list[Finding] = field(default_factory=list)
    leaves: Leaving | None = None
    learned: tuple[str, ...] = ()  # by others, in sentences
    cost: tuple[str, ...] = ()
    seconds: float | None = None  # of training, in a round
    rounds: int = 0
    exit_code: int = 0

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[str], None]]:
        """One thing that may fail: what it raises is kept, with the exit code of the first failure."""
        said: list[str] = []
        try:
            yield said.append
            self.steps.append(Finding(name, "ok", "; ".join(said)))
        except SecureFLError as error:
            self.steps.append(Finding(name, "failed", error.message, error.hint))
            self.exit_code = self.exit_code or error.exit_code

    @property
    def failed(self) -> bool:
        """Whether something does not work."""
        return self.exit_code != 0


def main(arguments: list[str] | None = None) -> int:
    """Rehearse a study and tell what was found."""
    parser = argparse.ArgumentParser(prog="python -m node.trial", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("study", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    logs.configure(level="error", style="text")  # What went wrong is said below, once.
    try:
        found = rehearse(NodeFile.read(options.file), options.study)
    except SecureFLError as error:
        sys.stderr.write(f"node: {error.message}\n" + (f"  → {error.hint}\n" if error.hint else ""))
        return error.exit_code
    if options.json:
        sys.stdout.write(json.dumps({"ok": not found.failed, **asdict(found)}) + "\n")
    else:
        _tell(found, options.file, options.study)
    return found.exit_code


def rehearse(file: NodeFile, path: Path) -> Rehearsal:
    """Everything a site can know before it agrees. Raises `SecureFLError` only where there is no study to look at."""
    study = Study.read(path)
    policy, store = Policy(file, file.certificate()), NodeStore(file.state_folder)
    found = Rehearsal(study=study.study.name, rounds=study.study.rounds)
    with found.step("study") as say:
        policy.check_task(study)  # before anything of it is imported
        study = read_study(path)
        found.id = study.id
        say("its parts fit together")
    if found.failed:
        return found
    with found.step("policy") as say:
        policy.check_terms(study)
        say("this site's file allows the study")
    with found.step("budget") as say:
        found.cost = cost_here(file, store, study)
        say(_budget(file, study))
    found.steps.append(_approval(file, store, study))
    found.learned = _learned(study)
    with found.step("training") as say:
        _play(file, store, policy, study, found, say)
    return found


def _approval(file: NodeFile, store: NodeStore, study: Study) -> Finding:
    """Not to have approved a study yet is no fault: this is what one looks at before."""
    policy = Policy(file, file.certificate())
    try:
        policy.check_approval(study.id, store.approvals())
        require_approved_code(file, store, study)
    except RefusedError as error:
        return Finding("approval", "warning", error.message, error.hint)
    return Finding("approval", "ok", "the study is approved here")


def require_approved_code(file: NodeFile, store: NodeStore, study: Study) -> None:
    """Raise `CodeChangedError` if the study was approved by hand, with other code than its task has here now."""
    given = Approvals(store.folder).read().get(study.id)
    if file.policy.approve == "ask" and given is not None and given.code not in (None, code_here(study)):
        raise changed_code(study)


def _budget(file: NodeFile, study: Study) -> str:
    if study.privacy.mode == "none":
        return "the study has no differential privacy, and uses no budget"
    return "this site sets no limit" if file.policy.epsilon is None else "enough is left for the whole study"


def _learned(study: Study) -> tuple[str, ...]:
    from secure_fl.study.explain import explain

    return next(part.sentences for part in explain(study) if part.heading.startswith("Who learns what"))


# --- the site's part in a round -------------------------------------------------------------------------------


def _play(
    file: NodeFile, store: NodeStore, policy: Policy, study: Study, found: Rehearsal, say: Callable[[str], None]
) -> None:
    name = study.task.dataset_id
    if name not in file.datasets:
        raise DataError(
            f"there is no [datasets.{name}] here",
            advice=f"add it, with the path of this site's data for the task {study.task.name!r}",
        )
    with tempfile.TemporaryDirectory(prefix="secure-fl-try-") as folder:
        played = _Play(file, store, policy, ResolvedStudy.of(study), Path(folder))
        rows = played.load()
        say(f"{rows} rows to train on; the data were looked through and one batch was trained")
        found.seconds = played.train()
        found.leaves = played.leaving()
        say(f"a short pass took {played.trained_seconds:.2f} s")


class _Play:
    """One site, alone, in the first round."""

    def __init__(self, file: NodeFile, store: NodeStore, policy: Policy, resolved: ResolvedStudy, folder: Path) -> None:
        from secure_fl import tasks
        from secure_fl.study.start import start_of

        self._file = file
        self._policy = policy
        self._resolved = resolved
        study = resolved.study
        task = tasks.create(study.task.name, study.task.settings)
        self._start: Start = start_of(task, resolved.strategy, study.study.seed)
        self._dataset: DatasetSection = file.datasets[study.task.dataset_id]
        self._privacy = SitePrivacy(file, resolved)
        self._scratch = StudyStore(folder / "study")
        self._scratch.settings.write_bytes(resolved.canonical)
        self._received = folder / "received.bin"
        self._received.write_bytes(self._start.layout.flatten(self._start.blocks))
        # A node that has never run has no secret, and gets none here: whatever it divides its rows by now will do.
        has_one = (store.folder / "secret.key").exists()
        self._secret = store.secret() if has_one else SystemRandomness().bytes(32)
        self._trainer: Trainer | None = None
        self._rows = 0
        self._result: Result | None = None
        self.trained_seconds = 0.0

    def load(self) -> int:
        """Load and look through all data, train one batch; returns the rows. Raises as a round's rehearsal does."""
        from node.training.trainer import Trainer

        self._trainer = Trainer()
        job = self._job(self._privacy.mechanism)
        try:
            self._rows = self._trainer.execute(replace(job, rehearsal=True)).samples
        except TrainingError as error:
            # The task's own code failed. Whoever rehearses has the data, and may see what it says of them.
            raise task_fails(self._resolved.study, error.__cause__ or error) from error
        return self._rows

    def train(self) -> float:
        """Train short passes from the study's first model; returns how long a whole round's training would take."""
        batches, mechanism = self._batches(), self._privacy.mechanism
        few = min(_FEW, batches)
        once = self._timed(1, mechanism)
        if few == 1:
            return once
        several = self._timed(few, mechanism)
        each = max(0.0, several - once) / (few - 1)
        return several + each * (batches - few)

    def _batches(self) -> int:
        mechanism = self._privacy.mechanism
        if mechanism is not None:
            return mechanism.epoch_steps
        return math.ceil(self._rows / self._resolved.strategy.settings.batch_size)

    def _timed(self, batches: int, mechanism: Mechanism | None) -> float:
        rows = batches * self._resolved.strategy.settings.batch_size
        if mechanism is not None:
            # As many steps as batches, each on a sample as large as in a round.
            units = max(batches, rows)
            rows *= mechanism.group_rows
            mechanism = replace(mechanism, units=units, sampling=1 / batches, epoch_steps=batches)
        if self._trainer is None:
            raise DataError("the data were not loaded")
        trainer, job = self._trainer.short(rows), self._job(mechanism)
        begun = time.monotonic()
        self._result = trainer.execute(job)
        self.trained_seconds = time.monotonic() - begun
        return self.trained_seconds

    def leaving(self) -> Leaving:
        """7. The integers of the pass that was trained, and what the protection makes of so many."""
        kept = self._integers()
        layout, study = self._start.whole, self._resolved.study
        names = [name for name in layout.names if name in kept.blocks]
        return Leaving(
            protection=self._resolved.protection.name,
            blocks=tuple(
                LeavingBlock(
                    name=name,
                    tensors={tensor.name: list(tensor.shape) for tensor in layout[name].tensors},
                    parameters=layout[name].size,
                )
                for name in names
            ),
            stay=tuple(name for name in layout.names if name not in names),
            bits=study.protection.bits,
            upload_bytes=self._resolved.protection.largest_upload(self._context()),
            metrics_share=study.metrics.share,
            metrics=_told(asdict(kept.metrics), share=study.metrics.share),
        )

    def _integers(self) -> KeptUpdate:
        from node.encoding import encode

        if self._result is None:
            raise DataError("nothing was trained")
        return encode(
            self._resolved,
            self._context(),
            self._result,
            base=self._start.layout.digest(self._start.blocks),
            trained=self._scratch.scratch("update.safetensors"),
            stream=KeyStream(SystemRandomness().bytes(32)),
            check_size=self._policy.check_upload,
        )

    def _context(self) -> Any:
        resolved, settled = self._resolved, self._resolved.division.settled
        # Where circles follow from declarations nobody knows them yet: then it is as if all were one.
        kind = RoundKind.TRAIN if settled else RoundKind.DECLARE
        invited = resolved.circle_of(self._file.node.name, kind) or tuple(resolved.study.study.roster)
        return round_context(
            resolved,
            number=1,
            attempt=1,
            kind=kind,
            base_model=self._start.layout.digest(self._start.blocks),
            invited=invited,
            shared=self._start.layout,
        )

    def _job(self, mechanism: Mechanism | None) -> Job:
        from node.training.orders import make_job

        study, simulated = self._resolved.study, self._file.simulation is not None
        secrets = (
            simulated_secrets(study.study.seed, self._file.node.name, 1, 1) if simulated else data_secrets(self._secret)
        )
        return make_job(
            self._file,
            self._scratch,
            kind=RoundKind.TRAIN,
            key=(1, 1),
            dataset=self._dataset,
            seed=secret_seed(self._secret, self._resolved.id, 1),
            layout=self._start.layout,
            received=self._received,
            scratch=self._scratch.scratch,
            secrets=secrets,
            mechanism=mechanism,
            epochs=self._privacy.epochs(1, trains=True),
        )


def _told(metrics: dict[str, Any], *, share: str) -> dict[str, float | int | None]:
    """What would leave of the measurements; the number of samples only where each site's are shared."""
    if share == "none":
        return {}
    known = {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}
    return known if share == "per-node" else {name: value for name, value in known.items() if name != "samples"}


# --- in words -------------------------------------------------------------------------------------------------

_MARKS = {"ok": "ok     ", "warning": "to do  ", "failed": "FAILED "}
_METRICS = {
    "none": "no measurement leaves",
    "aggregate": "inside a protected sum over several sites: {values}",
    "per-node": "in the clear, to the coordinator: {values}",
}


def _tell(found: Rehearsal, file: Path, study: Path) -> None:
    write = sys.stdout.write
    write(f"rehearsal of {found.study} {found.id}\n")
    for step in found.steps:
        write(f"{_MARKS[step.state]}  {step.check}{f': {step.message}' if step.message else ''}\n")
        write(f"         → {step.fix}\n" if step.fix else "")
    if found.leaves is not None:
        write("\nWhat would leave this site in a round\n")
        for line in _leaving_lines(found.leaves):
            write(f"  {line}\n")
    if found.learned:
        write("\nWhat others learn\n" + "".join(f"  {sentence}\n" for sentence in found.learned))
    if found.cost:
        write("\nWhat it costs\n" + "".join(f"  {line}\n" for line in found.cost))
    if found.seconds is not None:
        total = found.rounds * found.seconds
        write(
            f"\nTraining takes about {_time(found.seconds)} a round on this machine, {_time(total)} for all "
            f"{found.rounds} rounds.\n"
        )
    write("\nNothing was sent, charged or kept.\n")
    if found.failed:
        write("This site cannot take part yet: see FAILED above.\n")
    elif any(step.state == "warning" for step in found.steps):
        write(f"If the site agrees: secure-fl node approve {file} {study}\n")


def _leaving_lines(leaves: Leaving) -> Iterator[str]:
    width = max((len(block.name) for block in leaves.blocks), default=0)
    for block in leaves.blocks:
        shapes = ", ".join(f"{name} {'×'.join(map(str, shape)) or '1'}" for name, shape in block.tensors.items())
        yield f"{block.name:<{width}}  {block.parameters:>10,} values  ({shapes})"
    values = sum(block.parameters for block in leaves.blocks)
    yield (
        f"in all {values:,} values of {leaves.bits} bits; under the protection {leaves.protection!r} the update takes "
        f"at most {leaves.upload_bytes:,} bytes"
    )
    if leaves.stay:
        yield f"blocks that stay here: {', '.join(leaves.stay)}"
    values_text = ", ".join(f"{name} {value:.4g}" for name, value in leaves.metrics.items())
    yield f"measurements, here of the study's first model: {_METRICS[leaves.metrics_share].format(values=values_text)}"


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.1g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    sys.exit(main())
