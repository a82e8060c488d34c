"""One event is one line, whoever chose the words in it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from secure_fl import logs

HOSTILE = "north\n2026-01-01T00:00:00 info forged\r\x1b[31m\u2028\x85\x00"


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    """Logging is the process's own: give it back as it was."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    noisy = {name: logging.getLogger(name).level for name in ("alembic", "grpc", "asyncio")}
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    for name, before in noisy.items():
        logging.getLogger(name).setLevel(before)


def logged(style: str, level: str = "info") -> str:
    stream = io.StringIO()
    logs.configure(level=level, style=style, stream=stream)
    log = logging.getLogger("secure_fl.test")
    log.debug("unheard")
    log.warning("%s connected", HOSTILE)
    return stream.getvalue()


def test_text_is_one_line_without_control_characters() -> None:
    text = logged("text")
    assert text.splitlines() == [text[:-1]]
    assert text[:-1].isprintable()
    assert "\\n2026" in text
    assert " warning secure_fl.test: north" in text


def test_json_is_one_object_with_the_message_as_it_was() -> None:
    text = logged("json")
    assert text.splitlines() == [text[:-1]]
    fields = json.loads(text)
    assert (fields["level"], fields["logger"], fields["message"]) == (
        "warning",
        "secure_fl.test",
        f"{HOSTILE} connected",
    )


@pytest.mark.parametrize(("level", "heard"), [("debug", 2), ("warning", 1), ("error", 0)])
def test_levels(level: str, heard: int) -> None:
    assert len(logged("text", level).splitlines()) == heard


@pytest.mark.parametrize("style", ["text", "json"])
def test_an_unexpected_error_keeps_its_traceback_at_home(style: str) -> None:
    stream = io.StringIO()
    logs.configure(level="info", style=style, stream=stream)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("secure_fl.test").exception("failed")
    assert "ValueError: why" in stream.getvalue()
    if style == "json":
        assert "ValueError: why" in json.loads(stream.getvalue())["traceback"]


def about(style: str) -> str:
    stream = io.StringIO()
    logs.configure(level="info", style=style, stream=stream)
    log = logging.getLogger("secure_fl.test")
    with logs.about(study="ab" * 32):
        with logs.about(round=3):
            log.info("inner")
        log.info("outer")
    log.info("outside")
    return stream.getvalue()


def test_text_says_which_study_and_round() -> None:
    inner, outer, outside = about("text").splitlines()
    assert inner.endswith("secure_fl.test study=abababababab round=3: inner")
    assert outer.endswith("secure_fl.test study=abababababab: outer")
    assert outside.endswith("secure_fl.test: outside")


def test_json_has_study_and_round_as_fields() -> None:
    inner, outer, outside = map(json.loads, about("json").splitlines())
    assert (inner["study"], inner["round"]) == ("ab" * 32, 3)
    assert (outer["study"], "round" in outer) == ("ab" * 32, False)
    assert "study" not in outside


def test_a_task_inherits_what_it_is_about() -> None:
    stream = io.StringIO()
    logs.configure(level="info", style="text", stream=stream)

    async def work() -> None:
        await asyncio.sleep(0)
        logging.getLogger("secure_fl.test").info("done")

    async def run() -> None:
        with logs.about(study="cd" * 32):
            task = asyncio.create_task(work())
        await task

    asyncio.run(run())
    assert "study=cdcdcdcdcdcd: done" in stream.getvalue()


def test_the_text_of_an_exception_does_not_look_like_an_event() -> None:
    stream = io.StringIO()
    logs.configure(level="info", style="text", stream=stream)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("secure_fl.test").exception("failed")
    event, *traceback = stream.getvalue().removesuffix("\n").split("\n")
    assert event.endswith("error   secure_fl.test: failed")
    assert any("info forged" in line for line in traceback)
    assert all(line.startswith("    ") and line.isprintable() for line in traceback)


# --- within somebody else's process -------------------------------------------------------------------------------

OURS = ("secure_fl.test", "node.test", "coordinator.test")


def _loggers() -> list[tuple[int, list[logging.Handler], bool]]:
    names = (None, "secure_fl", "node", "coordinator", "alembic", "asyncio", "grpc")
    return [(log.level, log.handlers[:], log.propagate) for log in map(logging.getLogger, names)]


def test_only_what_this_product_logs_goes_into_the_file(tmp_path: Path) -> None:
    heard = io.StringIO()
    logs.configure(level="info", style="text", stream=heard)
    mine, before = logging.getLogger("notebook"), _loggers()
    with logs.into_file(tmp_path / "run.log"):
        for name in OURS:
            logging.getLogger(name).info("of the run")
        logging.getLogger("alembic.runtime").info("a migration")
        mine.info("of the notebook")
    assert _loggers() == before
    logging.getLogger(OURS[0]).info("afterwards")
    assert [line.rsplit(": ", 1)[1] for line in heard.getvalue().splitlines()] == ["of the notebook", "afterwards"]
    assert (tmp_path / "run.log").read_text().count("of the run\n") == len(OURS)
    assert len((tmp_path / "run.log").read_text().splitlines()) == len(OURS)


@pytest.mark.parametrize("first_to_end", ["one", "two"])
def test_files_that_overlap_have_their_own_lines_and_leave_logging_as_it_was(tmp_path: Path, first_to_end: str) -> None:
    heard = io.StringIO()
    logs.configure(level="info", style="text", stream=heard)
    log, before = logging.getLogger(OURS[0]), _loggers()

    async def run(name: str, begun: asyncio.Event, end: asyncio.Event) -> None:
        with logs.into_file(tmp_path / name):
            begun.set()
            await end.wait()
            log.info("of %s", name)
            await asyncio.to_thread(log.info, "of %s", name)

    async def both() -> None:
        begun, ends = (asyncio.Event(), asyncio.Event()), {"one": asyncio.Event(), "two": asyncio.Event()}
        runs = {name: asyncio.create_task(run(name, at, ends[name])) for name, at in zip(ends, begun, strict=True)}
        await asyncio.gather(*(each.wait() for each in begun))
        log.info("of neither")
        last = {"one": "two", "two": "one"}[first_to_end]
        for name in (first_to_end, last):
            ends[name].set()
            await runs[name]

    asyncio.run(both())
    assert _loggers() == before
    for name in ("one", "two"):
        said = [line.rsplit(": ", 1)[1] for line in (tmp_path / name).read_text().splitlines()]
        assert said == ["of neither", f"of {name}", f"of {name}"]
    log.info("afterwards")
    assert heard.getvalue().endswith("afterwards\n")
    assert len(heard.getvalue().splitlines()) == 1


def test_files_within_files(tmp_path: Path) -> None:
    before, log = _loggers(), logging.getLogger(OURS[0])
    with logs.into_file(tmp_path / "outer"):
        with logs.into_file(tmp_path / "inner"):
            log.info("within")
        log.info("without")
    assert _loggers() == before
    assert (tmp_path / "inner").read_text().splitlines()[0].endswith("within")
    assert [line.rsplit(": ", 1)[1] for line in (tmp_path / "outer").read_text().splitlines()] == ["without"]


def test_a_line_that_comes_late_is_not_written_to_a_closed_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with logs.into_file(tmp_path / "run.log"):
        (handler,) = logging.getLogger("secure_fl").handlers
    handler.handle(logging.makeLogRecord({"msg": "late"}))
    assert capsys.readouterr().err == ""
