"""One training job from start to end, inside the training process. The only module of the node that needs torch."""

from __future__ import annotations

import hashlib
import logging
import threading
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save

from node.config import DatasetSection
from node.jobs import FEATURES, Job, Result, layout_from_json
from node.store import load_blocks, save_blocks
from secure_fl import tasks, traces
from secure_fl.blocks import Blocks, Layout, Vector
from secure_fl.errors import LayoutMismatchError, NonFiniteUpdateError, SecureFLError, TrainingError
from secure_fl.files import write_atomically
from secure_fl.metrics import SiteMetrics
from secure_fl.strategies.base import SHIPPED_TENSOR, Strategy
from secure_fl.strategies.site import Site
from secure_fl.study import Study
from secure_fl.tasks.base import LocalData, Share, Source, Task
from secure_fl.tasks.model_blocks import initial_blocks

log = logging.getLogger(__name__)


class Trainer:
    """Executes jobs one at a time; remembers the data between rounds."""

    # torch's generator is global: two jobs in one process must not interleave if a seed is to mean something.
    _one_at_a_time = threading.Lock()

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, str, str], tuple[Study, Strategy, Task, LocalData]] = {}

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
        study, strategy, task, data = self._load(job)
        whole, initial = initial_blocks(task, study.study.seed)
        request = strategy.request_for(task, whole)
        layout = layout_from_json(job.layout)
        whole.select(request.blocks).require(layout.model, who="the coordinator's model")
        received = layout.unflatten(Path(job.received).read_bytes())
        site = Site(
            task=task,
            data=data,
            training=strategy.settings,
            initial=initial,
            received={name: received[name] for name in layout.model.names},
            shipped=_shipped(strategy, layout.reserved, received),
            personal=load_blocks(Path(job.personal) if job.personal else None),
            combination=load_blocks(Path(job.combination) if job.combination else None),
            seed=training_seed(study.study.seed, job.me, job.round, job.attempt),
            device=job.device,
            budget=job.budget,
        )
        metrics = _measure(strategy, site)
        if job.kind == "train":
            # 6. Train, and select the blocks that may leave.
            update = strategy.fit(site)
            _require_finite(site, update)
            save_blocks(Path(job.update_to), update)
            if strategy.attention and strategy.compares(job.round):
                save_blocks(Path(job.features_to), {FEATURES: strategy.features(site)})
            if site.personal:
                save_blocks(Path(job.personal_to), site.personal)
            if site.traces and job.traces_to:
                traces.note(Path(job.traces_to), job.round, site.traces)
        else:
            model = site.layout.tensors(strategy.inference(site))
            write_atomically(Path(job.model_to), save(model))
        return Result(samples=site.samples, metrics=metrics)

    def _load(self, job: Job) -> tuple[Study, Strategy, Task, LocalData]:
        key = (job.study, job.me, job.folder)
        if key not in self._loaded:
            study = Study.from_canonical(Path(job.study).read_bytes())
            task = tasks.create(study.task.name, study.task.settings)
            self._loaded[key] = (study, study.make_strategy(), task, task.load(_source(job)))
        return self._loaded[key]


def training_seed(study_seed: int, me: str, number: int, attempt: int) -> int:
    """A seed for batch order and dropout: different for every site, round and attempt, repeatable for all of them."""
    digest = hashlib.sha256(f"secure-fl training {study_seed}/{me}/{number}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


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
    mine, shared = strategy.inference(site), {**site.initial, **site.received}
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
