"""Strategies of installed packages: found by entry point, never in place of a built-in one, approved as code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import invalidate_caches
from pathlib import Path

import pytest

from node.desk import code_here
from secure_fl import Study, strategies
from secure_fl.errors import SettingsError, UnknownNameError
from secure_fl.strategies.fedavg import FedAvg

MODULE = "calm_example"
SOURCE = """
from secure_fl.strategies.fedavg import FedAvg


class Calm(FedAvg):
    name = "calm"
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package that offers strategies, as pip would."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def make(*, package: str = "calm", source: str = SOURCE, **points: str) -> None:
        (tmp_path / f"{MODULE}.py").write_text(source)
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "".join(f"{name} = {target}\n" for name, target in points.items())
        (info / "entry_points.txt").write_text(f"[{strategies.ENTRY_POINTS}]\n{lines}")
        sys.modules.pop(MODULE, None)
        invalidate_caches()

    yield make
    sys.modules.pop(MODULE, None)


def test_an_installed_strategy_is_one_like_the_others(install: Install) -> None:
    before = strategies.known()
    install(calm=f"{MODULE}:Calm")
    assert set(strategies.known()) == {*before, "calm"}
    assert strategies.create("calm", {"epochs": 2}).settings.epochs == 2
    study = Study.of(task="digits", strategy="calm")
    assert study.make_strategy().name == "calm"
    assert not strategies.is_built_in("calm")
    assert not strategies.is_in_process("calm")  # other processes find it where this one does
    with pytest.raises(UnknownNameError, match="did you mean 'calm'"):
        strategies.create("clam", {})


def test_reading_a_study_runs_nothing_of_a_package(install: Install) -> None:
    """A site reads what it is offered before it has agreed to anything."""
    install(calm=f"{MODULE}:Calm")
    offered = Study.of(task="digits").canonical().replace(b'"name":"fedavg"', b'"name":"calm"')
    assert Study.from_canonical(offered).strategy.name == "calm"
    assert MODULE not in sys.modules


def test_no_package_takes_a_built_in_name(install: Install) -> None:
    # A site that allows "fedavg" in its policy allows that, and not what somebody packaged under the name.
    install(fedavg=f"{MODULE}:Calm")
    assert strategies.resolve("fedavg") is FedAvg
    assert strategies.is_built_in("fedavg")


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    install(calm=f"{MODULE}:Calm")
    install(package="quiet", calm=f"{MODULE}:Other")
    with pytest.raises(SettingsError, match="two installed packages offer a strategy 'calm'"):
        strategies.create("calm", {})


def test_a_name_in_a_study_imports_nothing_that_is_not_installed(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(source="raise SystemExit\n")
    for name in (f"{MODULE}:Calm", MODULE):
        with pytest.raises(UnknownNameError):
            Study.of(strategy=name).make_strategy()
    assert MODULE not in sys.modules


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise SystemExit\n", "cannot be imported here .SystemExit."),
        ("", "cannot be imported here .AttributeError."),
        ("Calm = 3\n", "is not a subclass"),
        ("from secure_fl.strategies.base import Strategy\nclass Calm(Strategy): pass\n", "does not define explain"),
    ],
)
def test_a_broken_package_is_an_error_that_names_it(install: Install, source: str, message: str) -> None:
    install(source=source, calm=f"{MODULE}:Calm")
    with pytest.raises(SettingsError, match=f"strategy 'calm'.*{message}"):
        strategies.create("calm", {})


def test_its_code_is_part_of_what_a_site_approves(install: Install) -> None:
    def code(strategy: str) -> str:
        return code_here(Study.of(task="digits", strategy=strategy)).digest

    plain = code("fedavg")
    install(calm=f"{MODULE}:Calm")
    first = code("calm")
    assert first != plain
    install(calm=f"{MODULE}:Calm", source=f"{SOURCE}\n# changed\n")
    assert code("calm") not in {first, plain}
    assert code("fedprox") == plain  # a built-in one goes with the release
