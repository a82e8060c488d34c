"""Live progress of `simulate`: in a notebook one output that changes, in a terminal a bar, elsewhere lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from secure_fl.events import Listener
from secure_fl.simulation.narrator import Narrator, Tone
from secure_fl.simulation.progress import RunProgress
from secure_fl.study.settings import Study

_SHOWN_LINES = 12
_BAR = 30


@contextmanager
def shown(study: Study, *, progress: bool) -> Iterator[Listener]:
    """A listener that shows a study's events while the context lasts."""
    rounds, buffered, by_sites = study.versions, study.rounds.is_buffered, study.rounds.by_sites
    if not progress:
        yield lambda _: None
    elif (display := _notebook_display()) is not None:
        yield NotebookProgress(rounds=rounds, buffered=buffered, by_sites=by_sites, display=display).listen
    else:
        with RunProgress(rounds=rounds, quiet=False, buffered=buffered, by_sites=by_sites) as bar:
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


class NotebookProgress(Narrator):
    """One output of a cell: a bar, what the study is doing, and the last lines below it. It needs no widgets."""

    def __init__(
        self, *, rounds: int, display: Callable[..., Any], buffered: bool = False, by_sites: bool = False
    ) -> None:
        super().__init__(rounds=rounds, buffered=buffered, by_sites=by_sites)
        self._done = 0
        self._now = "starting"
        self._lines: list[str] = []
        self._handle = display(self, display_id=True)

    def _advance(self, number: int) -> None:
        self._done = number
        self._shown()

    def _describe(self, text: str) -> None:
        self._now = text
        self._shown()

    def _say(self, text: str, _tone: Tone = "", /) -> None:
        self._lines = [*self._lines, text][-_SHOWN_LINES:]
        self._shown()

    def _shown(self) -> None:
        if self._handle is not None:
            self._handle.update(self)

    def __repr__(self) -> str:
        full = _BAR * self._done // max(self._rounds, 1)
        bar = "█" * full + "░" * (_BAR - full)
        return "\n".join([f"{bar} {self._done}/{self._rounds}  {self._now}", *self._lines])

    def _repr_html_(self) -> str:
        return f"<pre style='line-height:1.3'>{escape(repr(self))}</pre>"
