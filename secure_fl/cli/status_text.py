"""What `secure-fl study status` says: how far a study is, whom it waits for and why, and how well its model does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from secure_fl.api.measured import with_own_metrics
from secure_fl.operations.waiting import ended_words, site_words, waiting_words
from secure_fl.results.record import RoundRecord, StudyRecord
from secure_fl.results.wording import ALL_ROWS, OVER_SITES
from secure_fl.rounds import RoundKind
from secure_fl.rpc import operations_pb2 as pb
from secure_fl.simulation.turn_progress import standing

_SHOWN = 12  # rounds, the last ones


def tell(study: pb.StudyStatus) -> None:
    """One study, for people."""
    typer.echo(f"{study.name} {study.study_id}")
    owner = f", submitted by {study.owner}" if study.owner else ""
    circles = _circles(study)
    unit = "versions" if circles else "rounds"
    typer.echo(f"  {study.state}{_reason(study)}, {study.rounds_done} of {study.rounds_planned} {unit}{owner}")
    for line in (*circles, *waiting_words(study)):
        typer.echo(f"  {line}")
    table = Table("site", "connected", "takes part", "why not", box=SIMPLE_HEAD, pad_edge=False)
    for site in study.sites:
        table.add_row(escape(site.name), _yes(site.connected), _yes(site.accepted), escape(site_words(site) or "–"))
    console = Console()
    console.print(table)
    if study.record:
        record = with_own_metrics(StudyRecord.from_json(json.loads(study.record)))
        _tell_rounds(record, console, buffered=bool(circles))


def words(study: pb.StudyStatus) -> dict[str, Any]:
    """The same sentences, for `--json`."""
    return {
        "waiting": list(waiting_words(study)),
        "ended": ended_words(study),
        "why_not": {site.name: said for site in study.sites if (said := site_words(site))},
    }


def _circles(study: pb.StudyStatus) -> list[str]:
    """Of a buffered study, where each circle is."""
    if not study.record:
        return []
    absent = [site.name for site in study.sites if not (site.connected and site.accepted)]
    return standing(StudyRecord.from_json(json.loads(study.record)), absent=absent)


def _reason(study: pb.StudyStatus) -> str:
    said = ended_words(study)
    return f" ({study.reason}: {said})" if study.reason and said != study.reason else f" ({said})" if said else ""


def _tell_rounds(record: StudyRecord, console: Console, *, buffered: bool) -> None:
    if not record.rounds:
        return
    measured = [name for name in _MEASURES if any(getattr(entry, name) is not None for entry in record.rounds)]
    own = list(dict.fromkeys(name for entry in record.rounds for name in entry.metrics))
    if not measured and not own:
        typer.echo("  no measurement is shared ([metrics] share of the study)")
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in (
        "version" if buffered else "round",
        *(_MEASURES[name] for name in measured),
        *(escape(name.replace("_", " ")) for name in own),
        "sites",
        "attempts",
    ):
        # Headings break between words and never within one.
        table.add_column(heading, min_width=max(map(len, heading.split())))
    for entry in record.rounds[-_SHOWN:]:
        values = (*(getattr(entry, name) for name in measured), *(entry.metrics.get(name) for name in own))
        table.add_row(_name(entry), *map(_number, values), *_took_part(entry))
    console.print(table)
    if measured:
        typer.echo(
            f"  accuracies, losses and errors: {OVER_SITES}" + (f"; {', '.join(own)}: {ALL_ROWS}" if own else "")
        )
    if measured or own:
        when = "by each site on the version that it trained from" if buffered else "on the model before each round"
        typer.echo(f"  measured {when}, and at the end on the finished one")


_MEASURES = {
    "mean_accuracy": "mean accuracy",
    "global_accuracy": "accuracy of the shared model",
    "mean_loss": "mean loss",
    "mean_mse": "mean squared error",
}


def _name(entry: RoundRecord) -> str:
    return "end" if entry.kind is RoundKind.EVALUATE else str(entry.number)


def _took_part(entry: RoundRecord) -> Sequence[str]:
    return f"{len(entry.cohort)} of {len(entry.nodes)}", str(entry.attempts)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
