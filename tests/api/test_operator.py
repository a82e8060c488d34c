"""`Operator` from Python, against a coordinator with real TLS; also where an event loop runs, as in a notebook."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from secure_fl import Operator, load_model, tasks
from secure_fl.api.operator import Exported
from secure_fl.errors import LateMessageError, SettingsError, UnknownStudyError
from tests.support.edge import Edge, at_the_edge


def in_a_notebook(file: Path, cell: Any) -> Any:
    """Run a cell in a thread of its own, in which an event loop is running."""

    async def running() -> Any:
        return cell(Operator(file))

    return asyncio.to_thread(lambda: asyncio.run(running()))


def test_a_leads_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(edge: Edge) -> None:
        study = edge.workspace.study
        file = edge.operator().certificate_path.with_name("operator.toml")
        runner = edge.coordinator.runners[study.id]
        edge.coordinator.start(runner)  # It waits for sites; its model is made.
        while not runner.is_open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await in_a_notebook(file, lambda lead: lead.name) == "lead"
        assert await in_a_notebook(file, look) == study.id
        monkeypatch.setattr(tasks, "is_installed_id", lambda _: False)
        await in_a_notebook(file, lambda lead: check(export(lead, "blocks.safetensors"), "blocks"))
        monkeypatch.undo()
        await in_a_notebook(file, lambda lead: check(export(lead, "torch.safetensors"), "torch"))
        other = study.changed(name="another")
        ended = await in_a_notebook(file, lambda lead: [lead.submit(other), lead.stop("another")])
        assert [status["study_id"] for status in ended] == [other.id] * 2
        assert ended[1]["state"] == "aborted"

    def look(lead: Operator) -> str:
        with pytest.raises(UnknownStudyError):
            lead.status("heart")
        with pytest.raises(LateMessageError, match="untrained"):
            lead.export("study", tmp_path / "m.safetensors")
        (status,) = lead.status("study")
        assert [site["name"] for site in status["sites"]] == ["site-01", "site-02", "site-03"]
        return str(status["study_id"])

    def export(lead: Operator, name: str) -> Exported:
        return lead.export("study", tmp_path / name, untrained=True)

    def check(done: Exported, names: str) -> None:
        assert done.names == names
        card = json.loads(done.path.with_suffix(".json").read_text())
        assert (card["names"], card["rounds"], card["simulated"]) == (names, 0, False)
        keys = load_file(done.path).keys()
        assert ("hidden/0.weight" in keys, "hidden.0.weight" in keys) == (names == "blocks", names == "torch")
        task = tasks.create("digits", {})
        if names == "torch":
            task.model().load_state_dict(load_file(done.path))
        assert not load_model(done.path, task).training  # of either

    at_the_edge(tmp_path, scenario)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file"):
        Operator(tmp_path / "operator.toml")
