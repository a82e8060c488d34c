"""The notebooks in docs/notebooks do what they say.

The first one is carried out by Jupyter itself, in a kernel. The others are carried out cell by cell in this process,
while an event loop is running, since each kernel takes many seconds to start; `-m slow` gives them to Jupyter, too.
The first and the third are carried out without pandas, the second with it.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from secure_fl import strategies

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
FIRST, *OTHERS = NOTEBOOKS


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def cells(path: Path) -> list[str]:
    return [cell.source for cell in read(path).cells if cell.cell_type == "code"]


def test_there_are_three_without_output() -> None:
    # Output would be of somebody's machine, and of some earlier version.
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        book = read(path)
        nbformat.validate(book)
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in book.cells)


@pytest.mark.parametrize(
    ("path", "pandas"),
    [(FIRST, False), *(pytest.param(path, True, marks=pytest.mark.slow) for path in NOTEBOOKS)],
    ids=lambda value: value.stem if isinstance(value, Path) else "with pandas" if value else "without pandas",
)
def test_jupyter_carries_it_out(path: Path, pandas: bool, tmp_path: Path) -> None:
    if not pandas:
        (tmp_path / "pandas.py").write_text("raise ImportError")  # found first: a kernel looks where it runs
    book = read(path)
    NotebookClient(book, timeout=170, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = "".join(str(output) for cell in book.cells for output in cell.get("outputs", []))
    if path == FIRST:
        assert "██████████████████████████████ 3/3" in shown  # the progress of the cell, to its end
        assert "<table>" in shown
        assert ("dataframe" in shown) == pandas
        assert "planned" in shown  # of the ledger's table
        assert list(tmp_path.glob("runs/first/nodes/*/ledger.jsonl"))


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_its_cells_work_where_a_loop_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if path.stem.startswith("3"):
        monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr(strategies, "_HERE", {})
    names: dict[str, Any] = {"__name__": "__main__"}

    async def notebook() -> None:
        for number, cell in enumerate(cells(path)):
            code = compile(cell, f"{path.name}, cell {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            awaited = eval(code, names)  # noqa: S307
            if inspect.isawaitable(awaited):
                await awaited

    asyncio.run(notebook())
    if path.stem.startswith("2"):
        assert names["own"].summary["mean_accuracy"] > 0.5
        assert list(names["own"].models) == ["site-01", "site-02", "site-03"]
    else:
        assert all(0 < node["epsilon"] <= 3.0 for node in names["private"].summary["nodes"])
        assert "runs/refused" not in {str(path) for path in tmp_path.glob("runs/*/summary.json")}
