"""Text of other parties, as a person may be shown it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import MalformedMessageError, SecureFLError, SettingsError, one_line
from secure_fl.operations.operator import Operator
from secure_fl.plain_text import is_plain, require_plain
from secure_fl.results.record import StudyRecord
from secure_fl.rpc import operations_pb2 as pb
from secure_fl.settings import read_toml, set_dotted

CLEARS = "\x1b[2J"
REFRESH = '"><meta http-equiv="refresh" content="0;url=https://evil.example/">'
RECORD = {
    **dict.fromkeys(("study", "study_id", "task", "strategy", "protection"), "x"),
    "planned_rounds": 1,
    "roster": ["a"],
    "rounds": [],
}
ROUND = {**dict.fromkeys(("number", "attempts", "seconds"), 1), "kind": "train", "nodes": [], "blocks_kept": []}


@given(st.text())
def test_one_line_is_one_that_a_terminal_only_shows(text: str) -> None:
    shown = one_line(text)
    assert shown.isprintable()
    assert is_plain(shown)
    if text.isprintable():
        assert shown == text


def test_an_error_is_one_line_whatever_it_quotes() -> None:
    """Every command prints its message and its hint."""
    error = SecureFLError(f"no task {CLEARS}\nstudy approved", advice=f"install {CLEARS}")
    assert error.message == "no task \\x1b[2J\\nstudy approved"
    assert error.hint == "install \\x1b[2J"
    assert str(error) == error.message


@pytest.mark.parametrize("key", ["name", "owner", "state", "reason"])
def test_what_a_coordinator_says_of_a_study_is_plain(key: str) -> None:
    require_plain(pb.StudyStatus(name="heart", reason="Zwölf – 3 %"), what="the answer")
    setattr(painted := pb.StudyStatus(), key, f"heart{CLEARS}")
    with pytest.raises(MalformedMessageError, match="a terminal would obey"):
        require_plain(pb.StatusReply(studies=[painted]), what="the answer")
    sites = [pb.SiteStatus(name=f"a{CLEARS}")]
    with pytest.raises(MalformedMessageError):
        require_plain(pb.StudyStatus(sites=sites), what="the answer")


class _Stub:
    """A coordinator that paints."""

    async def Status(self, _request: object, *, timeout: float) -> pb.StatusReply:  # noqa: ASYNC109
        return pb.StatusReply(studies=[pb.StudyStatus(name=f"heart{CLEARS}")])

    async def Stop(self, _request: object, *, timeout: float) -> pb.StudyStatus:  # noqa: ASYNC109
        return pb.StudyStatus(name=f"heart{CLEARS}")


@pytest.mark.parametrize("call", ["status", "stop"])
def test_an_operators_command_shows_nothing_that_a_terminal_obeys(call: str) -> None:

    with pytest.raises(MalformedMessageError):
        asyncio.run(getattr(Operator(_Stub()), call)("5a" * 32))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"planned_rounds": REFRESH},
        {"parameters": [REFRESH]},
        {"roster": 5},
        {"rounds": [{"number": REFRESH}]},
        {"rounds": [{**ROUND, "kind": "evil"}]},
        {"study": f"x{CLEARS}"},
        {"blocks": {f"x{CLEARS}": 3}},
        {"circles": [["a", 7]]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_record_that_is_none_makes_no_page(change: dict[str, object]) -> None:
    """A number that was text once stood in the page as it came, and took whoever opened the page elsewhere."""
    assert StudyRecord.from_json({**RECORD, "rounds": [ROUND]}).planned_rounds == 1
    with pytest.raises(MalformedMessageError, match="the study's record"):
        StudyRecord.from_json({**RECORD, **change})


def test_a_number_of_many_thousand_digits_is_a_mistake_in_a_file_and_no_crash() -> None:
    table: dict[str, object] = {}
    set_dotted(table, f"rounds={'9' * 5000}")
    assert isinstance(table["rounds"], str)


def test_such_a_number_in_a_file(tmp_path: Path) -> None:

    path = tmp_path / "study.toml"
    path.write_text(f"[study]\nrounds = {'9' * 5000}\n")
    with pytest.raises(SettingsError, match="not valid TOML"):
        read_toml(path)
