"""`Operator` from Python, against a coordinator with real TLS; also where an event loop runs, as in a notebook."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from secure_fl import Operator, Study, load_model, tasks
from secure_fl.api.operator import Exported
from secure_fl.errors import (
    InitialModelError,
    LateMessageError,
    LayoutMismatchError,
    SecureFLError,
    SettingsError,
    TaskUnavailableError,
    UnknownStudyError,
    UsageError,
)
from secure_fl.study.given import continued
from secure_fl.tasks import files
from secure_fl.tasks.base import Task
from secure_fl.tasks.model_blocks import initial_blocks
from secure_fl.tasks.state_dict import save_model
from tests.support.edge import Edge, at_the_edge


def in_a_notebook(file: Path, cell: Any) -> Any:
    """Run a cell in a thread of its own, in which an event loop is running."""

    async def running() -> Any:
        return cell(Operator(file))

    return asyncio.to_thread(lambda: asyncio.run(running()))


def exported_soon(lead: Operator, path: Path) -> Exported:
    """A study that was just submitted has no model for a moment."""
    for _ in range(100):
        try:
            return lead.export("on", path, untrained=True)
        except LateMessageError:
            time.sleep(0.05)
    raise AssertionError("no model")


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
        await in_a_notebook(file, by_code_that_the_lead_names)
        monkeypatch.undo()
        await in_a_notebook(file, lambda lead: check(export(lead, "torch.safetensors"), "torch"))
        await in_a_notebook(file, overwrite)
        other = study.changed(name="another")
        ended = await in_a_notebook(file, lambda lead: [lead.submit(other), lead.stop("another")])
        assert [status["study_id"] for status in ended] == [other.completed().id] * 2
        assert ended[1]["state"] == "aborted"
        await in_a_notebook(file, go_on)

    def look(lead: Operator) -> str:
        with pytest.raises(UnknownStudyError):
            lead.status("heart")
        with pytest.raises(LateMessageError, match="untrained"):
            lead.export("study", tmp_path / "m.safetensors")
        (status,) = lead.status("study")
        assert [site["name"] for site in status["sites"]] == ["site-01", "site-02", "site-03"]
        return str(status["study_id"])

    def export(lead: Operator, name: str, task: str | type[Task] | None = None) -> Exported:
        return lead.export("study", tmp_path / name, untrained=True, task=task)

    def by_code_that_the_lead_names(lead: Operator) -> None:
        """A class, a module, or a file; what is wrong leaves nothing behind."""
        (tmp_path / "mine.py").write_text("from secure_fl.tasks.digits import Digits as Mine\n")
        listed = f"{tmp_path / 'mine.py'}:Mine"
        named: list[str | type[Task]] = [tasks.resolve("digits"), "secure_fl.tasks.digits:Digits", listed]
        for number, task in enumerate(named):
            check(export(lead, f"named-{number}.safetensors", task), "torch")
        wrong: list[tuple[str | type[Task], type[SecureFLError]]] = [
            (tasks.resolve("breast-cancer"), LayoutMismatchError),
            (f"{tmp_path / 'mine.py'}:Other", TaskUnavailableError),
            (f"{tmp_path / 'other.py'}:Mine", UsageError),
            (f"{tmp_path / 'mine.py'}:not a class", UsageError),
        ]
        for task, error in wrong:
            with pytest.raises(error) as caught:
                export(lead, "wrong.safetensors", task)
            assert caught.value.__notes__
            assert "at every site" not in caught.value.hint  # There is nothing wrong at the sites.
            assert not list(tmp_path.glob("wrong*"))
        files._registered.clear()
        files._loaded.clear()
        sys.modules.pop("mine")

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

    def overwrite(lead: Operator) -> None:
        """An earlier model of the study, and nothing else."""
        mine = tmp_path / "blocks.safetensors"
        export(lead, mine.name)
        mine.with_suffix(".json").write_text('{"study_id": "another"}')
        with pytest.raises(UsageError, match="no earlier model of this study"):
            export(lead, mine.name)
        mine.with_suffix(".json").unlink()
        with pytest.raises(UsageError, match="no earlier model of this study"):
            export(lead, mine.name)

    def go_on(lead: Operator) -> None:
        """From a model that is brought along: the coordinator has that one, and no other."""
        task, model = tasks.create("digits", {}), tmp_path / "mine.safetensors"
        save_model(model, task, initial_blocks(task, 99)[1], seed=0)
        roster = lead.status("study")[0]["record"]["settings"]
        study, _ = continued(Study.from_canonical(roster.encode()).changed(name="on"), model)
        with pytest.raises(InitialModelError, match="did not come with it"):
            lead.submit(study)
        with pytest.raises(UsageError, match="does not say that it goes on"):
            lead.submit(study.changed({"study.start": "seed", "study.initial": ""}), start=model)
        lead.submit(study, start=model)
        done = exported_soon(lead, tmp_path / "theirs.safetensors")
        mine, theirs = load_file(model), load_model(done.path, task).state_dict()
        assert all(torch.equal(theirs[name], mine[name]) for name in mine)

    at_the_edge(tmp_path, scenario)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file"):
        Operator(tmp_path / "operator.toml")
