"""A study names a task; the site finds its own code."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from secure_fl import tasks
from secure_fl.errors import SettingsError, UnknownNameError
from secure_fl.tasks.digits import Digits, DigitsSettings


def offer(monkeypatch: pytest.MonkeyPatch, **targets: str) -> None:
    """Pretend that installed packages declare these entry points."""
    points = [metadata.EntryPoint(name, value, tasks.ENTRY_POINTS) for name, value in targets.items()]
    pretend(monkeypatch, points)


def pretend(monkeypatch: pytest.MonkeyPatch, points: list[metadata.EntryPoint]) -> None:
    def entry_points(*, group: str) -> metadata.EntryPoints:
        assert group == "secure_fl.tasks"
        return metadata.EntryPoints(points)

    monkeypatch.setattr(metadata, "entry_points", entry_points)


def test_the_registry_and_partitions_load_without_torch() -> None:
    program = (
        "import sys, secure_fl.tasks as t, secure_fl.tasks.partition; t.known(); t.is_installed_id('digits');"
        "sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=root).returncode == 0


@pytest.mark.parametrize("name", sorted(tasks.BUILT_IN))
def test_built_in_tasks_are_known_and_resolve(name: str) -> None:
    assert name in tasks.known()
    assert tasks.is_installed_id(name)
    assert tasks.create(name, {}).settings == tasks.resolve(name).Settings()


def test_an_entry_point_is_an_installed_id(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, scans="secure_fl.tasks.digits:Digits")
    assert "scans" in tasks.known()
    assert tasks.is_installed_id("scans")
    assert tasks.resolve("scans") is Digits


def test_module_and_attribute_resolve_but_are_no_installed_id() -> None:
    name = "secure_fl.tasks.digits:Digits"
    assert tasks.resolve(name) is Digits
    assert not tasks.is_installed_id(name)


def test_a_package_cannot_replace_a_built_in_task(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, digits="secure_fl.tasks.breast_cancer:BreastCancer")
    assert tasks.resolve("digits") is Digits


def test_an_id_that_two_packages_offer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [metadata.EntryPoint("scans", f"{package}:Scans", "secure_fl.tasks") for package in ("one", "two")]
    pretend(monkeypatch, points)
    with pytest.raises(SettingsError, match="one:Scans and two:Scans"):
        tasks.known()


def test_settings_are_validated_by_the_task() -> None:
    assert tasks.create("digits", {"hidden": 8}).settings == DigitsSettings(hidden=8)
    with pytest.raises(UnknownNameError, match=r"'task\.hiden'; did you mean 'hidden'"):
        tasks.create("digits", {"hiden": 8})
    with pytest.raises(SettingsError, match=r"task\.hidden"):
        tasks.create("digits", {"hidden": "8"})


def test_an_unknown_id_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown task 'digit'; did you mean 'digits'"):
        tasks.resolve("digit")


@pytest.mark.parametrize("name", ["not_installed_here:Scans", ":Scans", ".relative:Scans"])
def test_a_missing_module_is_to_be_installed_at_this_site(name: str) -> None:
    with pytest.raises(SettingsError, match="cannot be imported here") as caught:
        tasks.resolve(name)
    assert "install" in caught.value.hint


def test_a_module_that_fails_as_it_loads_is_a_settings_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_task_module.py").write_text("None.attribute\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match="cannot be imported here"):
        tasks.resolve("broken_task_module:Scans")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("secure_fl.tasks.digits:Digit", "has no 'Digit'"),
        ("secure_fl.tasks.digits:", "has no ''"),
        ("secure_fl.tasks.digits:DigitsSettings", "not a subclass"),
        ("secure_fl.tasks.digits:np.pi", "not a subclass"),
        ("secure_fl.tasks.base:Task", "does not define load, model"),
    ],
)
def test_an_attribute_that_is_no_task_is_refused(name: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        tasks.resolve(name)


def test_a_module_that_exits_is_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study names the module: it must not end the process that looks at it."""
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match="SystemExit"):
        tasks.create("leaves:Task", {})
