"""`secure-fl node mock`: a mock has the schema of the data, and nothing of their values."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from node import mock
from node.mock_schema import Schema, read_csv_schema, read_npz_schema
from secure_fl.errors import DataError
from secure_fl.settings import read_toml
from secure_fl.simulation.workspace import prepare
from secure_fl.study.settings import Study
from secure_fl.tasks.base import Source
from secure_fl.tasks.breast_cancer import BreastCancer
from secure_fl.tasks.digits import Digits

NAMES = "age,weight,ward,died\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A node's file with data sets of several forms."""
    made = prepare(tmp_path / "run", Study.parse({"simulation": {"nodes": 3}}), policy={})
    made.point_nodes_at(1)
    path = made.node_file("site-01")
    table = read_toml(path)
    table["datasets"] = {
        "ward": {"path": "ward.npz"},
        "table": {"path": "table.csv"},
        "scans": {"path": "scans"},
        "built-in": {},
        "other": {"path": "data.parquet"},
    }
    path.write_bytes(tomli_w.dumps(table).encode())
    (path.parent / "scans").mkdir()
    (path.parent / "data.parquet").write_bytes(b"")
    return path


def npz(path: Path, seed: int, rows: int) -> Path:
    """Patients, all of them others than under another seed: in values, number, and how long their names are."""
    rng = np.random.default_rng(seed)
    x = rng.normal(loc=seed, scale=seed, size=(rows, 30)).astype(np.float32)
    names = np.array([f"{'x' * seed}-{number}" for number in range(rows)])
    np.savez(path, x=x, y=rng.integers(0, 2, rows), groups=names, x_test=x[: rows // 2], cut=np.float64(seed))
    return path


def table(path: Path, seed: int, rows: int) -> Path:
    rng = np.random.default_rng(seed)
    lines = [f"{rng.integers(20, 90)},{rng.normal(60, 9):.2f},w{seed}-{n},{n % 2}\n" for n in range(rows)]
    path.write_text(NAMES + "".join(lines))
    return path


def made(schema: Schema, **options: Any) -> bytes:
    return schema.encode(schema.mock(**{"rows": 50, "classes": 2, "seed": 1, **options}))


# --- attack: what of the data is in the mock? ---------------------------------------------------------------------


def test_two_data_sets_that_share_no_value_have_the_same_mock(tmp_path: Path) -> None:
    one, other = npz(tmp_path / "one.npz", 2, 40), npz(tmp_path / "other.npz", 7, 90)
    assert made(read_npz_schema(one)) == made(read_npz_schema(other))
    first, second = table(tmp_path / "one.csv", 2, 40), table(tmp_path / "other.csv", 7, 90)
    assert made(read_csv_schema(first, header=True)) == made(read_csv_schema(second, header=True))
    # The same attack succeeds where values are looked at: ranges are asked for by name.
    assert made(read_npz_schema(one).with_ranges(one)) != made(read_npz_schema(other).with_ranges(other))
    assert made(read_csv_schema(first, header=True).with_ranges(first)) != made(
        read_csv_schema(second, header=True).with_ranges(second)
    )


def test_values_of_an_archive_are_not_even_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = npz(tmp_path / "one.npz", 2, 40)

    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("somebody read the values")

    monkeypatch.setattr(np, "load", read)
    monkeypatch.setattr(np.lib.format, "read_array", read)
    made(read_npz_schema(path))
    with pytest.raises(AssertionError):
        read_npz_schema(path).with_ranges(path)


def test_a_record_is_not_taken_for_column_names(tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    path.write_text("63,Miller,145\n67,Jones,160\n41,Smith,130\n")
    with pytest.raises(DataError, match="it is a record, and no header"):
        read_csv_schema(path, header=True)
    mocked = made(read_csv_schema(path, header=False)).decode()
    assert not any(word in mocked for word in ("Miller", "Jones", "63,", "145"))


@pytest.mark.parametrize("separator", [";", "\t", "|", " ; "])
@pytest.mark.parametrize("record", ["63 Miller m", "Miller m 145", 'Miller "145" m', "Miller 36,6 m"])
def test_a_record_with_other_separators_is_not_taken_for_column_names(
    tmp_path: Path, separator: str, record: str
) -> None:
    path = tmp_path / "records.csv"
    path.write_text((record.replace(" ", separator) + "\n") * 3)
    with pytest.raises(DataError, match="it is a record, and no header"):
        read_csv_schema(path, header=True)


@pytest.mark.parametrize("record", ["Smith:64:1.3", "Smith^64^m", "Smith~64", "Smith 64"])
def test_a_record_in_one_cell_is_not_a_column_name(tmp_path: Path, record: str) -> None:
    path = tmp_path / "records.csv"
    path.write_text((record + "\n") * 3)
    with pytest.raises(DataError, match="it is a record, and no header"):
        read_csv_schema(path, header=True)


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("age;weight\n63;145\n", True),
        ("age\tweight\n63\t145\n", True),
        ("Miller|m\nJones|f\n", False),
        ("Export of the ward\nage;weight\n63;145\n", True),
    ],
)
def test_columns_with_other_separators_are_not_one_column(tmp_path: Path, text: str, header: bool) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(DataError, match="its columns seem to be separated by") as caught:
        read_csv_schema(path, header=header)
    assert "separated by commas" in str(caught.value.hint)


def test_a_space_separates_only_where_there_is_one_column(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("63 Miller m\n67 Jones m\n")
    with pytest.raises(DataError, match="it is a record, and no header"):
        read_csv_schema(path, header=True)
    path.write_text("notes,weight on day 1\nslept well; ate,145\n")
    assert [column.name for column in read_csv_schema(path, header=True).columns] == ["notes", "weight on day 1"]


def test_a_first_record_with_semicolons_is_not_written(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site.parent / "table.csv").write_text("63;Miller;145\n67;Jones;160\n")
    for header in ("--header", "--no-header"):
        out = site.parent / "mock.csv"
        assert mock.main([str(site), "table", "--out", str(out), header, "--yes"]) == 3
        assert not out.exists()
        said = capsys.readouterr()
        assert "Miller" not in said.out + said.err


@pytest.mark.parametrize("name", ["WARD.CSV", "ward.csv.gz", "ward.CSV.GZ", "WARD.NPZ"])
def test_endings_in_capitals_and_compressed_tables(site: Path, name: str) -> None:
    path, plain = site.parent / name, table(site.parent / "plain.csv", 2, 40)
    if name.endswith("NPZ"):
        path.write_bytes(npz(site.parent / "plain.npz", 2, 40).read_bytes())
    else:
        path.write_bytes(gzip.compress(plain.read_bytes()) if "gz" in name.lower() else plain.read_bytes())
    settings = read_toml(site)
    settings["datasets"]["ward"] = {"path": name}
    site.write_bytes(tomli_w.dumps(settings).encode())
    out = site.parent / f"mock-{name.lower()}"
    header = [] if name.endswith("NPZ") else ["--header"]
    assert mock.main([str(site), "ward", "--out", str(out), *header, "--yes"]) == 0
    if name.endswith("NPZ"):
        assert read_npz_schema(out) == read_npz_schema(path)
    else:
        assert read_csv_schema(out, header=True) == read_csv_schema(plain, header=True)


def test_one_odd_record_does_not_change_a_mock(tmp_path: Path) -> None:
    path = table(tmp_path / "one.csv", 2, 40)
    before = made(read_csv_schema(path, header=True))
    with path.open("a") as file:
        file.write("unknown,?,7,1.5\n")
    assert made(read_csv_schema(path, header=True)) == before


# --- what it is good for ------------------------------------------------------------------------------------------


def test_an_array_whose_shape_tells_how_many_records_there_are_is_named(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Distances of all pairs: one row of them is as long as there are records. Or records are columns."""
    x, y = np.zeros((37, 30)), np.zeros(37, np.int64)
    across = {"distances": x.T, "y": y[None]}
    pairs = {"x": x, "y": y, "distances": np.zeros((37, 37))}
    for tells, arrays in (("pairs", pairs), ("columns", across), ("alone", {"distances": x.T}), ("", {"x": x, "y": y})):
        np.savez(site.parent / "ward.npz", **arrays)
        out = site.parent / f"mock-{tells}.npz"
        assert mock.main([str(site), "ward", "--out", str(out), "--yes"]) == 0
        said = capsys.readouterr().out
        assert ("REVEALING: perhaps how many rows there are, by the shape of distances" in said) == bool(tells)
        assert ("how many rows there are, if" not in said) == bool(tells)
        with np.load(out) as made_up:
            assert any(37 in made_up[name].shape for name in made_up) == bool(tells)


def test_a_task_in_a_file_that_the_site_listed_tries_the_mock(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site.parent / "ward_task.py").write_text("from secure_fl.tasks.breast_cancer import BreastCancer as Ward\n")
    table = read_toml(site)
    table["policy"]["tasks"] = ["ward_task.py:Ward"]
    site.write_bytes(tomli_w.dumps(table).encode())
    np.savez(site.parent / "ward.npz", x=np.zeros((40, 30), np.float32), y=np.arange(40) % 2)
    command = [str(site), "ward", "--yes", "--out"]
    assert mock.main([*command, str(site.parent / "mock.npz"), "--task", "ward_task:Ward"]) == 0
    assert "task 'ward_task:Ward' reads it" in capsys.readouterr().out
    assert mock.main([*command, str(site.parent / "mock-2.npz"), "--task", "ward_task:Other"]) == 7


def test_a_mock_has_the_schema_of_the_data(tmp_path: Path) -> None:
    schema = read_npz_schema(npz(tmp_path / "one.npz", 2, 40))
    with np.load(io.BytesIO(made(schema, rows=80)), allow_pickle=False) as found:
        assert {name: (found[name].shape, found[name].dtype.kind) for name in found} == {
            "cut": ((), "f"),
            "groups": ((80,), "U"),
            "x": ((80, 30), "f"),
            "x_test": ((20, 30), "f"),
            "y": ((80,), "i"),
        }
    again = tmp_path / "mock.csv"
    again.write_bytes(made(read_csv_schema(table(tmp_path / "one.csv", 2, 40), header=True)))
    assert again.read_text().startswith(NAMES)
    assert [column.kind for column in read_csv_schema(again, header=True).columns] == [
        "whole", "decimal", "text", "whole",
    ]  # fmt: skip


def test_a_mock_is_shown_before_it_is_written_and_the_task_reads_it(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    np.savez(site.parent / "ward.npz", x=rng.normal(size=(40, 30)), y=rng.integers(0, 2, 40))
    out = site.parent / "mock.npz"
    command = [str(site), "ward", "--out", str(out), "--task", "breast-cancer"]
    for answer, code in (("n\n", 0), ("", 2)):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert mock.main(command) == code
        assert not out.exists()
    said = capsys.readouterr().out
    assert "What it reveals:" in said
    assert "the names of the arrays, their types and the shape of one row" in said
    assert "task 'breast-cancer' reads it" in said
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert mock.main(command) == 0
    assert len(BreastCancer(BreastCancer.Settings()).load(Source(path=out)).train) > 50
    assert mock.main([*command, "--yes"]) == 2  # It is there already.
    assert "is there already" in capsys.readouterr().err


def test_how_many_classes_there_are_comes_from_the_task(site: Path) -> None:
    np.savez(site.parent / "ward.npz", x=np.zeros((30, 8, 8), np.float32), y=np.zeros(30, np.int64))
    out = site.parent / "mock.npz"
    assert mock.main([str(site), "ward", "--out", str(out), "--task", "digits", "--yes"]) == 0
    data = Digits(Digits.Settings()).load(Source(path=out))
    assert set(data.train.targets.tolist()) == set(range(10))  # The data have one class; the task has ten.


@pytest.mark.parametrize(
    ("command", "says", "code"),
    [
        (["scans", "--out", "mock"], "is a folder", 3),
        (["built-in", "--out", "mock.npz"], "come with the task", 3),
        (["nothing", "--out", "mock.npz"], "there is no [datasets.nothing] here", 2),
        (["other", "--out", "mock.parquet"], ".npz and .csv files only", 3),
        (["table", "--out", "mock.csv"], "or is it a record?", 2),
        (["table", "--out", "mock.npz"], "the data are a .csv file", 2),
        (["ward", "--out", "ward.npz"], "is there already", 2),
        (["table", "--out", "mock.csv", "--header", "--task", "evil:Task"], "not allowed by [policy] tasks", 7),
    ],
)
def test_what_cannot_be_mocked_is_refused(
    site: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    says: str,
    code: int,
) -> None:
    npz(site.parent / "ward.npz", 2, 40)
    table(site.parent / "table.csv", 2, 40)
    monkeypatch.chdir(site.parent)
    before = sorted(site.parent.iterdir())
    assert mock.main([str(site), *command, "--yes"]) == code
    assert says in capsys.readouterr().err
    assert sorted(site.parent.iterdir()) == before


def test_ranges_are_named_as_revealing(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(site.parent / "ward.npz", x=np.array([[1.0, 50], [3, 70], [2, np.nan]]), y=np.array([4, 9, 5]))
    out = site.parent / "mock.npz"
    assert mock.main([str(site), "ward", "--out", str(out), "--ranges", "--yes"]) == 0
    assert "REVEALING (--ranges)" in capsys.readouterr().out
    with np.load(out) as found:
        assert found["x"][:, 0].min() >= 1
        assert found["x"][:, 0].max() <= 3
        assert found["x"][:, 1].min() >= 50
        assert set(found["y"].tolist()) == {4, 5, 6, 7, 8, 9}
