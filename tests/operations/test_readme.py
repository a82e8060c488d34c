"""README.md, carried out: its runs with fewer sites and rounds. Its commands for separate machines are those of the
operations page, which is carried out as a whole.
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
from tests.support.page import fences, with_arguments
from tests.support.processes import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
RUN_IN_THE_TEXT = re.findall(r"`(secure-fl run --[^`]+)`", README)
NEW_RECIPE = "secure-fl study new trial.toml --recipe hospital"
_SMALL = ["--nodes", "3", "--rounds", "1"]


def section(name: str) -> str:
    """One section's text."""
    return README.partition(f"## {name}\n")[2].partition("\n## ")[0]


def commands(name: str) -> list[list[str]]:
    """The commands of a section's fences, without their comments."""
    return [shlex.split(line) for line in lines(section(name))]


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
    inline = [shlex.split(line)[2:] for line in RUN_IN_THE_TEXT]
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


def lines(text: str) -> list[str]:
    """The command lines of a text's fences in any shell: whole, without comments."""
    blocks = re.findall(r"^```(\w*).*\n((?:.*\n)*?)^```$", text, re.MULTILINE)
    written = "".join(block for language, block in blocks if language in {"", "sh"}).replace("\\\n", "").splitlines()
    return [" ".join(line.split()) for raw in written if (line := re.sub(r"(^|\s)#.*", "", raw)).strip()]


def test_the_commands_for_separate_machines_are_those_of_the_operations_page() -> None:
    """Line by line and in its order; nothing that leads to the first study is left out."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    carried_out = [line for fence in fences(page) for line in fence.text.splitlines()]
    beginning = page.partition("## 1. From nothing to a study")[2].partition("\n## ")[0]
    wanted = lines(section("On separate machines"))
    first = [line for fence in fences(beginning) for line in fence.text.splitlines()]
    assert wanted[: len(first)] == first
    counted = sum(len(fence.text.splitlines()) * len(fence.sites) for fence in fences(beginning))
    assert f"It takes {counted} commands" in README
    assert wanted[len(first) :] == [line for line in carried_out if re.match("secure-fl study (export|report) ", line)]


def test_no_command_is_left_out() -> None:
    """Each line of a fence, and each command with arguments in the text, is carried out above or on another page."""
    scripts = ["./scripts/run", "./scripts/test"]  # What installs, and what runs this test.
    script = [line for line in lines(README) if line.startswith("./scripts/run --")]
    here = [*lines(section("Five lines to a result")), *lines(section("On separate machines"))]
    assert sorted(lines(README)) == sorted([*scripts, *script, *here])
    tasks = lines((ROOT / "docs" / "tasks.md").read_text(encoding="utf-8"))
    for command in with_arguments(README):
        assert command in [*RUN_IN_THE_TEXT, NEW_RECIPE, *tasks], command


def test_the_recipe_in_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, shlex.split(NEW_RECIPE)[1:])
    assert done.exit_code == 0, done.output
