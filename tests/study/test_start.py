"""The model a study starts from is part of its hash, and whoever makes it makes this one or says that it cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coordinator.bulk_files import BulkFiles
from coordinator.service import Coordinator
from coordinator.shared_model import SharedModel
from coordinator.store import Store
from node.config import NodeFile
from node.policy import Policy
from secure_fl import strategies, tasks
from secure_fl.errors import InitialModelError, RefusedError, by_code
from secure_fl.simulation.workspace import prepare
from secure_fl.strategies.base import Strategy
from secure_fl.study import start
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.settings import Study
from secure_fl.study.start import Start, outline_of, start_of
from secure_fl.study.submission import start_of_study
from secure_fl.tasks.base import Task
from tests.protect.rosters import study

CELLS = {"name": "bearings", "network": "cells", "windows": 2}


def test_a_completed_study_names_its_model_and_another_seed_names_another() -> None:
    made = study().completed()
    model = start_of(tasks.create("digits", {}), strategies.create("fedavg", {}), made.study.seed)
    assert made.study.initial == model.layout.digest(model.blocks).hex()
    assert made.completed() == made
    assert study(study={"seed": 5}).completed().study.initial != made.study.initial
    assert study().id != made.id


def test_what_is_shipped_counts() -> None:
    """Whoever could choose auxiliary inputs and features freely would choose how deep a site shares."""
    settings = {"name": "fedasa", "auxiliary_epochs": 1, "auxiliary_samples": 2}
    made = study(task=CELLS, strategy=settings).completed()
    model = start_of(tasks.create("bearings", made.task.settings), made.make_strategy(), made.study.seed)
    assert {"@auxiliary-inputs", "@auxiliary-features"} <= set(model.blocks)
    other = {name: values.copy() for name, values in model.blocks.items()}
    other["@auxiliary-features"][0] += np.float32(1)
    assert model.layout.digest(model.blocks).hex() == made.study.initial != model.layout.digest(other).hex()


def test_the_number_of_cores_does_not_matter() -> None:
    settings = {"auxiliary_epochs": 1, "auxiliary_samples": 2}
    task = tasks.create("bearings", {"network": "cells", "windows": 2})
    strategy = strategies.create("fedasa", settings)
    before = torch.get_num_threads()
    digests = set()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        made = start_of(task, strategy, 3)
        digests.add(made.layout.digest(made.blocks))
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert len(digests) == 1


def test_a_model_is_made_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counting(task: Task, strategy: Strategy, seed: int) -> Start:
        made.append(seed)
        return start_of(task, strategy, seed)

    monkeypatch.setattr(start, "start_of", counting)
    monkeypatch.setattr(start, "_outlines", {})
    study(study={"seed": 7}).completed().check()
    study(study={"seed": 7}, strategy={"name": "fedavg", "epochs": 1}).completed().check()  # another strategy
    assert made == [7, 7]
    for seed in range(30):
        outline_of(tasks.create("digits", {}), strategies.create("fedavg", {}), seed)
    assert len(start._outlines) <= 16


def test_another_models_digest_is_refused(tmp_path: Path) -> None:
    wrong = study(study={"initial": "ab" * 32}).completed()
    for look in (wrong.check, lambda: start_of_study(wrong)):
        with pytest.raises(InitialModelError, match="initial") as caught:
            look()
        assert "torch" in caught.value.hint
        assert by_code(caught.value.code) is InitialModelError
    made = Coordinator(tmp_path / "state")
    first = start_of_study(study()).first_model()
    for offered in (wrong, study()):  # and one that names none
        with pytest.raises(InitialModelError):
            made.examine(offered, first)
    made.examine(study().completed(), first)


def test_a_coordinator_with_another_model_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with another version of torch, or with another file on its disk."""
    made, store = study().completed(), Store.in_folder(tmp_path)
    files = BulkFiles(tmp_path / "study")
    other = start_of_study(study(study={"seed": 8}))
    files.put_pieces(other.first_model().sha256, other.layout.pieces(other.blocks))
    files.first.write_bytes(other.first_model().to_json())
    store.add_study(made.id, made.canonical(), now=0.0)
    with pytest.raises(InitialModelError):
        SharedModel(ResolvedStudy.of(made), store, files)
    assert store.model(made.id) is None
    store.close()


def test_a_site_takes_no_part_in_a_study_that_names_no_model(tmp_path: Path) -> None:
    workspace = prepare(tmp_path / "run", Study.parse({"simulation": {"nodes": 4}}), policy={})
    workspace.point_nodes_at(0)
    file = NodeFile.read(workspace.node_file("site-01"))
    policy, made = Policy(file, file.credential().certificate), workspace.study
    policy.check_terms(made)
    nameless = made.model_copy(update={"study": made.study.model_copy(update={"initial": ""})})
    with pytest.raises(RefusedError, match="which model"):
        policy.check_terms(nameless)
