"""Logging for both processes: one line per event, as text or JSON, safe against hostile names."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from secure_fl.errors import one_line

_NOISY = ("alembic", "grpc", "asyncio")

_subject: ContextVar[dict[str, str | int]] = ContextVar("subject", default={})  # noqa: B039 - never changed in place


@contextmanager
def about(**subject: str | int) -> Iterator[None]:
    """Every line logged inside says what it is about: `about(study=…, round=…)`. Tasks started inside inherit it."""
    token = _subject.set({**_subject.get(), **subject})
    try:
        yield
    finally:
        _subject.reset(token)


def configure(*, level: str, style: str, stream: TextIO | None = None) -> None:
    """Send everything of this product to `stream` (standard error by default)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines() if style == "json" else _TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)


# --- within somebody else's process ---------------------------------------------------------------------------------

# What a run in this process logs. The root logger, and all others, are whoever's process it is.
_OURS = {"secure_fl": logging.INFO, "node": logging.INFO, "coordinator": logging.INFO, "alembic": logging.WARNING}


@contextmanager
def into_file(path: Path) -> Iterator[None]:
    """What this product logs goes to a file for a while, and nowhere else; then as before.

    Several may be open at once: each has the lines of what was started inside it, and those that belong to none.
    """
    with path.open("a", encoding="utf-8") as stream:
        lines = _FileLines(stream)
        _attach(lines)
        token = _owner.set(lines)
        try:
            yield
        finally:
            _owner.reset(token)
            _detach(lines)


class _FileLines(logging.StreamHandler[TextIO]):
    """The lines of one run."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.setFormatter(_TextLines())
        self.addFilter(self._mine)

    def _mine(self, _: logging.LogRecord) -> bool:
        owner = _owner.get()
        return owner is self or owner is None

    def emit(self, record: logging.LogRecord) -> None:
        if self in _open:  # Another thread may have been about to write when the run ended.
            super().emit(record)


_owner: ContextVar[_FileLines | None] = ContextVar("owner", default=None)
_attaching = threading.Lock()
_open: list[_FileLines] = []
_before: dict[str, tuple[list[logging.Handler], int, bool]] = {}


def _attach(lines: _FileLines) -> None:
    with _attaching:
        for name, level in _OURS.items():
            logger = logging.getLogger(name)
            if not _open:
                _before[name] = (logger.handlers[:], logger.level, logger.propagate)
                logger.handlers[:] = []
                logger.setLevel(level)
                logger.propagate = False
            logger.addHandler(lines)
        _open.append(lines)


def _detach(lines: _FileLines) -> None:
    with _attaching:
        with lines.lock or nullcontext():  # nobody writes to a file that is closed next
            _open.remove(lines)
        for name, (handlers, level, propagate) in _before.items():
            logger = logging.getLogger(name)
            logger.removeHandler(lines)
            if not _open:
                logger.handlers[:] = handlers
                logger.setLevel(level)
                logger.propagate = propagate
    lines.close()


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        subject = "".join(f" {key}={str(value)[:12]}" for key, value in _subject.get().items())
        line = f"{moment} {record.levelname.lower():7} {record.name}{subject}: {one_line(record.getMessage())}"
        if not record.exc_info:
            return line
        # Indented: the text of an exception may be somebody else's, and must not look like an event of its own.
        traceback = self.formatException(record.exc_info).split("\n")
        return "\n".join((line, *(f"    {one_line(part)}" for part in traceback)))


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, str | int] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **_subject.get(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)
