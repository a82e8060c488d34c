"""Live progress of a run in a terminal: a bar, and a line for every committed round."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from secure_fl.simulation.narrator import Narrator, Tone


class RunProgress(Narrator):
    """Listens to the coordinator's events and shows them on standard error."""

    def __init__(self, *, rounds: int, quiet: bool, buffered: bool = False, by_sites: bool = False) -> None:
        super().__init__(rounds=rounds, buffered=buffered, by_sites=by_sites)
        self._console = Console(stderr=True)
        self._quiet = quiet
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=quiet or not self._console.is_terminal,
        )
        self._bar = self._progress.add_task("starting", total=rounds)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _advance(self, number: int) -> None:
        self._progress.update(self._bar, completed=number)

    def _describe(self, text: str) -> None:
        self._progress.update(self._bar, description=escape(text))

    def _say(self, text: str, tone: Tone = "", /) -> None:
        if not self._quiet:
            self._progress.console.print(text, style=tone, markup=False, highlight=False, soft_wrap=True)
