"""`secure-fl task new` writes a task that works, and `task check` finds what would keep one from being federated."""

from __future__ import annotations

import json
import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from secure_fl.cli import app
from secure_fl.cli.task_check import TaskCheck
from secure_fl.errors import DataError, SecureFLError
from secure_fl.events import ignore
from secure_fl.operations.doctor import Finding, examine
from secure_fl.simulation.run import run
from secure_fl.study.settings import Study
from secure_fl.tasks.base import LocalData, Preprocessing, Source, Task
from secure_fl.tasks.metrics import Metric
from secure_fl.tasks.tables import read_rows

NAME = "made-for-a-test"
MODULE, CLASS = "made_for_a_test", "MadeForATest"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the command is given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir()
    monkeypatch.syspath_prepend(tmp_path / NAME)
    yield tmp_path / NAME
    for name in (MODULE, f"test_{MODULE}"):
        sys.modules.pop(name, None)


def call(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    if isinstance(done.exception, SecureFLError):
        return done.exception.exit_code, f"{done.exception.message} → {done.exception.hint}"
    return done.exit_code, done.output


def rows(folder: Path, kind: str = "classification") -> Path:
    """The new task, and rows for it as its tests make them up."""
    assert call("task", "new", NAME, "--kind", kind)[0] == 0
    runpy.run_path(str(folder / f"test_{MODULE}.py"))["made_up"](folder / "rows.csv")
    return folder / "rows.csv"


# --- a new one ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_new_task_passes_its_own_tests_and_every_check(folder: Path, tmp_path: Path, kind: str) -> None:
    data = rows(folder, kind)
    tests = runpy.run_path(str(folder / f"test_{MODULE}.py"))
    ran = [test(tmp_path) for name, test in tests.items() if name.startswith("test_")]
    assert len(ran) == 2
    code, said = call("task", "check", f"{MODULE}:{CLASS}", "--data", str(data), "--private", "--json")
    assert code == 0, said
    findings = json.loads(said)
    assert [check["state"] for check in findings["checks"]] == ["ok"] * 10
    assert ("auc" if kind == "classification" else "mae") in findings["checks"][8]["message"]


def test_a_new_task_is_at_most_thirty_lines_and_names_its_entry_point(folder: Path) -> None:
    rows(folder)
    assert len((folder / f"{MODULE}.py").read_text().splitlines()) <= 30
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["secure_fl.tasks"] == {NAME: f"{MODULE}:{CLASS}"}
    assert project["project"]["dependencies"] == []  # What pip would look for elsewhere, somebody else could offer.


def test_a_new_task_takes_part_in_a_study(folder: Path, tmp_path: Path) -> None:
    data = rows(folder)
    study = Study.parse(
        {
            "study": {"rounds": 2},
            "task": {"name": f"{MODULE}:{CLASS}"},
            "strategy": {"name": "fedavg", "learning_rate": 0.1},
            "simulation": {"nodes": 3, "path": str(data)},
        }
    )
    record, summary = run(study, engine="threads", folder=tmp_path / "run", policy={}, listener=ignore)
    assert record.outcome == "finished"
    assert summary["metrics"]["auc"] > 0.8


def test_what_to_do_next_names_the_folder_where_it_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "into beds.py, then\n  python -m pytest" in call("task", "new", "beds", "--out", ".")[1]
    assert "into cots/cots.py, then, in cots\n  python -m pytest" in call("task", "new", "cots")[1]


def test_nothing_is_overwritten_and_no_name_is_taken_that_means_something_else(folder: Path) -> None:
    rows(folder)
    text = (folder / f"{MODULE}.py").read_text()
    sys.path.remove(str(folder))
    code, said = call("task", "new", NAME)
    assert (code, "exists already" in said) == (6, True)
    assert (folder / f"{MODULE}.py").read_text() == text
    for name in ("json", "digits", "class", "Wards", "a b", "../up"):
        assert call("task", "new", name)[0] == 2, name
    assert call("task", "new", "other", "--kind", "clustering")[0] == 2
    assert [path.name for path in folder.parent.iterdir()] == [NAME]


# --- what a check finds ---------------------------------------------------------------------------------------------


class Good(Task):
    """Nothing is wrong with it, but that it has no data of its own."""

    kind = "classification"
    preprocessing: ClassVar[Preprocessing] = "none"

    def model(self) -> nn.Module:
        """Two blocks."""
        return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))

    def load(self, source: Source) -> LocalData:
        """No file can be read."""
        raise DataError("there is no file")


class NoBlocks(Good):
    """No layer has state."""

    def model(self) -> nn.Module:
        """One child, without parameters."""
        return nn.Sequential(nn.ReLU())


class Unsteady(Good):
    """Draws from another generator than the caller seeds."""

    def model(self) -> nn.Module:
        """Scaled at random."""
        made = super().model()
        with torch.no_grad():
            next(made.parameters()).mul_(float(np.random.default_rng().random()))
        return made


class Normed(Good):
    """Keeps statistics of batches."""

    def model(self) -> nn.Module:
        """With a batch norm."""
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


class Unsaid(Good):
    """Says nothing of how rows are prepared."""

    preprocessing: ClassVar[Preprocessing] = "unknown"


class _Remembering(nn.Linear):
    def get_extra_state(self) -> object:
        return {"seen": 3}

    def set_extra_state(self, state: object) -> None:
        pass


class Pickled(Good):
    """Its model keeps what is no tensor."""

    def model(self) -> nn.Module:
        """With extra state."""
        return nn.Sequential(_Remembering(3, 2))


class _Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.used(x))


class Idle(Good):
    """One block takes no part."""

    def model(self) -> nn.Module:
        """Two blocks, one of them idle."""
        return _Unused()


class Failing(Good):
    """Its loss raises what it likes."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """No loss."""
        raise ValueError("seven is not a loss")


class Overflowing(Good):
    """Its loss is no number."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """NaN."""
        return super().loss(outputs, targets) * float("nan")


class Pictures(Good):
    """Its first layer does not say how large a picture is."""

    def model(self) -> nn.Module:
        """A convolution."""
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))


class Double(Good):
    """In another precision."""

    def model(self) -> nn.Module:
        """float64."""
        return super().model().double()


class Sigmoid(Good):
    """Yes or no, as one output."""

    def model(self) -> nn.Module:
        """A probability."""
        return nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()))

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Binary cross-entropy."""
        return nn.functional.binary_cross_entropy(outputs[:, 0], (targets > 0).float())


class _Absent(Metric):
    @property
    def name(self) -> str:
        """As the study would call it."""
        return "absent"

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Of a column that there is not."""
        return outputs[:, 7].sum()


class Mismeasured(Good):
    """Its metric fails."""

    metrics = (_Absent(),)


def found(task: type[Task], *, private: bool = False) -> dict[str, Finding]:
    looked = TaskCheck(f"{__name__}:{task.__name__}", {}, Source(), private=private)
    return {finding.check: finding for finding in examine(looked.checks())}


def test_a_good_task_is_good() -> None:
    assert {finding.state for finding in found(Good, private=True).values()} == {"ok"}
    assert "made up" in found(Good)["data"].message


@pytest.mark.parametrize(
    ("task", "check", "state", "message", "fix"),
    [
        (NoBlocks, "model", "failed", "no block with state", "named children"),
        (Double, "model", "failed", "models travel as float32", "build the model in float32"),
        (Unsteady, "same start everywhere", "failed", "another model every time", "torch's global generator"),
        (Pickled, "plain numbers", "failed", "could only travel as a pickle", "settings"),
        (Normed, "batch statistics", "warning", "batch normalisation in 1", "GroupNorm"),
        (Normed, "differential privacy", "warning", "not under differential privacy", "GroupNorm"),
        (Unsaid, "preprocessing", "warning", "does not say how it prepares", "declare"),
        (Idle, "training", "warning", "block unused has no gradient", "every block"),
        (
            Failing,
            "training",
            "failed",
            "`loss` fails: ValueError: seven is not a loss, in test_task.py line",
            "pytest",
        ),
        (Overflowing, "training", "failed", "not finite", "unit size"),
        (Sigmoid, "metrics", "failed", "an output for each class", "give it two"),
        (Mismeasured, "metrics", "failed", "the task's metrics fail on the test rows: absent", "what a metric"),
        (Pictures, "data", "warning", "which shape rows have", "--data FILE"),
    ],
)
def test_what_is_wrong_is_found_and_comes_with_its_fix(
    task: type[Task], check: str, state: str, message: str, fix: str
) -> None:
    finding = found(task)[check]
    assert (finding.state, message in finding.message, fix in finding.fix) == (state, True, True), finding


@pytest.mark.parametrize(("task", "check"), [(Normed, "differential privacy"), (Unsaid, "preprocessing")])
def test_who_wants_differential_privacy_is_held_to_it(task: type[Task], check: str) -> None:
    assert found(task, private=True)[check].state == "failed"


def test_the_command_exits_with_3_and_says_what_is_wrong() -> None:
    code, said = call("task", "check", f"{__name__}:Unsteady")
    assert code == 3
    assert re.search(r"FAILED   same start everywhere: .*\n +→ draw in `model`", said)
    assert call("task", "check", "no_such_module:Task")[0] == 3
    code, said = call("task", "check", f"{__name__}:Steady")
    assert (code, "correct the name after the colon" in said) == (3, True)
    code, said = call("task", "check", "digits", "--set", "task.nothing=1")
    assert (code, "nothing" in said) == (3, True)
    code, said = call("task", "check", "breast-cancer")
    assert (code, "rows to train on" in said, "that come with the task" in said) == (0, True, True)


@pytest.mark.parametrize("command", [["task", "check"], ["run", "--task"], ["study", "new", "--task"]])
@pytest.mark.parametrize("typed", ["wards.py:Wards", "wards.py", "../lead/wards.py:Wards"])
def test_who_names_a_file_is_told_the_tasks_name(folder: Path, command: list[str], typed: str) -> None:
    code, said = call(*command, typed)
    assert (code, "did you mean 'wards:Wards'?" in said) == (3, True)
    assert ("run the command in the folder ../lead" in said) == ("/" in typed)
    assert "task check" not in said
    assert not (folder.parent / "study.toml").exists()


def test_a_name_that_no_task_can_have_is_not_written_into_a_study(folder: Path) -> None:
    for name in ("wards:", ":Wards", "my wards:Wards", "../wards:Wards"):
        assert call("study", "new", "--task", name)[0] == 3, name
    assert not Path("study.toml").exists()
    assert call("study", "new", "--task", "wards:Wards")[0] == 0


def test_a_check_shows_what_fails_and_does_not_send_people_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "crooked_task.py").write_text("import no_such_package_at_all\n")
    code, said = call("task", "check", "no_such_module:Task")
    assert (code, "run it in the folder that has no_such_module.py" in said) == (3, True)
    assert "task check" not in said
    code, said = call("task", "check", "crooked_task:Task")
    assert (code, "No module named 'no_such_package_at_all'" in said, "correct it" in said) == (3, True, True)
    assert "task check" not in said


def test_a_folder_that_python_takes_for_the_module_is_called_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`task new` makes such a folder, and the first command is easily given beside it."""
    (tmp_path / "beside_it").mkdir()
    monkeypatch.chdir(tmp_path)
    code, said = call("task", "check", "beside_it:Task")
    sys.modules.pop("beside_it", None)
    assert (code, "(it is a folder)" in said, "in the folder beside_it" in said) == (3, True, True)


# --- rows of a table ------------------------------------------------------------------------------------------------

COLUMNS = {"age": (20.0, 90.0), "bmi": (15.0, 45.0)}


def written(folder: Path) -> list[Path]:
    """The same table in three forms."""
    age, bmi, y = np.array([20.0, 55, 90]), np.array([15.0, 30, 45]), np.array([0, 1, 1])
    who = np.array(["a", "a", "b"])
    lines = ["bmi,outcome,age,who", *(f"{b},{c},{a},{w}" for a, b, c, w in zip(age, bmi, y, who, strict=True))]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    np.savez(folder / "named.npz", age=age, bmi=bmi, outcome=y, who=who)
    np.savez(folder / "plain.npz", x=np.stack([age, bmi], axis=1), y=y, groups=who)
    return [folder / "t.csv", folder / "named.npz", folder / "plain.npz"]


def test_a_table_is_the_same_in_every_form(tmp_path: Path) -> None:
    for path in written(tmp_path):
        table = read_rows(Source(path=path), columns=COLUMNS, target="outcome", classes=2, groups="who")
        assert table.scaled.tolist() == [[-1, -1], [0, 0], [1, 1]], path
        assert table.inputs[:, 0].tolist() == [20, 55, 90]
        assert table.targets.tolist() == [0, 1, 1]
        assert table.targets.dtype == np.int64
        assert table.groups is not None
        assert table.groups.tolist() == ["a", "a", "b"]
        number = read_rows(Source(path=path), columns=COLUMNS, target="outcome")
        assert number.targets.tolist() == [[0], [1], [1]]
        assert number.groups is None


@pytest.mark.parametrize(
    ("columns", "options", "match"),
    [
        ({"height": (0.0, 1.0)}, {}, "has no column height"),
        (COLUMNS, {"classes": 1}, "not classes from 0 to 0"),
        ({"who": (0.0, 1.0)}, {}, "column who has more than numbers in it"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_without_quoting_it(
    tmp_path: Path, columns: dict[str, tuple[float, float]], options: dict[str, Any], match: str
) -> None:
    for path in written(tmp_path)[:2]:
        with pytest.raises(DataError, match=match):
            read_rows(Source(path=path), columns=columns, target="outcome", **options)
    with pytest.raises(DataError, match=r"expected CSV or \.npz with numbers in"):
        read_rows(Source(path=tmp_path / "absent.csv"), columns=columns, target="outcome")
    (tmp_path / "semicolons.csv").write_text("age;bmi;outcome\n71;33;1\n")
    with pytest.raises(DataError, match="has no column") as caught:
        read_rows(Source(path=tmp_path / "semicolons.csv"), columns=columns, target="outcome", **options)
    assert "commas" in caught.value.hint
    assert "71" not in f"{caught.value} {caught.value.hint}".replace(str(tmp_path), "")
    np.savez(tmp_path / "odd.npz", x=np.zeros((3, 5)), y=np.zeros(3))
    np.savez(tmp_path / "short.npz", age=np.zeros(3), bmi=np.zeros(2), outcome=np.zeros(3))
    np.savez(tmp_path / "gap.npz", x=np.full((3, len(columns)), np.nan), y=np.zeros(3))
    for name in ("odd.npz", "short.npz", "gap.npz"):
        with pytest.raises(DataError):
            read_rows(Source(path=tmp_path / name), columns=columns, target="outcome")
