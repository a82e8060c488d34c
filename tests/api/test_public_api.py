"""The public API does not change unnoticed: names and signatures are compared with a committed list.

After a change that is meant: `python -m tests.api.test_public_api` writes the list anew; say so in CHANGELOG.md.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import secure_fl
from secure_fl import errors, events
from secure_fl.api.operator import Exported
from secure_fl.api.run import Models
from secure_fl.cli.task_template import write_task
from secure_fl.study.settings import Study
from tests.support.processes import ROOT

LISTED = Path(__file__).with_name("public_api.txt")
_STUDY = ("of", "changed", "read", "check", "completed", "id")  # of a study's methods, those meant for people

# What people import who write a task or a strategy, or listen to events. `test_what_the_documents_…` keeps it complete.
IMPORTED = {
    "secure_fl.tasks.base": (
        "Arrays", "LocalData", "Metrics", "Source", "Split", "Task", "TaskSettings", "open_npz", "read_npz",
        "require_path",
    ),
    "secure_fl.tasks.cutting": ("divide",),
    "secure_fl.tasks.metrics": (
        "Accuracy", "Auc", "BalancedAccuracy", "F1", "Mae", "Metric", "R2", "Sensitivity", "Specificity",
    ),
    "secure_fl.tasks.model_blocks": ("seeded",),
    "secure_fl.tasks.tables": ("Rows", "read_rows"),
    "secure_fl.strategies.base": ("Aggregate", "BlockMean", "Combine", "LocalTraining", "State", "Strategy", "Sum"),
    "secure_fl.strategies.site": ("Site",),
}  # fmt: skip


def public_api() -> Iterator[str]:
    for name in sorted(secure_fl.__all__):
        value = getattr(secure_fl, name)
        if value is Study:
            yield from _members(value, only=_STUDY)
            yield from (f"    {key} = {default!r}" for key, default in _keys(Study))
        else:
            yield from _described(name, value)
    for value in (Exported, Models):
        yield from _members(value)
    for module, names in IMPORTED.items():
        yield f"# {module}"
        for name in names:
            yield from _described(name, getattr(import_module(module), name))
    yield f"# {events.__name__}"
    for event in sorted(get_args(events.Event), key=lambda event: str(event.name)):
        yield f"{event.name}: {event.__name__}{inspect.signature(event)}"
    yield f"# {errors.__name__}"
    for error in sorted(error_classes(), key=lambda error: error.__name__):
        parent = error.__mro__[1].__name__
        yield f"{error.__name__}({parent}): code {error.code}, exit code {error.exit_code}, {error.status}"


def error_classes() -> Iterator[type[errors.SecureFLError]]:
    for value in vars(errors).values():
        if inspect.isclass(value) and issubclass(value, errors.SecureFLError):
            yield value


def _described(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield from _members(value)
    elif callable(value):
        yield f"{name}{inspect.signature(value)}"
    else:
        yield name


def _members(cls: type, only: tuple[str, ...] | None = None) -> Iterator[str]:
    if issubclass(cls, BaseModel):  # its fields say more than the signature that pydantic makes
        yield f"class {cls.__name__}"
        if only is None:
            yield from (f"    {key} = {default!r}" for key, default in _keys(cls))
            return
    else:
        yield f"class {cls.__name__}{inspect.signature(cls)}"
    own = {*vars(cls), *inspect.get_annotations(cls)}
    for name in sorted(only or (name for name in own if not name.startswith("_"))):
        member = inspect.getattr_static(cls, name, None)
        if isinstance(member, property) and member.fget is not None:
            yield f"    {name}: property -> {inspect.signature(member.fget).return_annotation!r}"
        elif inspect.isroutine(getattr(cls, name, None)):
            yield f"    {name}{inspect.signature(getattr(cls, name))}"
        else:
            yield f"    {name}"


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a section, or of a file with sections, with its default."""
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            yield from _keys(type(default), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", default


def test_the_public_api_is_the_one_that_is_listed() -> None:
    assert "\n".join(public_api()) + "\n" == LISTED.read_text(encoding="utf-8")


MISTAKES = """
from secure_fl import Run, Study, load_model, simulate

run: Run = simulate(Study.of(rounds=1), nodes=3, privacy="dp-sgd")
simulate(rouns=3)
run.sumary
load_model(3, "digits")
run.report().read_txt()
run.ledger("site-01", "site-02")
"""


def test_a_type_checker_finds_mistakes_in_what_people_write(tmp_path: Path) -> None:
    (tmp_path / "trial.py").write_text(MISTAKES)
    (tmp_path / "right.py").write_text(MISTAKES.partition("simulate(rouns")[0])
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    cache = ROOT / ".mypy_cache" / "consumer"  # torch takes twenty seconds, the first time
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), "right.py", "trial.py"],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    said = done.stdout
    assert "right.py" not in said
    for line, message in (
        (5, 'Unexpected keyword argument "rouns" for "simulate"'),
        (6, '"Run" has no attribute "sumary"'),
        (7, 'Argument 1 to "load_model" has incompatible type "int"'),
        (8, '"Path" has no attribute "read_txt"'),
        (9, 'Too many arguments for "ledger" of "Run"'),
    ):
        assert re.search(rf"trial\.py:{line}: error: {re.escape(message)}", said), said


def test_the_front_door_knows_its_names() -> None:
    assert {*secure_fl._HOMES, "__version__"} == {*secure_fl.__all__}
    assert set(secure_fl.__all__) <= set(dir(secure_fl))
    assert not hasattr(secure_fl, "simulat")


DOCUMENTS = ("README.md", "docs/tasks.md", "docs/python.md", "docs/privacy.md", "docs/strategies/own.md")


def code_of(folder: Path) -> Mapping[str, str]:
    """What people copy from: pages, notebooks, and the files that `task new` writes."""
    found = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        found[path.name] = "\n".join("".join(cell["source"]) for cell in cells)
    for kind in ("classification", "regression"):
        for path in write_task("some-wards", folder / kind, kind=kind):
            found[f"{kind} {path.name}"] = path.read_text(encoding="utf-8")
    return found


def test_what_the_documents_and_the_template_import_is_in_the_list(tmp_path: Path) -> None:
    listed = {
        "secure_fl": {*secure_fl.__all__},
        errors.__name__: {error.__name__ for error in error_classes()},
        events.__name__: {event.__name__ for event in get_args(events.Event)},
        **{module: {*names} for module, names in IMPORTED.items()},
    }
    seen = set()
    for where, text in code_of(tmp_path).items():
        for module, names in re.findall(r"^\s*from (secure_fl[\w.]*) import ([\w, ]+)$", text, re.MULTILINE):
            for name in names.split(", "):
                assert name in listed.get(module, ()), f"{where}: {module}.{name}"
                seen.add(f"{module}.{name}")
    assert {"secure_fl.simulate", "secure_fl.tasks.base.Task", "secure_fl.strategies.base.Sum"} <= seen
    assert {"secure_fl.tasks.metrics.Mae", "secure_fl.tasks.tables.read_rows"} <= seen


@pytest.mark.parametrize("package", ["secure_fl", "node", "coordinator"])
def test_the_packages_are_typed_for_whoever_installs_them(package: str) -> None:
    """A wheel has every file of a package that git does not ignore, unless the build says otherwise."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert wheel == {"targets": {"wheel": {"packages": ["secure_fl", "node", "coordinator"]}}}
    marker = ROOT / package / "py.typed"
    assert marker.is_file()
    ignored = (ROOT / ".gitignore").read_text().split()
    assert not any(fnmatch(name, pattern) for pattern in ignored for name in (marker.name, f"{package}/{marker.name}"))


if __name__ == "__main__":
    LISTED.write_text("\n".join(public_api()) + "\n", encoding="utf-8")
