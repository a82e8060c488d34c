"""A site's notes: whole, the last word of a round, and never a reason to stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_fl.results import traces


def test_a_round_that_is_trained_again_replaces_its_notes(tmp_path: Path) -> None:
    path = tmp_path / "study" / "traces.jsonl"
    assert traces.read(path) == {}
    for number, value in ((1, 0.5), (2, 0.25), (3, 0.75), (2, 1.0)):
        traces.note(path, number, {"alpha": {"head": value}})
    assert traces.read(path) == {
        1: {"alpha": {"head": 0.5}}, 2: {"alpha": {"head": 1.0}}, 3: {"alpha": {"head": 0.75}},
    }  # fmt: skip
    assert path.read_text().count("\n") == 3
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "line", ["", "{", "[1]", '{"round": 2}', '{"round": "x", "traces": {}}', '{"round":2,"traces":[1]}']
)
def test_what_is_no_trace_is_left_out(tmp_path: Path, line: str) -> None:
    path = tmp_path / "traces.jsonl"
    traces.note(path, 1, {"alpha": {"head": 0.5}})
    path.write_text(f"{line}\n{path.read_text()}")
    assert traces.read(path) == {1: {"alpha": {"head": 0.5}}}
    traces.note(path, 2, {"alpha": {"head": 0.25}})
    assert list(traces.read(path)) == [1, 2]
