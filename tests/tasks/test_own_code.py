"""Mistakes in a task of one's own are said to be the task's, with the method: by `run`, `task check` and `simulate`."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from secure_fl import simulate
from secure_fl.cli import app
from secure_fl.errors import SecureFLError, SettingsError
from secure_fl.tasks import in_process
from secure_fl.tasks.code_digest import task_code

RIGHT = """
from secure_fl.tasks.metrics import Auc
from secure_fl.tasks.digits import Digits
from secure_fl.tasks.base import LocalData, Source, Task


class Wards(Task):
    kind = "classification"
    Settings = Digits.Settings

    def model(self):
        return Digits(self.settings).model()

    def load(self, source):
        return Digits(self.settings).load(source)
"""

# What the class says otherwise, what is said of it, and whether the task's own error is behind that.
MISTAKES = {
    "load raises": ("def load(self, source): raise KeyError('age')", "`load` fails: KeyError: 'age', in own.py", True),
    "load returns a tuple": ("def load(self, source): return 1, 2", "`load` returns an object of type tuple", False),
    "load returns nothing": ("def load(self, source): pass", "`load` returns nothing", False),
    "model raises": ("def model(self): return [][0]", "`model` fails: IndexError: list index out of range", True),
    "model returns nothing": ("def model(self): pass", "`model` returns nothing, and no torch module", False),
    "blocks raises": ("def blocks(self, model): return model.wards", "`blocks` fails: AttributeError", True),
    "blocks names layers": (
        "def blocks(self, model): return {'a': 'head'}",
        "`blocks` returns 'a': an object of",
        False,
    ),
    "head raises": ("def head(self, names): return names[99],", "`head` fails: IndexError", True),
    "__init__ raises": ("def __init__(self, settings): raise OSError('no')", "`__init__` fails: OSError: no", True),
    "no kind": ("kind = None", "does not say of which kind it is", False),
    "another kind": ("kind = 'ranking'", "kind is 'ranking'", False),
    "another preprocessing": ("preprocessing = 'scaled'", "preprocessing is 'scaled'", False),
    "a metric's class": ("metrics = Auc", "and no tuple of metrics", False),
    "one metric": ("metrics = Auc()", "and no tuple of metrics", False),
    "names of metrics": ("metrics = ['auc']", "`metrics` has 'auc' in it, which is no metric", False),
    "classes of metrics": ("metrics = (Auc,)", "in it, which is no metric", False),
    "no settings": ("Settings = dict", "Settings is <class 'dict'>", False),
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the task is written; the command is given in its folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(in_process, "_here", {})
    yield tmp_path / "own.py"
    sys.modules.pop("own", None)


def call(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    if isinstance(done.exception, SecureFLError):
        return done.exception.exit_code, f"{done.exception.message} → {done.exception.hint}"
    return (70 if done.exception and not isinstance(done.exception, SystemExit) else done.exit_code), done.output


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_said_to_be_the_tasks(module: Path, mistake: str) -> None:
    written, said, raised = MISTAKES[mistake]
    module.write_text(f"{RIGHT}\n    {written}\n")
    code, text = call("run", "--task", "own:Wards", "--engine", "threads", "--nodes", "3", "--rounds", "1")
    assert (code, said in text, "\n" in text) == (3, True, False), text
    code, text = call("task", "check", "own:Wards")
    assert (code, said in " ".join(text.split()), "mistake in secure-fl" in text) == (3, True, False), text
    own: Any = __import__("own").Wards
    with pytest.raises(SettingsError) as caught:
        simulate(task=own, nodes=3, rounds=1, progress=False)
    assert said in caught.value.message
    assert isinstance(caught.value.__cause__, Exception) == raised
    assert caught.value.__notes__ == [f"→ {caught.value.hint}"]
    assert "task check" not in caught.value.hint  # It was given as a class: the command may not find it.
    assert not (module.parent / "runs").exists()


def test_the_task_without_a_mistake_runs(module: Path) -> None:
    module.write_text(RIGHT)
    assert call("task", "check", "own:Wards")[0] == 0
    assert call("run", "--task", "own:Wards", "--engine", "threads", "--nodes", "3", "--rounds", "1")[0] == 0


def test_of_a_single_file_the_lead_sees_the_digest_that_sites_are_shown(module: Path) -> None:
    module.write_text(RIGHT)
    digest = hashlib.sha256(module.read_bytes()).hexdigest()
    text = call("task", "check", "own:Wards")[1]
    assert f"the file with sha256:{digest}" in text  # as `node approve` says it: test_task_files.py
    assert f"source sha256:{task_code(__import__('own').Wards).digest}" in text  # where the module is on the path
    assert "the file with" not in call("task", "check", "digits")[1]


def test_a_task_that_other_commands_find_is_to_be_checked(module: Path) -> None:
    module.write_text(f"{RIGHT}\n    {MISTAKES['load raises'][0]}\n")
    assert "`secure-fl task check own:Wards` says where it fails" in call("run", "--task", "own:Wards")[1]
