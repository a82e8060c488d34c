"""`secure-fl study status`: the lead reads whom a study waits for, on a terminal and as JSON."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from secure_fl.cli import app, status_text
from secure_fl.results.record import NodeRound, RoundRecord, StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.rpc import operations_pb2 as pb
from tests.support.edge import Edge, at_the_edge


def test_a_lead_reads_whom_a_study_waits_for(tmp_path: Path) -> None:
    def ask(operator: Path, *more: str) -> str:
        done = CliRunner().invoke(app, ["study", "status", *more, "--as", str(operator)])
        assert done.exit_code == 0, done.output
        return done.output

    async def scenario(edge: Edge) -> None:
        file = edge.operator()
        operator = file.certificate_path.with_name("operator.toml")
        said = await asyncio.to_thread(ask, operator)
        assert "waiting: 0 of 3 needed; site-01: not connected; site-02: not connected; site-03: not" in said
        (told,) = json.loads(await asyncio.to_thread(ask, operator, "study", "--json"))
        assert told["why_not"] == dict.fromkeys(("site-01", "site-02", "site-03"), "not connected")
        assert told["waiting"][0].startswith("waiting: 0 of 3 needed")
        assert told["ended"] == ""
        runner = edge.coordinator.runners[edge.workspace.study.id]
        await edge.coordinator.stop(runner)
        said = await asyncio.to_thread(ask, operator, "study")
        assert "aborted (StudyStopped: its lead stopped it), 0 of 1 rounds" in said
        assert "waiting" not in said

    at_the_edge(tmp_path, scenario)


def test_the_table_of_rounds_fits_80_columns_with_no_word_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    sites = tuple(NodeRound(name=name, outcome="took part") for name in "abc")
    entry = RoundRecord(
        number=10, kind=RoundKind.TRAIN, attempts=1, seconds=1.0, nodes=sites, mean_accuracy=0.91234, mean_loss=0.3,
        global_accuracy=0.9, metrics={"auc": 0.99, "sensitivity_at_90": 0.93},
    )  # fmt: skip
    record = StudyRecord(
        study="x", study_id="ab" * 32, task="t", strategy="s", protection="p", planned_rounds=10,
        roster=("a", "b", "c"), rounds=(entry,),
    )  # fmt: skip
    record.save(tmp_path / "record.json")
    saved = (tmp_path / "record.json").read_bytes()
    status_text.tell(pb.StudyStatus(name="x", study_id="ab" * 32, state="running", record=saved))
    said = capsys.readouterr().out
    for word in ("accuracy", "shared", "sensitivity", "attempts", "0.9123", "3 of 3"):
        assert word in said
    assert "…" not in said
