"""The tree shows the architecture: which room may know which, no cycles, nothing too large to read."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LARGEST_MODULE, LARGEST_CLASS = 450, 350
CATALOGUES = {"secure_fl/errors.py": 560}  # a list, which nobody reads from end to end

# Rooms that a room may know besides itself and the modules at the top of the library. `events` is a module at the top
# that carries a study's results.
KNOWS: Mapping[str, set[str]] = {
    "top": set(),
    "results": set(),
    "events": {"results"},
    "identity": set(),
    "encoding": set(),
    "tasks": set(),
    "privacy": {"identity", "tasks"},
    "transport": {"identity"},
    "protect": {"encoding", "identity"},
    "strategies": {"privacy", "tasks"},
    "study": {"encoding", "privacy", "protect", "strategies", "tasks"},
    "report": {"privacy", "protect", "results", "study"},
    "operations": {"identity", "study", "transport"},
    "simulation": {
        "events", "identity", "operations", "privacy", "report", "results", "study", "tasks", "transport",
    },
    "tracking": {"events", "results"},
    "api": {
        "events", "operations", "privacy", "report", "results", "simulation", "strategies", "study", "tasks",
        "tracking",
    },
    "bench": {
        "encoding", "events", "identity", "protect", "report", "results", "simulation", "strategies", "study", "tasks",
    },
    "cli": {
        "api", "bench", "identity", "operations", "privacy", "protect", "report", "results", "simulation",
        "strategies", "study", "tasks",
    },
    "node": {
        "encoding", "identity", "operations", "privacy", "protect", "results", "simulation", "strategies", "study",
        "tasks", "transport",
    },
    "coordinator": {
        "encoding", "events", "identity", "operations", "protect", "results", "strategies", "study", "tasks",
        "transport",
    },
}  # fmt: skip


def _modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for package in ("secure_fl", "node", "coordinator"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "rpc" not in parts and "migrations" not in parts:
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def imports(path: Path) -> Iterator[str]:
    """Every module of ours that a file imports: at its top, in a function, or for the type checker alone."""
    for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            assert statement.module is not None
            # `from a import b` is an import of a.b where that is a module, and of a otherwise.
            whole = [f"{statement.module}.{alias.name}" for alias in statement.names]
            names = [name if name in MODULES else statement.module for name in whole]
        yield from (name for name in names if name in MODULES)


def room(module: str) -> str:
    first, *rest = module.split(".")
    if first != "secure_fl":
        return first
    if rest and (ROOT / "secure_fl" / rest[0]).is_dir():
        return rest[0]
    return "events" if rest == ["events"] else "top"


GRAPH = {name: {other for other in imports(path) if other != name} for name, path in MODULES.items()}
# The front door names the Python API for the type checker and loads a name when it is asked for: whoever imports the
# package for its version imports none of that (test_imports.py).
DOOR = GRAPH.pop("secure_fl")
# The console script imports the command line, once Ctrl-C is taken care of.
SCRIPT = GRAPH.pop("secure_fl.__main__")


def test_the_front_door_opens_on_the_api_alone() -> None:
    assert {room(other) for other in DOOR} == {"api", "study"}
    assert {"secure_fl.cli"} == SCRIPT
    assert {other for others in GRAPH.values() for other in others if other == "secure_fl"} == {"secure_fl"}


def test_every_room_is_known() -> None:
    assert {room(name) for name in MODULES} == KNOWS.keys()


@pytest.mark.parametrize("name", KNOWS)
def test_a_room_knows_no_other_than_it_may(name: str) -> None:
    allowed = KNOWS[name] | {name, "top"}
    offences = {
        f"{module} imports {other}"
        for module, others in GRAPH.items()
        if room(module) == name
        for other in others
        if room(other) not in allowed
    }
    assert not offences


def test_what_a_room_may_know_it_does_know() -> None:
    # A permission that nobody uses would let the next one in unnoticed.
    used = {(room(module), room(other)) for module, others in GRAPH.items() for other in others}
    assert not {(name, other) for name, others in KNOWS.items() for other in others if (name, other) not in used}


def _order(graph: Mapping[str, set[str]]) -> list[str]:
    """Whoever is in a cycle, or behind one: what is left when modules without imports go, again and again."""
    left = {name: others & graph.keys() for name, others in graph.items()}
    while free := [name for name, others in left.items() if not others]:
        for name in free:
            del left[name]
        for others in left.values():
            others.difference_update(free)
    return sorted(left)


def test_no_module_imports_itself_by_a_detour() -> None:
    assert _order(GRAPH) == []
    assert _order({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["a", "b", "c"]


def test_no_room_knows_itself_by_a_detour() -> None:
    assert _order({name: set(others) for name, others in KNOWS.items()}) == []


@pytest.mark.parametrize("path", MODULES.values(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_is_too_large_to_read(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= CATALOGUES.get(path.relative_to(ROOT).as_posix(), LARGEST_MODULE)
    for found in ast.walk(ast.parse(text)):
        if isinstance(found, ast.ClassDef):
            assert found.end_lineno is not None
            assert found.end_lineno - found.lineno < LARGEST_CLASS, found.name


def test_a_node_uses_of_simulations_only_what_forks_its_worker() -> None:
    known = {other for module, others in GRAPH.items() if room(module) == "node" for other in others}
    assert {other for other in known if room(other) == "simulation"} == {"secure_fl.simulation.forks"}


# --- tests ----------------------------------------------------------------------------------------------------------

# Beside the rooms: what crosses them, and what tests themselves are made of.
CROSSING = {"attacks", "end_to_end", "faults", "fuzz", "library", "support"}


def test_tests_mirror_the_rooms() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - CROSSING <= KNOWS.keys() - {"top", "events"}
