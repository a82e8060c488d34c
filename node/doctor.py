"""`python -m node.doctor FILE [--study STUDY.toml]`: is this node fit to serve, and would it take part in a study?"""

from __future__ import annotations

import hashlib
import stat
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from node.config import DatasetSection, NodeFile
from node.desk import cost_here
from node.own_ledger import own_entries
from node.policy import Policy
from node.privacy import plan_here
from node.store import NodeStore
from node.training.seeds import data_secrets
from node.trial import require_approved_code
from secure_fl.errors import CertificateError, DataError, DoubtError, RefusedError, TaskUnavailableError
from secure_fl.operations import doctor
from secure_fl.settings import section_name
from secure_fl.study.settings import Study


def main(arguments: list[str] | None = None) -> int:
    """Check everything that can be known at this site."""
    return doctor.command("python -m node.doctor", __doc__, _checks, arguments)


def _checks(path: Path, study: Path | None) -> Iterator[doctor.Check]:
    file = yield from doctor.common(NodeFile, path, role="node")
    if file is None:
        return
    yield "name", lambda: _name(file)
    yield "ledger", lambda: _ledger(file)
    for name, dataset in file.datasets.items():
        yield f"dataset {name}", partial(_dataset, file, dataset)
    for name, where in file.task_files.items():
        yield f"task {name}", partial(_task_file, where)
    yield from doctor.connection(file)
    if study is not None:
        yield "policy", lambda: _policy(file, study)
        yield "approval", lambda: _approval(file, study)
        yield "training", lambda: _training(file, study)


def _name(file: NodeFile) -> str:
    mine = file.certificate()
    if mine.name != file.node.name:
        raise CertificateError(
            f"[node] name is {file.node.name!r}, the certificate is for {mine.name!r}",
            advice="put this site's own certificate and keys there; if this is that site, correct [node] name",
        )
    return file.node.name


def _ledger(file: NodeFile) -> str:
    entries = own_entries(file, NodeStore(file.state_folder))
    return f"{len(entries)} entries, all of this site and consortium" if entries else "none yet"


def _dataset(file: NodeFile, dataset: DatasetSection) -> str:
    if not dataset.path:
        return "comes with its task"
    path = file.path(dataset.path)
    try:
        if path.is_dir():
            return f"{path}: {sum(1 for _ in path.iterdir())} files"
        with path.open("rb"):
            return f"{path}: {path.stat().st_size} bytes"
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}", advice="correct the path, or let the node's user read the file"
        ) from None


def _task_file(path: Path) -> str:
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        shared = stat.S_IMODE(path.stat().st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    except OSError as error:
        raise TaskUnavailableError(
            f"{path}: {error.strerror}", advice="put the task's file there, or correct [policy] tasks"
        ) from None
    if shared:
        raise DoubtError(f"{path}: others on this machine can change what this node runs", advice=f"chmod go-w {path}")
    return f"{path}, sha256:{found}"


def _policy(file: NodeFile, path: Path) -> str:
    policy = Policy(file, file.certificate())
    policy.check_task(Study.read(path))  # before `read_study` imports it
    study = doctor.read_study(path)
    policy.check_terms(study)
    cost = cost_here(file, NodeStore(file.state_folder), study)
    return f"allows {study.study.name} {study.id}; {'; '.join(cost)}"


def _approval(file: NodeFile, path: Path) -> str:
    study = Study.read(path)
    policy = Policy(file, file.certificate())
    policy.check_task(study)
    study = study.completed()
    store = NodeStore(file.state_folder)
    try:
        policy.check_approval(study.id, store.approvals())
        require_approved_code(file, store, study)
    except RefusedError as error:
        raise DoubtError(error.message, advice=error.hint) from None
    return f"{study.study.name} {study.id} is approved"


def _training(file: NodeFile, path: Path) -> str:
    """What a round would do before it fetches a model: load the data, train on one batch."""
    from node.training.trainer import try_out  # torch: not needed for anything else here

    study = Study.read(path)
    Policy(file, file.certificate()).check_task(study)
    study = study.completed()
    dataset = file.datasets.get(study.task.dataset_id)
    if dataset is None:
        raise DataError(
            f"there is no {section_name('datasets', study.task.dataset_id)} here",
            advice=f"add it, with the path of this site's data for the task {study.task.name!r}",
        )
    plan = plan_here(file, study)
    mechanism = None if plan is None else plan.mechanism
    store = NodeStore(file.state_folder)
    has_key = file.simulation is None and store.has_secret  # The doctor makes no file.
    done = try_out(
        study,
        dataset,
        folder=file.path(""),
        device=file.node.device,
        split_key=data_secrets(store.secret()).split_key if has_key else b"",
        privacy=mechanism,
    )
    return f"{done}; `secure-fl node try` shows what would leave"


if __name__ == "__main__":
    sys.exit(main())
