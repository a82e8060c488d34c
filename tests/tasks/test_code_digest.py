"""What a task's digest covers, and that it is the same wherever the files lie."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import invalidate_caches
from pathlib import Path

import pytest

from secure_fl import __version__
from secure_fl.errors import TaskUnavailableError
from secure_fl.tasks import resolve
from secure_fl.tasks.base import Task
from secure_fl.tasks.code_digest import TaskCode, task_code

ROOT = Path(__file__).parents[2]
MODULE = "cardio_example"
TASK = "from secure_fl.tasks.digits import Digits\n\nclass Echo(Digits):\n    pass\n"


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    def unload() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == MODULE]:
            del sys.modules[name]

    yield
    unload()


def digest_in(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> TaskCode:
    """The code of the task called `name`, imported afresh from `folder`."""
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == MODULE]:
        del sys.modules[loaded]
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(sys, "dont_write_bytecode", True)
        invalidate_caches()
        return task_code(resolve(name))


def package(folder: Path, *, model: str = TASK, helper: str = "SIZE = 3\n") -> Path:
    (folder / MODULE / "tasks").mkdir(parents=True)
    (folder / MODULE / "__init__.py").write_text("")
    (folder / MODULE / "report.py").write_text("")
    (folder / MODULE / "tasks" / "__init__.py").write_text("")
    (folder / MODULE / "tasks" / "helper.py").write_text(helper)
    (folder / MODULE / "tasks" / "echo.py").write_text(model)
    return folder


def test_a_module_on_two_paths_is_one_and_a_byte_makes_it_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("one", TASK), ("two", TASK), ("three", TASK + "#")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{MODULE}.py").write_text(text)
    one, two, three = (digest_in(tmp_path / name, f"{MODULE}:Echo", monkeypatch) for name in ("one", "two", "three"))
    assert one == two
    assert one.digest != three.digest
    assert (one.name, one.version) == (MODULE, "")
    assert one.text == f"{MODULE} (not installed as a package), source sha256:{one.digest}"


def test_a_package_is_the_folder_that_the_task_lives_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{MODULE}.tasks.echo:Echo"
    first = digest_in(package(tmp_path / "one"), name, monkeypatch)
    assert digest_in(package(tmp_path / "two"), name, monkeypatch) == first
    assert digest_in(package(tmp_path / "three", helper="SIZE = 4\n"), name, monkeypatch) != first
    beside = package(tmp_path / "four")
    (beside / MODULE / "report.py").write_text("print()\n")  # outside the task's own package
    assert digest_in(beside, name, monkeypatch) == first
    renamed = package(tmp_path / "five")
    (renamed / MODULE / "tasks" / "helper.py").rename(renamed / MODULE / "tasks" / "helper2.py")
    assert digest_in(renamed, name, monkeypatch) != first


def test_what_a_task_inherits_from_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task with three lines of its own does what its base class does."""
    for name, text in (("one", TASK), ("two", TASK.replace("digits", "mnist").replace("Digits", "Mnist"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{MODULE}.py").write_text(text)
    monkeypatch.setattr("secure_fl.tasks.code_digest._sources", lambda cls: (cls.__module__, {}))
    one, two = (digest_in(tmp_path / name, f"{MODULE}:Echo", monkeypatch) for name in ("one", "two"))
    assert one.digest != two.digest


def test_a_built_in_task_is_secure_fls_tasks() -> None:
    code = task_code(resolve("digits"))
    assert (code.name, code.version) == ("secure-fl", __version__)
    assert len(code.digest) == 64
    assert code == task_code(resolve("heart"))
    assert code.text == f"secure-fl {__version__}, source sha256:{code.digest}"


def test_an_installed_package_is_named_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path)
    info = tmp_path / "cardio_example_tasks-1.4.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cardio-example-tasks\nVersion: 1.4\n")
    (info / "top_level.txt").write_text(f"{MODULE}\n")
    code = digest_in(tmp_path, f"{MODULE}.tasks.echo:Echo", monkeypatch)
    assert (code.name, code.version) == ("cardio-example-tasks", "1.4")


def test_a_task_without_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{MODULE}.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    task = resolve(f"{MODULE}:Echo")
    (tmp_path / f"{MODULE}.py").unlink()
    with pytest.raises(TaskUnavailableError, match="source files cannot be read"):
        task_code(task)


def test_a_class_of_a_notebook_is_its_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    # In a notebook the module has no file; what was typed there is known as it was compiled.
    monkeypatch.setattr(sys.modules["__main__"], "__file__", None, raising=False)

    def typed(body: str) -> str:
        names: dict[str, type[Task]] = {}
        method = f"    def load(self, source):\n        {body}\n"
        source = f"from secure_fl.tasks.digits import Digits\nclass Typed(Digits):\n{method}"
        exec(compile(source, "<cell>", "exec"), {"__name__": "__main__"}, names)  # noqa: S102
        return task_code(names["Typed"]).digest

    first = typed("return super().load(source)")
    assert typed("return super().load(source)  # the same") == first
    assert typed("return super().load(None)") != first
    assert typed("return [1 for _ in source]") != typed("return [2 for _ in source]")
