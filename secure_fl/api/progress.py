"""Live progress of `simulate`: in a notebook one output that changes, in a terminal a bar, elsewhere lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from secure_fl.events import Event, Listener, NodeDied, Refused, RoundCommitted, RoundVoid
from secure_fl.rounds import RoundKind
from secure_fl.simulation.progress import RunProgress, describe_round
from secure_fl.study.settings import Study

_SHOWN_LINES = 12
_BAR = 30


@contextmanager
def shown(study: Study, *, progress: bool) -> Iterator[Listener]:
    """A listener that shows a study's events while the context lasts."""
    rounds, buffered = study.versions, study.rounds.is_buffered
    if not progress:
        yield lambda _: None
    elif (display := _notebook_display()) is not None:
        yield NotebookProgress(rounds=rounds, buffered=buffered, display=display).listen
    else:
        with RunProgress(rounds=rounds, quiet=False, buffered=buffered, by_sites=study.rounds.by_sites) as bar:
            yield bar.listen


def _notebook_display() -> Callable[..., Any] | None:
    """IPython's `display`, in a notebook's kernel alone. Nobody else is made to import IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    found: Callable[..., Any] = display
    return found


class NotebookProgress:
    """One output of a cell: a bar, and the last few rounds below it. It needs no widgets."""

    def __init__(self, *, rounds: int, display: Callable[..., Any], buffered: bool = False) -> None:
        self._rounds = rounds
        self._buffered = buffered
        self._done = 0
        self._lines: list[str] = []
        self._handle = display(self, display_id=True)

    def listen(self, event: Event) -> None:
        """Show one event, if it is one that a person waits for."""
        match event:
            case RoundCommitted(record=record):
                self._done = record.number if record.kind is RoundKind.TRAIN else self._rounds
                self._say(describe_round(record, planned=self._rounds, buffered=self._buffered))
            case Refused(node=node, reason=reason):
                self._say(f"{node} refuses the study: {reason}")
            case NodeDied(node=node, exit_code=code):
                self._say(f"{node} left with exit code {code}")
            case RoundVoid(round=number, attempt=attempt, reason=reason):
                self._say(f"round {number}, attempt {attempt} failed: {reason}")

    def _say(self, line: str) -> None:
        self._lines = [*self._lines, line][-_SHOWN_LINES:]
        if self._handle is not None:
            self._handle.update(self)

    def __repr__(self) -> str:
        full = _BAR * self._done // max(self._rounds, 1)
        bar = "█" * full + "░" * (_BAR - full)
        return "\n".join([f"{bar} {self._done}/{self._rounds}", *self._lines])

    def _repr_html_(self) -> str:
        return f"<pre style='line-height:1.3'>{escape(repr(self))}</pre>"
