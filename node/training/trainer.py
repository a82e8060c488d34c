"""One training job from start to end, inside the training process. The only module of the node that needs torch."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from node.config import DatasetSection
from node.own_start import require_own_start
from node.training.failing import task_fails
from node.training.finite import settled, settled_fit
from node.training.jobs import FEATURES, Job, Result, layout_from_json
from node.training.rehearsal import rehearse
from secure_fl import tasks
from secure_fl.blocks import Blocks, Layout, Vector
from secure_fl.checkpoints import load_arrays, save_arrays
from secure_fl.encoding.metrics import SiteMetrics
from secure_fl.errors import LayoutMismatchError, RefusedError, SecureFLError, TrainingError
from secure_fl.files import write_atomically
from secure_fl.privacy.fingerprint import fingerprint
from secure_fl.privacy.mechanism import Mechanism
from secure_fl.results import traces
from secure_fl.rounds import RoundKind
from secure_fl.strategies.base import SHIPPED_TENSOR, Strategy
from secure_fl.strategies.site import Site
from secure_fl.study.private import require_private
from secure_fl.study.settings import Study
from secure_fl.tasks.base import LocalData, Share, Source, Split, Task
from secure_fl.tasks.code_digest import task_code
from secure_fl.tasks.files import TaskFile, register
from secure_fl.tasks.model_blocks import GENERATOR, InitialBlocks, layout_of, seeded
from secure_fl.tasks.package_digest import require_package
from secure_fl.tasks.state_dict import save_model

_Key: TypeAlias = tuple[str, str, str, str]  # the study, the site, where its data are, which file has the task

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What is the same in every round of a study."""

    study: Study
    strategy: Strategy
    task: Task
    data: LocalData
    layout: Layout  # of the task's whole model
    code: str  # digest of the task's source, and of the strategy's


_FEW_BATCHES = 2


class Trainer:
    """Executes jobs one at a time; remembers the data between rounds."""

    def __init__(self) -> None:
        self._loaded: dict[_Key, _Loaded] = {}
        self._rehearsed: dict[_Key, Result] = {}

    def short(self, rows: int) -> Trainer:
        """One that trains on the first `rows` that this one has loaded, and tests on all: to see how long it takes."""
        other = Trainer()
        other._loaded = {key: replace(loaded, data=_first(loaded.data, rows)) for key, loaded in self._loaded.items()}
        return other

    def execute(self, job: Job) -> Result:
        """Do a job. Raises typed errors; nothing of a failed job is left in the job's output files."""
        with GENERATOR:  # Two jobs in one process must not interleave if a seed is to mean something.
            # Sums with denormal numbers take many times as long: training would tell by its pace what it computes.
            torch.set_flush_denormal(True)
            if job.threads and torch.get_num_threads() != job.threads:
                torch.set_num_threads(job.threads)
            try:
                return self._rehearse(job) if job.rehearsal else self._execute(job)
            except SecureFLError:
                raise
            except Exception as error:
                # Task code is the site's own: its traceback belongs in the site's log and nowhere else.
                log.exception("training failed")
                raise TrainingError(
                    f"training failed: {type(error).__name__}", advice="the traceback is in the node's log"
                ) from error
            finally:
                torch.set_flush_denormal(False)  # It may be a thread that also does other things.

    def _execute(self, job: Job) -> Result:
        # 5. Load the data, once per study, and measure the model as it came.
        loaded = self._load(job)
        if job.code and job.code != loaded.code:
            raise RefusedError("the task's code changed between the check and the training")
        strategy, site = loaded.strategy, _site(job, loaded)
        metrics = _measure(strategy, site)
        if job.kind is RoundKind.TRAIN:
            # 6. Train, and select the blocks that may leave.
            update = settled_fit(strategy, site)
            if site.left_out:
                log.warning("%d times a unit had no finite gradient and counted as zero", site.left_out)
            save_arrays(Path(job.update_to), update)
            if strategy.attention and strategy.compares(job.round):
                save_arrays(Path(job.features_to), {FEATURES: settled(strategy.features(site))})
            if site.state:
                write_atomically(Path(job.state_to), json.dumps(site.state).encode())
            if site.personal:
                save_arrays(Path(job.personal_to), site.personal)
            if site.traces and job.traces_to:
                traces.note(Path(job.traces_to), job.round, site.traces)
        else:
            # For people: with the names that the task's model has in torch.
            save_model(Path(job.model_to), loaded.task, _predictor(strategy, site), seed=loaded.study.study.seed)
        return Result(samples=site.samples, metrics=metrics, richness=strategy.richness(site))

    def _rehearse(self, job: Job) -> Result:
        """Once per study: whatever can fail without a model, so that it does not fail with one."""
        loaded, key = self._load(job), _key(job)
        _require_layout(loaded, layout_from_json(job.layout))
        if key not in self._rehearsed:
            require_own_start(loaded.study)
            require_private(loaded.study.privacy, loaded.strategy, loaded.task)
            privacy = None if job.privacy is None else Mechanism(**job.privacy)
            try:
                log.info("%s", _rehearsed(loaded, seed=job.seed, device=job.device, privacy=privacy))
                found = _found(loaded, salt=bytes.fromhex(job.salt))
            except Exception:
                del self._loaded[key]  # What is wrong with the data may be repaired in their file.
                raise
            self._rehearsed[key] = Result(samples=len(loaded.data.train), metrics=SiteMetrics(), found=found)
        return self._rehearsed[key]

    def _load(self, job: Job) -> _Loaded:
        key = _key(job)
        if key not in self._loaded:
            study = Study.from_canonical(Path(job.study).read_bytes())
            if job.task_file:
                register(study.task.name, TaskFile(path=Path(job.task_file), sha256=job.task_sha256))
            require_package(study.task.name, job.package_sha256, study=study.study.name)
            dataset, split_key = DatasetSection.parse(job.dataset), bytes.fromhex(job.split_key)
            self._loaded[key] = _load(study, dataset, Path(job.folder), split_key)
        return self._loaded[key]


def try_out(
    study: Study,
    dataset: DatasetSection,
    *,
    folder: Path,
    device: str,
    split_key: bytes = b"",
    privacy: Mechanism | None = None,
) -> str:
    """Rehearse a study without a node; returns what was found. Raises `DataError` where the task's own code fails."""
    try:
        loaded = _load(study, dataset, folder, split_key)
        return _rehearsed(loaded, seed=study.study.seed, device=device, privacy=privacy)
    except SecureFLError:
        raise
    except Exception as error:
        raise task_fails(study, error) from error


def _rehearsed(loaded: _Loaded, *, seed: int, device: str, privacy: Mechanism | None) -> str:
    """Look through a site's data, train a batch, and have the strategy train on a few rows; returns what was found."""
    found = rehearse(_site_without(loaded, seed=seed, device=device, privacy=privacy), privacy=loaded.study.privacy)
    if not loaded.strategy.shipped:  # What is shipped beside the model comes with the model.
        few = replace(loaded, data=_first(loaded.data, _FEW_BATCHES * loaded.strategy.settings.batch_size))
        site = _site_without(few, seed=seed, device=device)
        names = loaded.strategy.request_for(loaded.task, loaded.layout).blocks
        site.received = {name: site.initial[name] for name in names}
        loaded.strategy.fit(site)
    return found


def _load(study: Study, dataset: DatasetSection, folder: Path, split_key: bytes) -> _Loaded:
    task = tasks.create(study.task.name, study.task.settings)
    study.metrics.require(task)
    strategy = study.make_strategy()
    code = _code_of(type(task), type(strategy))
    with seeded(study.study.seed):
        layout = layout_of(task, task.model())
    return _Loaded(study, strategy, task, task.load(_source(dataset, folder, split_key)), layout, code)


def _first(data: LocalData, rows: int) -> LocalData:
    train = data.train
    groups = None if train.groups is None else train.groups[:rows]
    return LocalData(
        train=Split(inputs=train.inputs[:rows], targets=train.targets[:rows], groups=groups), test=data.test
    )


@cache
def _code_of(task: type[Task], strategy: type[Strategy]) -> str:
    """Once for a class: what lies on the disk later is not what this process has loaded."""
    return task_code(task, strategy).digest


def _found(loaded: _Loaded, *, salt: bytes) -> dict[str, str]:
    """What the ledger says of data and code."""
    found = {"code": loaded.code}
    if loaded.study.privacy.mode != "none":
        found["preprocessing"] = loaded.task.preprocessing
        found["split"] = "by unit, with a secret of the site"
        found["fingerprint"] = fingerprint(loaded.data, salt=salt)
    return found


def _key(job: Job) -> _Key:
    return job.study, job.me, job.folder, job.task_sha256


def _require_layout(loaded: _Loaded, layout: Layout) -> None:
    """Raise `LayoutMismatchError` unless the announced model is one of this task and this strategy."""
    request = loaded.strategy.request_for(loaded.task, loaded.layout)
    loaded.layout.select(request.blocks).require(layout.model, who="the coordinator's model")
    if layout.reserved.names != loaded.strategy.shipped:
        raise LayoutMismatchError("the coordinator's model has other reserved blocks than the strategy's")


def _site_without(loaded: _Loaded, *, seed: int, device: str, privacy: Mechanism | None = None) -> Site:
    """The site before it has received anything."""
    return Site(
        task=loaded.task,
        data=loaded.data,
        training=loaded.strategy.settings,
        initial=InitialBlocks(loaded.task, loaded.study.study.seed, loaded.layout),
        received={},
        personal={},
        combination={},
        seed=seed,
        device=device,
        privacy=privacy,
    )


def _site(job: Job, loaded: _Loaded) -> Site:
    """The site as a job finds it."""
    study, strategy, task, whole = loaded.study, loaded.strategy, loaded.task, loaded.layout
    layout = layout_from_json(job.layout)
    _require_layout(loaded, layout)
    # Mapped: the model as it was received is read where it lies.
    received = layout.unflatten(np.memmap(job.received, np.uint8, mode="r") if layout.size else b"")
    return Site(
        task=task,
        data=loaded.data,
        training=strategy.settings,
        initial=InitialBlocks(task, study.study.seed, whole),
        received={name: received[name] for name in layout.model.names},
        shipped=_shipped(layout.reserved, received),
        personal=_kept(job.personal),
        combination=_kept(job.combination),
        state=json.loads(Path(job.state).read_bytes()) if job.state else {},
        seed=job.seed,
        device=job.device,
        budget=job.budget,
        asked=job.asked or None,
        # Where circles take turns, other circles' turns are rounds of the model, too.
        round=job.round if job.version is None else job.version + 1,
        privacy=None if job.privacy is None or job.kind is not RoundKind.TRAIN else Mechanism(**job.privacy),
        privacy_seed=bytes.fromhex(job.privacy_seed) or None,
        reserved_steps=job.reserved_steps,
    )


def _kept(path: str) -> Blocks:
    return load_arrays(Path(path)) if path else {}


def _source(section: DatasetSection, folder: Path, split_key: bytes) -> Source:
    share: Share | None = None
    if (part := section.share) is not None:
        share = Share(index=part.index, of=part.of, partition=part.partition, seed=part.seed)
    path = folder / section.path if section.path else None
    return Source(path=path, format=section.format or None, share=share, split_key=split_key)


def _shipped(layout: Layout, received: Blocks) -> dict[str, Vector]:
    """What the coordinator ships beside the model, each in its shape."""
    shaped = layout.tensors({name: received[name] for name in layout.names})
    return {name: shaped[f"{name}/{SHIPPED_TENSOR}"] for name in layout.names}


def _predictor(strategy: Strategy, site: Site) -> Blocks:
    """The model the site predicts with; where the strategy cannot make it, the one it received.

    Some train for it once more, on the site's own rows: whether that works must not show in whether the site answers.
    """
    try:
        return strategy.inference(site)
    except Exception:
        log.exception("the site's own model cannot be made; it keeps the shared one")
        return site.complete(site.received)


def _measure(strategy: Strategy, site: Site) -> SiteMetrics:
    """The model as received, before training: the fruit of the rounds so far."""
    try:
        return _measured(strategy, site)
    except Exception as error:
        # A task's own code may object to NaN, or to one row. What a model does to it is the site's business alone: a
        # site that fell silent would answer whatever question the model asks about that row.
        log.warning("the received model cannot be measured here (%s)", type(error).__name__, exc_info=True)
        unknown = math.nan if site.task.kind == "regression" else None
        return SiteMetrics(samples=site.samples, loss=math.nan, mse=unknown)


def _measured(strategy: Strategy, site: Site) -> SiteMetrics:
    mine, shared = strategy.inference(site), site.complete(site.received)
    own = site.evaluate(mine)
    common = own
    if strategy.has_global_model and any(not np.array_equal(mine[name], shared[name]) for name in shared):
        common = site.evaluate(shared)
    return SiteMetrics(
        samples=site.samples,
        accuracy=own.accuracy,
        loss=own.loss,
        mse=own.mse,
        global_accuracy=common.accuracy if strategy.has_global_model else None,
        sums=own.sums,
    )
