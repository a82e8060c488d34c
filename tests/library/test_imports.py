"""Who may import whom: the promises of the design that an import can break."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from secure_fl import protect

ROOT = Path(__file__).parents[2]
PACKAGES = ("secure_fl", "node", "coordinator")


def modules(*packages: str) -> list[Path]:
    found = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    assert found
    return found


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it; `from a import b` counts as `a` and as `a.b`."""
    for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, f"{path}: relative import"
            assert statement.module is not None
            yield statement.module
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)


def within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def offences(paths: list[Path], forbidden: set[str]) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {name}" for path in paths for name in imports(path) if within(name, forbidden)]


def test_a_sites_notes_are_the_business_of_training_alone() -> None:
    # The process that talks to the coordinator has no hand in them, and neither has the coordinator. What the round
    # writes in that form is a file of its own: the rows it signs, which the coordinator sees anyway.
    readers = {
        path.relative_to(ROOT).as_posix() for path in modules(*PACKAGES) if "secure_fl.results.traces" in imports(path)
    }
    assert readers == {
        "node/training/trainer.py", "node/combining.py", "secure_fl/bench/features.py", "secure_fl/report/noted.py",
        "secure_fl/report/page.py", "secure_fl/report/selection.py", "secure_fl/simulation/run.py",
    }  # fmt: skip
    assert "traces.read" not in (ROOT / "node" / "combining.py").read_text(encoding="utf-8")


# --- packages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [("secure_fl", {"node", "coordinator"}), ("node", {"coordinator"}), ("coordinator", {"node"})],
)
def test_the_library_knows_neither_party_and_the_parties_not_each_other(package: str, forbidden: set[str]) -> None:
    assert offences(modules(package), forbidden | {"tests"}) == []


# --- protections ------------------------------------------------------------------------------------------------

PROTECT = modules("secure_fl/protect")
IO = {
    "asyncio", "grpc", "http", "io", "os", "pathlib", "shutil", "socket", "sqlalchemy", "sqlite3", "ssl", "subprocess",
    "tempfile", "threading", "urllib", "secure_fl.files", "secure_fl.transport",
}  # fmt: skip
CLOCKS_AND_DICE = {"datetime", "random", "secrets", "time", "torch", "uuid", "numpy.random"}


GENERIC = [path for path in PROTECT if path.parent.name in {"cohort", "release", "primitives"}] + [
    path for path in PROTECT if path.name in {"contract.py", "combining.py", "bodies.py"}
]


def test_what_protections_have_in_common_knows_none_of_them() -> None:
    assert len(GENERIC) > 15
    assert offences(GENERIC, {f"secure_fl.protect.{name}" for name in protect.known()}) == []
    sums_only = [path for path in GENERIC if path.name == "contract.py"]
    assert offences(sums_only, {"secure_fl.protect.combining", "secure_fl.protect.release"}) == []


REGISTRY = ROOT / "secure_fl" / "protect" / "__init__.py"
OWN_ROOMS = [ROOT / "secure_fl" / "protect" / name for name in (*protect.known(), "recovery")]


@pytest.mark.parametrize(
    "path",
    [path for path in modules(*PACKAGES) if path != REGISTRY and not any(path.is_relative_to(r) for r in OWN_ROOMS)],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_a_protection_is_named_in_its_own_room_and_the_registry_alone(path: Path) -> None:
    # `none` stands for other things too (no metrics, no privacy), so it cannot be looked for.
    names = set(protect.known()) - {"none"}
    words = [
        node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant)
    ]
    assert names.isdisjoint(word for word in words if isinstance(word, str))


def test_a_protection_does_no_io() -> None:
    assert offences(PROTECT, IO) == []


def test_a_protection_has_no_clock_and_no_dice_of_its_own() -> None:
    assert offences(PROTECT, CLOCKS_AND_DICE) == []


@pytest.mark.parametrize("path", PROTECT, ids=lambda path: path.name)
def test_a_protection_reaches_neither_through_an_attribute_nor_a_builtin(path: Path) -> None:
    for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(found, ast.Attribute) and isinstance(found.value, ast.Name):
            assert (found.value.id, found.attr) not in {("np", "random"), ("numpy", "random"), ("torch", "rand")}
            assert found.attr not in {"urandom", "token_bytes", "default_rng"}
        if isinstance(found, ast.Call) and isinstance(found.func, ast.Name):
            assert found.func.id not in {"open", "exec", "eval", "__import__", "input", "print"}


def test_cryptography_never_draws_from_numpy_or_random() -> None:
    paths = [
        *PROTECT,
        *modules("secure_fl/identity"),
        ROOT / "secure_fl" / "randomness.py",
        ROOT / "secure_fl" / "secret.py",
    ]
    assert offences(paths, {"random", "numpy.random"}) == []
    for path in paths:
        assert "np.random" not in path.read_text(encoding="utf-8")


# --- what is loaded ---------------------------------------------------------------------------------------------


def loaded_by(module: str) -> set[str]:
    program = f"import sys, {module}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, capture_output=True, text=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "module", ["coordinator.main", "node.main", "secure_fl.cli", "secure_fl.study.settings", "secure_fl.protect.none"]
)
def test_torch_and_the_like_are_loaded_only_where_somebody_trains(module: str) -> None:
    loaded = loaded_by(module)
    assert module in loaded
    assert loaded & {"torch", "tenseal", "zstandard", "opacus", "sklearn", "scipy"} == set()


def test_the_front_door_is_light_until_a_name_is_asked_for() -> None:
    assert loaded_by("secure_fl") & {"torch", "pydantic", "numpy", "secure_fl.api", "secure_fl.study"} == set()
    # What a person in a notebook asks for first need not wait for torch.
    program = "import sys; from secure_fl import Operator, Study, load_model, simulate; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == "False\n"


@pytest.mark.parametrize("module", ["node.training.trainer", "secure_fl.tasks.bearings"])
def test_whoever_needs_torch_needs_little_else(module: str) -> None:
    loaded = loaded_by(module)
    assert {module, "torch"} <= loaded
    # torch imports its compiler with the first optimizer; there is no other way to have one.
    assert loaded & {"tenseal", "zstandard", "opacus", "sklearn", "scipy", "torch._dynamo"} == set()


def test_a_strategy_is_known_without_torch() -> None:
    paths = (path for path in modules("secure_fl/strategies") if path.name not in {"__init__.py", "site.py"})
    loaded = loaded_by(", ".join(f"secure_fl.strategies.{path.stem}" for path in paths))
    assert "secure_fl.strategies.fedavg" in loaded
    assert "torch" not in loaded


def test_a_protection_loads_no_transport() -> None:
    assert loaded_by("secure_fl.protect.none") & {"grpc", "sqlalchemy", "sqlite3", "alembic"} == set()
