"""The examples in the documentation are the ones that are tested."""

from __future__ import annotations

import runpy
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.numpy import save_file

from secure_fl.errors import DataError
from secure_fl.results import traces
from secure_fl.study.settings import Study
from secure_fl.tasks import create
from secure_fl.tasks.base import PartitionSettings, Share, Source, Task
from secure_fl.tasks.model_blocks import initial_blocks, layout_of, read_blocks
from tests.protect.rosters import roster
from tests.tasks.learning import train

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.syspath_prepend(DOCS / "examples")
    return create("csv_regression:CsvRegression", {"features": ["age", "weight"], "target": "pressure"})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    age, weight = rng.uniform(20, 90, 300), rng.uniform(45, 120, 300)
    pressure = 0.05 * age - 0.02 * weight + rng.normal(0, 0.1, 300)
    path = tmp_path / "table.csv"
    columns = np.column_stack([pressure, np.arange(300), age, weight])
    np.savetxt(path, columns, delimiter=",", header="pressure,id,age,weight", comments="")
    return path


def test_the_page_shows_the_tested_file() -> None:
    code = (DOCS / "examples" / "csv_regression.py").read_text()
    assert f"```python\n{code}```\n" in (DOCS / "tasks.md").read_text()


def test_it_learns(task: Task, table: Path) -> None:
    data = task.load(Source(path=table, format="csv"))
    metrics = train(task, data, epochs=60, learning_rate=1e-2)
    assert metrics.mse is not None
    assert metrics.mse < 0.1 * float(data.test.targets.var())


def test_it_takes_part_in_simulations(task: Task, table: Path) -> None:
    parts = [
        task.load(Source(path=table, share=Share(index=i, of=3, seed=0, partition=PartitionSettings())))
        for i in range(3)
    ]
    assert [len(part.train) + len(part.test) for part in parts] == [100, 100, 100]


def test_a_row_is_scaled_by_the_studys_ranges_and_nothing_else(monkeypatch: pytest.MonkeyPatch, table: Path) -> None:
    monkeypatch.syspath_prepend(DOCS / "examples")
    settings = {"features": ["age", "weight"], "target": "pressure", "ranges": {"age": [20, 90]}}
    data = create("csv_regression:CsvRegression", settings).load(Source(path=table))
    rows = torch.cat([data.train.inputs, data.test.inputs])
    assert rows[:, 0].abs().max() <= 1
    assert rows[:, 0].min() < -0.9
    assert 45 <= float(rows[:, 1].min()) <= float(rows[:, 1].max()) <= 120
    less = table.with_name("less.csv")
    less.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    without = create("csv_regression:CsvRegression", settings).load(Source(path=less))
    known = {tuple(row) for row in rows.tolist()}
    assert {tuple(row) for row in torch.cat([without.train.inputs, without.test.inputs]).tolist()} < known


def test_a_column_may_say_whose_row_it_is(monkeypatch: pytest.MonkeyPatch, table: Path) -> None:
    monkeypatch.syspath_prepend(DOCS / "examples")
    header, *lines = table.read_text().splitlines()
    with_patients = [f"{header},patient", *(f"{line},p{number // 3}" for number, line in enumerate(lines))]
    table.write_text("\n".join(with_patients) + "\n")
    settings = {"features": ["age"], "target": "pressure", "groups": "patient"}
    data = create("csv_regression:CsvRegression", settings).load(Source(path=table))
    assert data.train.groups is not None
    assert data.test.groups is not None
    sides = set(data.train.groups.tolist()), set(data.test.groups.tolist())
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 100


@pytest.mark.parametrize("text", ["age,weight\n1,2\n", "age,weight,pressure\n1,2,high\n", "age,weight,pressure\n1\n"])
def test_a_table_that_does_not_fit_is_refused(task: Task, tmp_path: Path, text: str) -> None:
    (tmp_path / "wrong.csv").write_text(text)
    with pytest.raises(DataError, match="expected CSV with numbers in age, weight, pressure"):
        task.load(Source(path=tmp_path / "wrong.csv"))


def test_no_table_is_refused(task: Task, tmp_path: Path) -> None:
    for source in (Source(), Source(path=tmp_path / "absent.csv")):
        with pytest.raises(DataError):
            task.load(source)
    (tmp_path / "empty.csv").write_text("age,weight,pressure\n")
    with pytest.raises(DataError, match="0 rows of 0 units are too few"):
        task.load(Source(path=tmp_path / "empty.csv"))


def test_the_decoder_of_a_run_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Study.parse({"task": {"name": "sine", "width": 16}, "strategy": {"name": "pflda"}})
    (tmp_path / "study.toml").write_text(tomli_w.dumps(study.to_table()))
    sine = create("sine", {"width": 16})
    torch.manual_seed(0)
    model = sine.model()
    decoder, phi = model.get_submodule("decoder"), torch.linspace(-0.5, 0.5, 100)[:, None]
    optimiser = torch.optim.Adam(decoder.parameters(), lr=1e-2)
    for _ in range(200):
        optimiser.zero_grad()
        sine.loss(decoder(phi), torch.sin(2 * torch.pi * (phi + 0.2))).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    kept = tmp_path / "coordinator" / "state" / "studies" / "x" / "checkpoints"
    kept.mkdir(parents=True)
    save_file(
        layout_of(sine, model).select(("decoder",)).tensors(read_blocks(sine, model)), kept / "000001.safetensors"
    )
    out = tmp_path / "decoder.svg"
    monkeypatch.setattr(sys, "argv", ["sine_decoder.py", str(tmp_path), str(out)])
    runpy.run_path(str(DOCS / "examples" / "sine_decoder.py"), run_name="__main__")
    assert capsys.readouterr().out in {
        f"the nearest sine explains {99 + part / 10}% of the decoder\n" for part in range(11)
    }
    paths = [path for path in ET.parse(out).iter("{http://www.w3.org/2000/svg}path") if path.get("class") != "leader"]  # noqa: S314
    assert [path.get("d", "").count("L") for path in paths] == [200, 200]


def test_whom_sites_selected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = roster(6)
    study = {
        "study": {"rounds": 2, "roster": sites},
        "task": {"name": "digits"},
        "simulation": {"nodes": 6, "partition": "rotated", "domains": 2},
    }
    (tmp_path / "study.toml").write_text(tomli_w.dumps(study))
    first, second, third = sorted(sites)[:3]
    for number, asked in ((1, {first: 32, third: 32}), (2, {first: 32, second: 16, third: 16})):
        traces.note(tmp_path / "nodes" / first / "rows.jsonl", number, {"asked": asked})
    monkeypatch.setattr(sys, "argv", ["selected_peers.py", str(tmp_path)])
    runpy.run_path(str(DOCS / "examples" / "selected_peers.py"), run_name="__main__")
    told = capsys.readouterr().out
    # Three peers in twelve rows, of which two are turned as the site is; by chance two of five would be.
    assert "peers per site and round 0.250, same domain 0.667, same domain, at random 0.400" in told
    assert "classes in common 1.000" in told


def test_how_values_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sites = roster(3)
    study = {"study": {"rounds": 2, "roster": sites}, "task": {"name": "digits"}}
    layout, start = initial_blocks(create("digits", {}), 0)
    for run, by in (("shorter", 0.9), ("longer", 1.0)):
        (tmp_path / run).mkdir()
        (tmp_path / run / "study.toml").write_text(tomli_w.dumps(study))
        for site in sites:
            folder = tmp_path / run / "nodes" / site
            folder.mkdir(parents=True)
            moved = {name: vector + np.float32(by) for name, vector in start.items()}
            save_file(layout.tensors(moved), folder / "model.safetensors")
    monkeypatch.setattr(sys, "argv", ["how_values_change.py", str(tmp_path / "shorter"), str(tmp_path / "longer")])
    runpy.run_path(str(DOCS / "examples" / "how_values_change.py"), run_name="__main__")
    assert capsys.readouterr().out == "mean 0.1000, largest 0.1000\n"
