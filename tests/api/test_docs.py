"""The examples of docs/python.md and docs/strategies/own.md do what they say."""

from __future__ import annotations

import inspect
import re
from functools import partial
from pathlib import Path
from typing import Any

from secure_fl import Study, strategies
from secure_fl.api.simulate import simulate
from secure_fl.strategies.base import Strategy
from secure_fl.study.shorthand import WORDS

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_studies_of_the_page_are_studies() -> None:
    lines = [line for line in blocks("python.md")[1].splitlines() if line.startswith("Study.of")]
    first, second, third = (eval(line, {"Study": Study}) for line in lines)  # noqa: S307
    assert (first.study.rounds, first.simulation.nodes, first.protection.kind) == (5, 5, "masked")
    assert (second.strategy.settings, second.simulation.alpha, second.simulation.partition) == (
        {"epochs": 2}, 0.3, "dirichlet",
    )  # fmt: skip
    assert third.strategy.settings == {"mu": 0.1}
    changed = first.changed(strategy="fedasa", rounds=3)
    assert (changed.strategy.name, changed.study.rounds, changed.simulation.nodes) == ("fedasa", 3, 5)


def test_the_policy_of_the_page_goes_with_its_study(tmp_path: Path) -> None:
    *_, study, call = blocks("python.md")[2].splitlines()
    names: dict[str, Any] = {"Study": Study, "simulate": partial(simulate, out=tmp_path / "run", progress=False)}
    exec(f"{study}\n{call}", names)  # noqa: S102
    assert names["run"].summary["rounds"] == 1
    assert all(site["epsilon"] <= 3.0 for site in names["run"].summary["nodes"])


def test_the_page_lists_every_word_and_every_argument() -> None:
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    assert f"The words are `{' '.join(WORDS)}`" in page
    given = set(inspect.signature(simulate).parameters) - {"settings"}
    table = page.partition("| argument | |")[2].partition("\n\n")[0]
    assert {word for word in re.findall(r"[a-z]+", table) if word in given} == given


def test_the_strategy_of_the_page_is_one(monkeypatch: Any) -> None:
    monkeypatch.setattr(strategies, "_HERE", {})
    names: dict[str, Any] = {"__name__": __name__}
    exec(blocks("strategies/own.md")[0], names)  # noqa: S102
    assert issubclass(names["KeepHead"], Strategy)
    assert Study.of(strategy=names["KeepHead"]).make_strategy().explain()[1] == "Stays: the data and the head."
    notebook = (DOCS / "notebooks" / "2_own_data_and_strategy.ipynb").read_text(encoding="utf-8")
    assert "class KeepHead(Strategy)" in notebook
