"""`secure-fl study report` and `history`: only of the study that was asked for, and only once it has begun."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from secure_fl.api.operator import Operator
from secure_fl.cli import deployed
from secure_fl.errors import LateMessageError, MalformedMessageError
from secure_fl.results.history import COLUMNS, history, write_csv
from secure_fl.results.record import StudyRecord
from secure_fl.rpc import operations_pb2 as pb
from secure_fl.study.settings import Study
from tests.report.test_report import study

STUDY = Study.parse({"study": {"name": "sepsis", "seed": 4711}})

Answer = Callable[[StudyRecord | None], None]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Let the coordinator answer with this record."""

    def use(record: StudyRecord | None) -> None:
        status = pb.StudyStatus(study_id=STUDY.id, rounds_done=3, rounds_planned=3, state="running")
        status.record = json.dumps(asdict(record)).encode() if record else b""
        monkeypatch.setattr(Operator, "__init__", lambda *_: None)
        monkeypatch.setattr(Operator, "call", lambda *_: (STUDY.id, status))

    return use


def record(**changes: Any) -> StudyRecord:
    """A running study's record, as the coordinator keeps it."""
    made = study(share="aggregate", outcome="running")
    return replace(made, **{"study_id": STUDY.id, "settings": STUDY.canonical().decode(), **changes})


def test_the_page_has_the_settings_and_what_to_do_next(answer: Answer, tmp_path: Path) -> None:
    answer(record())
    deployed.report(STUDY.id, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for expected in ("seed = 4711", f"secure-fl study status {STUDY.id}", "secure-fl run study.toml --nodes 4"):
        assert expected in page
    assert "10.0 s" in page  # four rounds of 2.5 s


def test_a_record_without_settings_is_still_a_report(answer: Answer, tmp_path: Path) -> None:
    answer(record(settings=""))
    deployed.report(STUDY.id, tmp_path / "report.html")
    assert "The study file" not in (tmp_path / "report.html").read_text()


Write = Callable[[str, Path], None]


@pytest.mark.parametrize("write", [deployed.report, deployed.history])
def test_nothing_is_written_before_the_first_round(answer: Answer, tmp_path: Path, write: Write) -> None:
    answer(None)
    with pytest.raises(LateMessageError, match="has not begun"):
        write(STUDY.id, tmp_path / "written")
    assert not list(tmp_path.iterdir())


def test_the_history_is_that_of_a_run_as_a_file_and_as_a_table(
    answer: Answer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(record())
    deployed.history(STUDY.id, tmp_path / "history.csv")
    assert capsys.readouterr().out == f"{tmp_path / 'history.csv'}: 3 of 3 rounds, running\n"
    write_csv(tmp_path / "expected.csv", history(record()))
    assert (tmp_path / "history.csv").read_bytes() == (tmp_path / "expected.csv").read_bytes()
    # Under "aggregate" no single site is in it.
    assert (tmp_path / "history.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    found = Operator().history(STUDY.id, tmp_path / "again.csv")
    assert list(found.columns) == list(COLUMNS)
    assert found["round"].tolist() == [row["round"] for row in history(record())]
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "expected.csv").read_bytes()
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert Operator().history(STUDY.id) == history(record())


@pytest.mark.parametrize("changes", [{"study_id": "5a" * 32}, {"settings": Study().canonical().decode()}])
@pytest.mark.parametrize("write", [deployed.report, deployed.history])
def test_another_study_is_refused(answer: Answer, tmp_path: Path, changes: dict[str, str], write: Write) -> None:
    answer(record(**changes))
    with pytest.raises(MalformedMessageError, match="another study"):
        write(STUDY.id, tmp_path / "written")
    assert not list(tmp_path.iterdir())
