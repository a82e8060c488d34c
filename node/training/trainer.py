"""One training job from start to end, inside the training process. The only module of the node that needs torch."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from node.config import DatasetSection
from node.training.jobs import FEATURES, Job, Result, layout_from_json
from secure_fl import tasks
from secure_fl.blocks import Blocks, Layout, Vector
from secure_fl.checkpoints import load_arrays, save_arrays
from secure_fl.encoding.metrics import SiteMetrics
from secure_fl.errors import LayoutMismatchError, NonFiniteUpdateError, SecureFLError, TrainingError
from secure_fl.files import write_atomically
from secure_fl.results import traces
from secure_fl.rounds import RoundKind
from secure_fl.strategies.base import SHIPPED_TENSOR, Strategy
from secure_fl.strategies.site import Site
from secure_fl.study.settings import Study
from secure_fl.tasks.base import LocalData, Share, Source, Task
from secure_fl.tasks.model_blocks import InitialBlocks, layout_of, seeded

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What is the same in every round of a study."""

    study: Study
    strategy: Strategy
    task: Task
    data: LocalData
    layout: Layout  # of the task's whole model


class Trainer:
    """Executes jobs one at a time; remembers the data between rounds."""

    # torch's generator is global: two jobs in one process must not interleave if a seed is to mean something.
    _one_at_a_time = threading.Lock()

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, str, str], _Loaded] = {}

    def execute(self, job: Job) -> Result:
        """Do a job. Raises typed errors; nothing of a failed job is left in the job's output files."""
        with self._one_at_a_time:
            if job.threads and torch.get_num_threads() != job.threads:
                torch.set_num_threads(job.threads)
            try:
                return self._execute(job)
            except SecureFLError:
                raise
            except Exception as error:
                # Task code is the site's own: its traceback belongs in the site's log and nowhere else.
                log.exception("training failed")
                raise TrainingError(
                    f"training failed: {type(error).__name__}", advice="the traceback is in the node's log"
                ) from error

    def _execute(self, job: Job) -> Result:
        # 5. Load the data, once per study, and measure the model as it came.
        loaded = self._load(job)
        strategy, site = loaded.strategy, _site(job, loaded)
        metrics = _measure(strategy, site)
        if job.kind is RoundKind.TRAIN:
            # 6. Train, and select the blocks that may leave.
            update = strategy.fit(site)
            _require_finite(site, update)
            save_arrays(Path(job.update_to), update)
            if strategy.attention and strategy.compares(job.round):
                save_arrays(Path(job.features_to), {FEATURES: strategy.features(site)})
            if site.state:
                write_atomically(Path(job.state_to), json.dumps(site.state).encode())
            if site.personal:
                save_arrays(Path(job.personal_to), site.personal)
            if site.traces and job.traces_to:
                traces.note(Path(job.traces_to), job.round, site.traces)
        else:
            save_arrays(Path(job.model_to), site.layout.tensors(strategy.inference(site)))
        return Result(samples=site.samples, metrics=metrics)

    def _load(self, job: Job) -> _Loaded:
        key = (job.study, job.me, job.folder)
        if key not in self._loaded:
            study = Study.from_canonical(Path(job.study).read_bytes())
            task = tasks.create(study.task.name, study.task.settings)
            with seeded(study.study.seed):
                layout = layout_of(task, task.model())
            self._loaded[key] = _Loaded(study, study.make_strategy(), task, task.load(_source(job)), layout)
        return self._loaded[key]


def _site(job: Job, loaded: _Loaded) -> Site:
    """The site as a job finds it."""
    study, strategy, task, whole = loaded.study, loaded.strategy, loaded.task, loaded.layout
    layout = layout_from_json(job.layout)
    whole.select(strategy.request_for(task, whole).blocks).require(layout.model, who="the coordinator's model")
    # Mapped: the model as it was received is read where it lies.
    received = layout.unflatten(np.memmap(job.received, np.uint8, mode="r") if layout.size else b"")
    return Site(
        task=task,
        data=loaded.data,
        training=strategy.settings,
        initial=InitialBlocks(task, study.study.seed, whole),
        received={name: received[name] for name in layout.model.names},
        shipped=_shipped(strategy, layout.reserved, received),
        personal=_kept(job.personal),
        combination=_kept(job.combination),
        state=json.loads(Path(job.state).read_bytes()) if job.state else {},
        seed=job.seed,
        device=job.device,
        budget=job.budget,
    )


def _kept(path: str) -> Blocks:
    return load_arrays(Path(path)) if path else {}


def _source(job: Job) -> Source:
    section = DatasetSection.parse(job.dataset)
    share: Share | None = None
    if (part := section.share) is not None:
        share = Share(index=part.index, of=part.of, partition=part.partition, seed=part.seed)
    path = Path(job.folder) / section.path if section.path else None
    return Source(path=path, format=section.format or None, share=share)


def _shipped(strategy: Strategy, layout: Layout, received: Blocks) -> dict[str, Vector]:
    """What the coordinator ships beside the model, each in its shape; `LayoutMismatchError` for anything else."""
    if layout.names != strategy.shipped:
        raise LayoutMismatchError("the coordinator's model has other reserved blocks than the strategy's")
    shaped = layout.tensors({name: received[name] for name in layout.names})
    return {name: shaped[f"{name}/{SHIPPED_TENSOR}"] for name in layout.names}


def _measure(strategy: Strategy, site: Site) -> SiteMetrics:
    """The model as received, before training: the fruit of the rounds so far."""
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
    )


def _require_finite(site: Site, update: Blocks) -> None:
    """NaN must reach neither the update nor what the site keeps; the model in hand may be either or neither."""
    held = (parameter.detach().cpu().numpy() for parameter in site.model.parameters())
    if not all(np.isfinite(vector).all() for vector in (*held, *update.values(), *site.personal.values())):
        raise NonFiniteUpdateError("training produced NaN or infinity")
