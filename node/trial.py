"""`python -m node.trial FILE STUDY.toml [--from MODEL]`: what would a study do at this site, if it took part?

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
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.agreements import changed_code
from node.approvals import Approvals
from node.config import DatasetSection, NodeFile
from node.desk import code_here, cost_here
from node.policy import Policy
from node.privacy import SitePrivacy
from node.rehearsed import Leaving, LeavingBlock, Rehearsal, tell
from node.store import NodeStore, StudyStore
from node.training.failing import task_fails
from node.training.seeds import data_secrets, secret_seed, simulated_secrets
from secure_fl import logs
from secure_fl.errors import DataError, RefusedError, SecureFLError, TrainingError, UsageError
from secure_fl.operations.doctor import Finding, read_study
from secure_fl.operations.ending import ended_by
from secure_fl.randomness import KeyStream, SystemRandomness
from secure_fl.rounds import RoundKind
from secure_fl.settings import section_name
from secure_fl.study.context import round_context
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.settings import Study

if TYPE_CHECKING:
    from node.kept import KeptUpdate
    from node.training.jobs import Job, Result
    from node.training.trainer import Trainer
    from secure_fl.privacy.mechanism import Mechanism
    from secure_fl.protect.contract import RoundContext
    from secure_fl.study.start import Start

_FEW = 4  # batches that are trained; from those the time for all of them is estimated


def main(arguments: list[str] | None = None) -> int:
    """Rehearse a study and tell what was found."""
    parser = argparse.ArgumentParser(prog="python -m node.trial", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("study", type=Path)
    parser.add_argument("--from", dest="model", type=Path, help="the model that the study starts from")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    logs.configure(level="error", style="text")  # What went wrong is said below, once.
    try:
        found = rehearse(NodeFile.read(options.file), options.study, model=options.model)
    except SecureFLError as error:
        return ended_by(error, "node")
    if options.json:
        sys.stdout.write(json.dumps({"ok": not found.failed, **asdict(found)}) + "\n")
    else:
        tell(found, options.file, options.study)
    return found.exit_code


def rehearse(file: NodeFile, path: Path, *, model: Path | None = None) -> Rehearsal:
    """Everything a site can know before it agrees. Raises `SecureFLError` only where there is no study to look at.

    `model` is the one that the study starts from, where somebody brings it.
    """
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
    start = _first_model(study, model, found)
    with found.step("training") as say:
        _play(file, store, policy, study, found, say, start=start)
    return found


def _first_model(study: Study, model: Path | None, found: Rehearsal) -> Start | None:
    """The model that somebody brought; None where the one that the study's seed makes is played."""
    from secure_fl.study.given import start_from  # torch

    start, given = None, study.study.start == "given"
    if model is not None:
        with found.step("first model") as say:
            if not given:
                raise UsageError("the study's first model is made from its seed", advice="leave --from out")
            start = start_from(study, model)
            say(f"{model} is the one that the study names")
    elif given:
        message = 'the study brings a model of its own (start = "given"), which is not here; its seed\'s is used below'
        found.steps.append(
            Finding("first model", "warning", message, "ask the study lead for it, and add --from MODEL")
        )
    if given and start is None:
        found.model = "a model that the study's seed makes, NOT of the one that the study starts from"
    return start


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
    if file.policy.approve == "ask" and given is not None and given.code not in (None, code_here(study).digest):
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
    file: NodeFile,
    store: NodeStore,
    policy: Policy,
    study: Study,
    found: Rehearsal,
    say: Callable[[str], None],
    *,
    start: Start | None,
) -> None:
    name = study.task.dataset_id
    if name not in file.datasets:
        raise DataError(
            f"there is no {section_name('datasets', name)} here",
            advice=f"add it, with the path of this site's data for the task {study.task.name!r}",
        )
    with tempfile.TemporaryDirectory(prefix="secure-fl-try-") as folder:
        played = _Play(file, store, policy, ResolvedStudy.of(study), Path(folder), start=start)
        rows = played.load()
        say(f"{rows} rows to train on; the data were looked through and one batch was trained")
        found.seconds = played.train()
        found.leaves = played.leaving()
        say(f"a short pass took {played.trained_seconds:.2f} s")


class _Play:
    """One site, alone, in the first round."""

    def __init__(
        self,
        file: NodeFile,
        store: NodeStore,
        policy: Policy,
        resolved: ResolvedStudy,
        folder: Path,
        *,
        start: Start | None = None,
    ) -> None:
        from secure_fl import tasks
        from secure_fl.study.start import start_of

        self._file = file
        self._policy = policy
        self._resolved = resolved
        study = resolved.study
        task = tasks.create(study.task.name, study.task.settings)
        self._start: Start = start or start_of(task, resolved.strategy, study.study.seed)
        self._dataset: DatasetSection = file.datasets[study.task.dataset_id]
        self._privacy = SitePrivacy(file, resolved)
        self._scratch = StudyStore(folder / "study")
        self._scratch.settings.write_bytes(resolved.canonical)
        self._received = folder / "received.bin"
        self._received.write_bytes(self._start.layout.flatten(self._start.blocks))
        # A node that has never run has no secret, and gets none here: whatever it divides its rows by now will do.
        self._secret = store.secret() if store.has_secret else SystemRandomness().bytes(32)
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
            phases=self._resolved.phases(RoundKind.TRAIN),
            metrics_share=study.metrics.share,
            metrics=_told(asdict(kept.metrics), share=study.metrics.share),
            sums={} if study.metrics.share == "none" else {name: list(own) for name, own in kept.metrics.sums.items()},
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

    def _context(self) -> RoundContext:
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


def _told(metrics: dict[str, Any], *, share: str) -> dict[str, float | int]:
    """What would leave of the measurements; the number of samples only where each site's are shared."""
    if share == "none":
        return {}
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    known = {name: value for name, value in numbers.items() if math.isfinite(value)}
    return known if share == "per-node" else {name: value for name, value in known.items() if name != "samples"}


if __name__ == "__main__":
    sys.exit(main())
