"""What a round asks of the training process: which files of the site it reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from node.config import DatasetSection, NodeFile
from node.store import StudyStore
from node.training.jobs import Job, layout_to_json
from node.training.seeds import DataSecrets
from secure_fl.blocks import Layout
from secure_fl.privacy.mechanism import Mechanism
from secure_fl.rounds import RoundKind
from secure_fl.tasks.files import TaskFile


def make_job(
    file: NodeFile,
    store: StudyStore,
    *,
    kind: RoundKind,
    key: tuple[int, int],
    dataset: DatasetSection,
    seed: int,
    layout: Layout,
    received: Path | None,
    scratch: Callable[[str], Path],
    secrets: DataSecrets,
    mechanism: Mechanism | None = None,
    epochs: int = 0,
    asked: tuple[str, ...] = (),
    task: TaskFile | None = None,
    package: str = "",
    version: int | None = None,
) -> Job:
    """The job of a round and attempt (`key`); without `received` the model that is trained is not here yet.

    Under a `mechanism`, `epochs` passes over the data were reserved. `task` is the file that has the task, if any, and
    `package` the digest of its package that was approved.
    """
    number, attempt = key
    return Job(
        kind=kind,
        study=str(store.settings),
        round=number,
        attempt=attempt,
        me=file.node.name,
        seed=seed,
        dataset=dataset.model_dump(mode="json"),
        folder=str(file.path("")),
        device=file.node.device,
        threads=file.node.threads,
        layout=layout_to_json(layout),
        received=_text(received),
        personal=_text(store.latest("personal", before=number)),
        state=_text(store.latest("state", before=number)),
        combination=_text(store.combination(before=number)),
        update_to=str(scratch("update.safetensors")),
        features_to=str(scratch("features.safetensors")),
        personal_to=str(store.path("personal", number)),
        state_to=str(store.path("state", number)),
        model_to=str(store.model),
        traces_to=str(store.traces),
        version=version,
        asked=asked,
        budget=file.policy.upload_parameters,
        privacy=None if mechanism is None else asdict(mechanism),
        privacy_seed=secrets.noise_seed.hex(),
        reserved_steps=0 if mechanism is None else epochs * mechanism.epoch_steps,
        split_key=secrets.split_key.hex(),
        salt=secrets.salt.hex(),
        task_file="" if task is None else str(task.path),
        task_sha256="" if task is None else task.sha256,
        package_sha256=package if task is None else "",
    )


def _text(path: Path | None) -> str:
    return "" if path is None else str(path)
