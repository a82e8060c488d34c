"""What to do stands below a traceback, whichever part of the Python API raised the error."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secure_fl import Operator, Run, Study, load_model, simulate
from secure_fl.errors import SecureFLError, SettingsError, StorageError
from secure_fl.study.shorthand import WORDS
from secure_fl.tasks.base import LocalData, Source
from secure_fl.tasks.breast_cancer import BreastCancer

LEAD = object.__new__(Operator)  # whose file was read; nothing here gets as far as connecting
FAILING: dict[str, Callable[[Path], Any]] = {
    "an operator's file": lambda _: Operator("nope.toml"),
    "a study's file": lambda _: LEAD.submit("nope.toml"),
    "no roster": lambda _: LEAD.submit(Study.of()),
    "check": lambda _: Study.of(strategy="pfedme", privacy="dp-sgd", epsilon=1.0).check(),
    "of": lambda _: Study.of(rouns=3),
    "a model's file": lambda folder: load_model(folder / "report.html", "digits"),
    "a run's folder": Run.open,
    "a file": lambda _: Study.read("nope.toml"),
    "changed": lambda _: Study.of().changed(rouns=3),
    "completed": lambda _: Study.of(task="digit").completed(),
    "simulate": lambda _: simulate(privacy="dp-sgd", progress=False),
}


@pytest.mark.parametrize("what", FAILING)
def test_a_hint_stands_below_the_traceback(tmp_path: Path, what: str) -> None:
    (tmp_path / "report.html").write_text("<!doctype html>")
    with pytest.raises(SecureFLError) as caught:
        FAILING[what](tmp_path)
    assert caught.value.hint
    assert "".join(traceback.format_exception(caught.value)).rstrip().endswith(f"→ {caught.value.hint}")


def test_a_file_that_is_no_model_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<!doctype html>")
    with pytest.raises(SettingsError, match="is not a safetensors file") as caught:
        load_model(tmp_path / "report.html", "digits")
    assert ".safetensors" in caught.value.hint
    assert "free space" not in caught.value.hint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"study": 3}, "a study is a Study, the path of its file, or a mapping, not 3"),
        ({"study": ["a"]}, "a study is a Study"),
        ({"settings": 3}, "settings of a study are a mapping"),
        ({"policy": 3}, "policy is a mapping"),
        ({"privacy": "dp"}, "did you mean 'dp-sgd'"),
        ({"partition": "dirichle"}, "did you mean 'dirichlet'"),
        ({"metrics": "all"}, "metrics.share: 'all' is not possible"),
    ],
)
def test_wrong_arguments_are_settings_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        simulate(**arguments, progress=False)


def test_every_word_of_a_study_is_a_keyword(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Study] = []

    def look(study: Study, **_: Any) -> None:
        seen.append(study)
        raise StorageError("enough")

    monkeypatch.setattr("secure_fl.simulation.run.run", look)
    words: dict[str, Any] = {
        "name": "mine", "rounds": 1, "seed": 2, "task": "breast-cancer", "strategy": "fedprox", "protection": "masked",
        "privacy": "dp-sgd", "epsilon": 2.0, "delta": 1e-5, "metrics": "aggregate", "nodes": 4,
        "partition": "dirichlet",
    }  # fmt: skip
    assert words.keys() == WORDS.keys()
    with pytest.raises(StorageError, match="enough"):
        simulate(**words, out=tmp_path / "out", progress=False)
    assert seen[0].id == Study.of(**words).completed().id
    assert seen[0].simulation == Study.of(**words).simulation


def test_the_reason_why_a_simulation_was_given_up_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(SecureFLError) as caught:
        simulate(task=Missing, nodes=3, rounds=1, out=tmp_path / "out", progress=False)
    assert caught.value.message.count("site-02 says NotReady: 1 of ") == 1
    assert "→" not in caught.value.message
    assert caught.value.hint.startswith("repair or leave out those rows")
    assert "the node tries again" not in caught.value.hint


class Missing(BreastCancer):
    """One number of the second site is missing, where its first rows do not show it."""

    def load(self, source: Source) -> LocalData:
        """As ever, but for that one."""
        data = super().load(source)
        if source.share is not None and source.share.index == 1:
            data.train.inputs[-1, 2] = math.nan
        return data
