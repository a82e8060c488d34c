"""What a simulation leaves, as Python sees it."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from secure_fl import tasks
from secure_fl.api.rows import Table, table
from secure_fl.counting import counted
from secure_fl.errors import SettingsError, StorageError, UnknownModelError
from secure_fl.hints import shown_hints
from secure_fl.results.history import COLUMNS, SITE_COLUMNS, Row, columns_of, history, site_history, write_csv
from secure_fl.results.record import StudyRecord
from secure_fl.results.wording import whose
from secure_fl.settings import nearest, require_known
from secure_fl.study.settings import Study

if TYPE_CHECKING:
    from torch import nn

GLOBAL = "global"
_NOT_MEASURED = ("round", "sites", "attempts", "seconds", "bytes_up", "bytes_down")  # of the columns of a history


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run:
    """A finished simulation. Everything in it is also in files of `folder`."""

    folder: Path
    study: Study
    record: StudyRecord
    summary: dict[str, Any]

    @classmethod
    @shown_hints()
    def open(cls, folder: str | Path) -> Self:
        """A run of before, by its output folder. Raises `StorageError` or `SettingsError` where there is none."""
        folder = Path(folder)
        if not (folder / "study.toml").is_file():
            raise SettingsError(
                f"{folder}: is no folder of a run",
                advice="give the output folder of a run: what was `out`, or a folder in runs/",
            )
        study = Study.read(folder / "study.toml")
        try:
            summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise StorageError(
                f"{folder}: there is no finished run here",
                advice="the same call with out= goes on with an unfinished one",
            ) from None
        record = folder / "coordinator" / "state" / "studies" / study.id / "record.json"
        return cls(folder=folder, study=study, record=StudyRecord.load(record), summary=summary)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites' names."""
        return self.record.roster

    @property
    def history(self) -> Table:
        """One row per round: the model after it, measured, and what it cost. Round 0 is the untrained model.

        A pandas DataFrame where pandas is installed, and a list of dicts elsewhere (`secure_fl/api/rows.py`).
        """
        return table(history(self.record), COLUMNS)

    @property
    def site_history(self) -> Table:
        """One row per round and site, in the same form; empty unless `metrics.share` is "per-node"."""
        return table(site_history(self.record), SITE_COLUMNS)

    @property
    def models(self) -> Models:
        """The models by name, each a torch module in evaluation mode: `models["global"]`, `models["site-01"]`."""
        return Models(self)

    @property
    def model(self) -> nn.Module:
        """The global model. Raises `SettingsError` where the strategy has none: then every site has its own."""
        return self.models[GLOBAL]

    @shown_hints()
    def ledger(self, site: str) -> Table:
        """What a site wrote down of everything it released, verified; one row per entry, in the form of `history`."""
        from secure_fl.privacy.ledger import read_site_ledger

        require_known("site", site, self.sites)
        path = self.folder / "nodes" / site / "ledger.jsonl"
        entries = read_site_ledger(path, authority=(self.folder / "ca.pem").read_bytes(), site=site)
        rows = [
            {"sequence": entry.sequence, "time": entry.time, "kind": entry.kind, **_shown(entry.facts)}
            for entry in entries
        ]
        return table(rows)

    def report(self, *, open_browser: bool = False) -> Path:
        """The page with everything in it; with `open_browser` it is opened."""
        path = self.folder / "report.html"
        if open_browser:
            webbrowser.open(path.resolve().as_uri())
        return path

    def to_csv(self, path: str | Path) -> Path:
        """Write the history as CSV. The run's folder has it already, as `history.csv`."""
        write_csv(Path(path), history(self.record))
        return Path(path)

    def __await__(self) -> Generator[None, None, Self]:
        """Itself, at once: `await simulate(...)` has waited already, and nothing else has run meanwhile."""
        yield from ()
        return self

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {value:.4f}" for name, value in self._figures().items())
        return (
            f"Run({self.record.study!r}, {self.record.strategy}, {counted(self.summary['rounds'], 'round')}, {figures})"
        )

    def _figures(self) -> dict[str, float]:
        wanted = ("mean_accuracy", "global_accuracy", "mean_mse")
        known = {**{name: self.summary.get(name) for name in wanted}, **self.summary["metrics"]}
        return {name: value for name, value in known.items() if value is not None}

    def _repr_html_(self) -> str:
        rows = history(self.record)
        there = [name for name in columns_of(rows, COLUMNS) if any(row.get(name) is not None for row in rows)]
        measured = [name for name in there if name not in _NOT_MEASURED]
        shown = [*measured, *(name for name in ("seconds",) if name in there)]
        head = "".join(f"<th>{escape(name)}</th>" for name in ("round", *shown))
        body = "".join(
            f"<tr><td>{row['round']}</td>{''.join(f'<td>{_number(row.get(name))}</td>' for name in shown)}</tr>"
            for row in rows
        )
        missing = ", ".join(self.summary["blocks_missing"])
        warning = f"<p><b>never opened: {escape(missing)}</b></p>" if missing else ""
        return (
            f"<p>{escape(repr(self))}</p>{warning}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{escape(whose(measured))}</p><p>{escape(str(self.report()))}</p>"
        )


class Models(Mapping[str, "nn.Module"]):
    """The models of a run, each loaded when it is asked for: the global one, where there is one, and each site's."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def path(self, name: str) -> Path:
        """The file of a model: a safetensors state dict."""
        if name == GLOBAL:
            return self._run.folder / "model.safetensors"
        return self._run.folder / "nodes" / name / "model.safetensors"

    @shown_hints()
    def __getitem__(self, name: str) -> nn.Module:
        from secure_fl.tasks.state_dict import read_model

        if name == GLOBAL and name not in tuple(self):
            raise SettingsError(
                f"strategy {self._run.record.strategy!r} has no global model",
                advice='every site has its own: run.models["site-01"]',
            )
        if name not in tuple(self):
            known = tuple(self)
            raise UnknownModelError("model", str(name), nearest=nearest(str(name), known), known=known)
        settings = self._run.study.task
        return read_model(self.path(name), tasks.create(settings.name, settings.settings))

    def __iter__(self) -> Iterator[str]:
        return (name for name in (GLOBAL, *self._run.sites) if self.path(name).exists())

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return f"Models({', '.join(self)})"


def _shown(facts: Mapping[str, Any]) -> Row:
    return {name: value for name, value in facts.items() if name != "certificate"}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
