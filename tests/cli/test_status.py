"""`secure-fl study status`: the lead reads whom a study waits for, on a terminal and as JSON."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from typer.testing import CliRunner

from secure_fl.cli import app
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
