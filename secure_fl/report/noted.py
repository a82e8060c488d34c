"""What the sites of a simulation noted for themselves: one chart per kind of note, one line per part of the model."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace

from secure_fl.report.contest import Contender, Measure, round_chart
from secure_fl.report.document import figure, section
from secure_fl.report.drawing import FRAMES
from secure_fl.report.text import error_text, escape, number
from secure_fl.study import Study
from secure_fl.traces import Traces

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
    return section("What the sites noted for themselves", lead, f'<div class="charts">{charts}</div>')


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
