"""README.md, carried out: its runs with fewer sites and rounds; of its commands for separate machines, that the
operations page, which is carried out as a whole, has each of them.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from secure_fl.cli import app
from tests.support.page import fences
from tests.support.processes import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
_SMALL = ["--nodes", "3", "--rounds", "1"]


def commands(section: str) -> list[list[str]]:
    """The commands of a section's fences, without their comments."""
    text = README.partition(f"## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```\n((?:.*\n)*?)^```$", text, re.MULTILINE)
    return [words for block in blocks for line in block.splitlines() if (words := shlex.split(line, comments=True))]


def test_five_lines_to_a_result(tmp_path: Path) -> None:
    found = commands("Five lines to a result")
    assert [words[1] for words in found] == ["study", "study", "study", "run", "run", "run"]
    for words in found:
        assert words[0] == "secure-fl"
        rest = words[1:] + (_SMALL if words[1] == "run" else [])
        done = subprocess.run(
            [Path(sys.executable).with_name("secure-fl"), *rest],
            check=False,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, (words, done.stderr)
    left = {path.name for path in (tmp_path / "runs" / "trial").iterdir()}
    for name in ("report.html", "summary.json", "history.csv", "model.safetensors", "model.json", "model.md", "ca.pem"):
        assert name in README
        assert name in left


def test_arguments_of_the_script_and_runs_in_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script itself hands what it is given to `secure-fl run`."""
    monkeypatch.chdir(tmp_path)
    script = [shlex.split(line) for line in re.findall(r"^\./scripts/run (--.+)$", README, re.MULTILINE)]
    inline = [shlex.split(line) for line in re.findall(r"`secure-fl run (--[^`]+)`", README)]
    assert (len(script), len(inline)) == (1, 1)
    for number, words in enumerate([*script, *inline]):
        small = [*words, "--rounds", "1", "--engine", "threads", "--out", str(tmp_path / str(number))]
        done = CliRunner().invoke(app, ["run", *small])
        assert done.exit_code == 0, (words, done.output)


def test_the_lines_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n((?:.*\n)*?)^```$", README, re.MULTILINE)
    small = code.replace("rounds=3, nodes=5", "rounds=1, nodes=3, progress=False")
    assert small != code
    exec(compile(small, "README.md", "exec"), {})  # noqa: S102


def test_the_commands_for_separate_machines_are_those_of_the_operations_page() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    carried_out = "\n".join(fence.text for fence in fences(page))
    wanted = commands("On separate machines")
    assert len(wanted) > 10
    for words in wanted:
        options = [word for word in words if word.startswith("--")]
        here = [line for line in carried_out.splitlines() if " ".join(words[:3]) in line]
        assert here, words
        assert any(all(option in line for option in options) for line in here), (words, here)
