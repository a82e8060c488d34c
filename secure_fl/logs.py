"""Logging for both processes: one line per event, as text or JSON, safe against hostile names."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

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


@contextmanager
def into_file(path: Path) -> Iterator[None]:
    """Log to a file for a while, then as before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {noisy: logging.getLogger(noisy).level for noisy in _NOISY}
    with path.open("a", encoding="utf-8") as stream:
        configure(level="info", style="text", stream=stream)
        try:
            yield
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
            for noisy, before in levels.items():
                logging.getLogger(noisy).setLevel(before)


def _one_line(text: str) -> str:
    """Control characters escaped, so that nobody writes a second log line."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        subject = "".join(f" {key}={str(value)[:12]}" for key, value in _subject.get().items())
        line = f"{moment} {record.levelname.lower():7} {record.name}{subject}: {_one_line(record.getMessage())}"
        if not record.exc_info:
            return line
        # Indented: the text of an exception may be somebody else's, and must not look like an event of its own.
        traceback = self.formatException(record.exc_info).split("\n")
        return "\n".join((line, *(f"    {_one_line(part)}" for part in traceback)))


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
