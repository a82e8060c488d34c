"""Accuracy against what it cost: one line for each method, as an SVG file."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from secure_fl.report.contest import Contender
from secure_fl.report.drawing import (
    ALONE,
    Label,
    axis_title,
    labels,
    linear_axis,
    name_room,
    room_for,
    rules,
    svg,
)
from secure_fl.report.text import count, escape, percent

_LETTER = 8.2  # pixels of a bold letter


def curve_chart(
    curves: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], *, cost: str, per: float, unit: str
) -> str:
    """`curves` has a list of points for each method and seed; `cost` is what goes to the right, in `unit` of `per`.

    Over seeds, the points after the same number of measurements are averaged.
    """
    lines = {name: _mean_curve(seeds, cost, per) for name, seeds in curves.items()}
    frame = replace(ALONE, height=room_for(ALONE, len(lines)))
    right = frame.width - name_room(frame, list(lines), letter=_LETTER)
    points = [point for line in lines.values() for point in line]
    along = linear_axis(
        [0.0, *(x for x, _ in points)], frame.left + 6, right, text=lambda at, _: count(at), ceiling=None
    )
    axis = linear_axis([y for _, y in points], frame.height - frame.bottom, frame.top, text=percent, ceiling=1.0)
    across, up, y = along.scale, axis.scale, frame.height - frame.bottom + 18
    body = rules(frame, axis, right + 6)
    body += "".join(
        f'<text class="tick mid" x="{across(at):.1f}" y="{y}">{escape(text)}</text>' for at, text in along.ticks
    )
    body += axis_title(frame, across, f"{unit}; upwards: accuracy on the common test set")
    beside = []
    for colour, (name, line) in enumerate(lines.items()):
        css = Contender(name=name, colour=colour).css
        path = "M" + "L".join(f"{across(at):.1f} {up(value):.1f}" for at, value in line)
        last = f"{name}: {percent(line[-1][1])} after {count(line[-1][0])} {unit}"
        body += f'<g class="line many {css}"><title>{escape(last)}</title><path d="{path}"/></g>'
        beside.append(Label(name=name, x=across(line[-1][0]), y=up(line[-1][1]), css=f"series {css}"))
    told = ", ".join(f"{name} {percent(line[-1][1])}" for name, line in lines.items())
    return svg(frame, f"Accuracy against {unit}. At the end: {told}.", body + labels(frame, beside, right + 22, up))


def _mean_curve(seeds: Sequence[Sequence[Mapping[str, Any]]], cost: str, per: float) -> list[tuple[float, float]]:
    return [
        (statistics.fmean(each[cost] for each in at) / per, statistics.fmean(each["accuracy"] for each in at))
        for at in zip(*seeds, strict=False)  # A seed with a measurement more loses it.
    ]
