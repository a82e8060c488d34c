"""The models that a simulation leaves: with torch's own names, and a card beside each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from secure_fl import tasks
from secure_fl.results.card import ModelCard
from secure_fl.results.measured import Measured
from secure_fl.results.record import StudyRecord
from secure_fl.simulation.workspace import Workspace

_MEASURED = ("accuracy", "loss", "mse")


def write_models(workspace: Workspace, record: StudyRecord, summary: Mapping[str, Any]) -> None:
    """`model.safetensors` of the study, if its strategy has a global model; cards of it and of the sites' own."""
    from secure_fl.tasks.state_dict import convert

    study = workspace.study
    epsilons = [node["epsilon"] for node in summary["nodes"] if node["epsilon"] is not None]
    strategy = study.make_strategy()
    if strategy.has_global_model:
        path = workspace.folder / "model.safetensors"
        task = tasks.create(study.task.name, study.task.settings)
        convert(newest_checkpoint(workspace), path, task, seed=study.study.seed)
        found = Measured.of(record, predicts_with_shared=strategy.predicts_with_shared)
        # What a record is exposed to follows from its own site: of several sites, the one that spent most.
        spent = max(epsilons, default=None)
        ModelCard.of(record, metrics=found.shared, own_metrics=found.own, simulated=True, epsilon=spent).write(path)
    for node in summary["nodes"]:
        path = workspace.node_folder(node["name"]) / "model.safetensors"
        if not path.exists():
            continue
        values = {name: node.get(name) for name in _MEASURED} | node["metrics"]
        ModelCard.of(
            record, metrics=values, model=node["name"], simulated=True, epsilon=max(epsilons, default=None)
        ).write(path)


def newest_checkpoint(workspace: Workspace) -> Path:
    """The coordinator's last version. What a strategy remembers beside it (`N.state.safetensors`) is another file."""
    found = (workspace.study_state / "checkpoints").glob("*.safetensors")
    return max(path for path in found if path.name.removesuffix(".safetensors").isdigit())
