"""What the sites of a simulation noted for themselves: a chart per kind of note, a line per part of the model.

Below them what each site noted last.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from secure_fl.report.contest import Contender, Measure, round_chart
from secure_fl.report.document import figure, section
from secure_fl.report.drawing import FRAMES
from secure_fl.report.tables import data_table
from secure_fl.report.text import decimal, error_text, escape, number
from secure_fl.results.traces import Traces
from secure_fl.study.settings import Study

_FRAMES = (replace(FRAMES[0], columns=18), *FRAMES[1:])


def notes_section(notes: Mapping[str, Mapping[int, Traces]], study: Study | None) -> str:
    """Means over the sites that noted something, round by round; nothing where no site did."""
    meanings = study.make_strategy().notes if study else {}
    kinds = sorted({kind for rounds in notes.values() for traces in rounds.values() for kind in traces})
    charts = ""
    for kind in kinds:
        contenders = _contenders(notes, kind)
        if contenders:
            measure = Measure(name=kind, text=error_text)
            drawn = "".join(round_chart(frame, contenders, measure) for frame in _FRAMES)
            meaning = f"<span>{escape(meanings[kind])}</span>" if kind in meanings else ""
            charts += figure(escape(kind), drawn, meaning)
    if not charts:
        return ""
    lead = (
        "Mean over the sites; the band goes from the lowest to the highest. Each site keeps these numbers in its own"
        " folder (traces.jsonl) and sends them to nobody; they are shown because one person runs all the sites here."
    )
    body = f'<div class="charts">{charts}</div>{_last(notes, kinds)}'
    return section("What the sites noted for themselves", lead, body)


def _last(notes: Mapping[str, Mapping[int, Traces]], kinds: Sequence[str]) -> str:
    """A row per site: what it noted last, a column per kind and part."""
    latest: dict[str, dict[tuple[str, str], float]] = {}
    for site, rounds in sorted(notes.items()):
        for at, kind in product(sorted(rounds), kinds):
            values = rounds[at].get(kind, {})
            latest.setdefault(site, {}).update({(kind, part): value for part, value in values.items()})
    columns = sorted(
        dict.fromkeys(one for values in latest.values() for one in values), key=lambda one: kinds.index(one[0])
    )
    rows = [
        f'<th scope="row">{escape(site)}</th>' + "".join(f"<td>{decimal(values.get(one))}</td>" for one in columns)
        for site, values in latest.items()
    ]
    heads = ("Last noted", *(f"{escape(kind)} {escape(part)}" for kind, part in columns))
    return data_table("What each site noted last", heads, rows, css="tall")


def _contenders(notes: Mapping[str, Mapping[int, Traces]], kind: str) -> list[Contender]:
    gathered: dict[str, dict[int, list[float]]] = {}
    for rounds in notes.values():
        for at, traces in rounds.items():
            for part, value in traces.get(kind, {}).items():
                if number(value) is not None:
                    gathered.setdefault(part, {}).setdefault(at, []).append(value)
    return [
        Contender(
            name=part,
            colour=colour,
            curve=tuple((at, statistics.fmean(seen), min(seen), max(seen)) for at, seen in sorted(by.items())),
            value=statistics.fmean(by[max(by)]),
        )
        for colour, (part, by) in enumerate(gathered.items())
    ]
