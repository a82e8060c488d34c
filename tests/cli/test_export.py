"""`secure-fl study export`: a model that nobody has trained is not taken for a result."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import secure_fl.cli
from coordinator.operations import Operations
from secure_fl.cli import app
from secure_fl.results.card import ModelCard
from secure_fl.results.record import StudyRecord
from secure_fl.study.settings import Study
from tests.support.edge import Edge, at_the_edge


@pytest.mark.parametrize("rounds", [0, 1])
def test_an_untrained_model_is_exported_only_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rounds: int
) -> None:
    async def scenario(edge: Edge) -> None:
        file = edge.operator()
        runner = edge.coordinator.runners[edge.workspace.study.id]
        edge.coordinator.start(runner)  # It waits for sites; its model is made.
        while not runner.is_open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        status = Operations._status

        async def told(self: Operations, *arguments: object) -> object:
            found = await status(self, *arguments)  # type: ignore[arg-type]
            found.rounds_done = rounds
            return found

        monkeypatch.setattr(Operations, "_status", told)
        await asyncio.to_thread(export, file.certificate_path.with_name("operator.toml"))

    def export(operator: Path) -> None:
        out = tmp_path / "model.safetensors"
        command = ["study", "export", "study", "--out", str(out), "--as", str(operator)]
        if not rounds:
            monkeypatch.setattr(sys, "argv", ["secure-fl", *command])
            with pytest.raises(SystemExit) as left:
                secure_fl.cli.main()
            assert left.value.code == 7
            message, advice = capsys.readouterr().err.splitlines()
            assert message.startswith("secure-fl: the study has not finished a round: its model is untrained")
            assert "--untrained" in advice
            assert not out.exists()
            command.append("--untrained")
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert (", untrained;" in done.output) == (rounds == 0)
        assert ("**untrained**" in out.with_suffix(".md").read_text()) == (rounds == 0)
        assert out.exists()

    at_the_edge(tmp_path, scenario)


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({}, "none; nothing limits how much the model can reveal about single records"),
        (
            {"mode": "dp-sgd", "unit": "group", "epsilon": 3.0, "delta": 1e-5},
            "dp-sgd, at most epsilon 3 with delta 1e-05 for each group, enforced by each site",
        ),
    ],
)
def test_the_card_says_what_the_study_promises_about_records(privacy: dict[str, object], said: str) -> None:
    study = Study.parse({"privacy": privacy})
    record = StudyRecord(
        study="s", study_id=study.id, task="t", strategy="x", protection="p", planned_rounds=1, roster=(),
        settings=study.canonical().decode(),
    )  # fmt: skip
    assert ModelCard.of(record, metrics={}).privacy_in_words == said
