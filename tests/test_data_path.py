"""docs/DATA_PATH.md and the code agree step by step."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| `([^`]+)` `([^`]+)` \|", re.MULTILINE)
NUMBERS = re.compile(r"(\d+)\.(?:–(\d+)\.)? ")


def steps_of_the_page() -> dict[int, tuple[str, str]]:
    """Number → file and function."""
    text = (ROOT / "docs" / "DATA_PATH.md").read_text()
    return {int(number): (file, function) for number, _, file, function in ROW.findall(text)}


def numbers_in(file: str, function: str) -> set[int]:
    """The steps a function claims in its docstring or comments."""
    source = (ROOT / file).read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
            lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
            claims = [
                line.strip().removeprefix('"""').removeprefix("# ") for line in lines if '"""' in line or "# " in line
            ]
            found: set[int] = set()
            for claim in claims:
                if match := NUMBERS.match(claim):
                    found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
            return found
    raise AssertionError(f"{file} has no function {function}")


def test_every_step_is_where_the_page_says() -> None:
    steps = steps_of_the_page()
    assert sorted(steps) == list(range(1, 16))
    for number, (file, function) in steps.items():
        assert number in numbers_in(file, function), (number, file, function)


def test_the_code_has_no_step_the_page_does_not_know() -> None:
    steps = steps_of_the_page()
    for file, function in set(steps.values()):
        for number in numbers_in(file, function):
            assert steps[number] == (file, function) or number in numbers_in(*steps[number])


def test_the_steps_of_the_node_stand_in_the_order_of_the_page() -> None:
    source = (ROOT / "node" / "attempt.py").read_text()
    numbers = [int(n) for n in re.findall(r'"""(\d+)\.', source)]
    assert numbers == sorted(numbers)
