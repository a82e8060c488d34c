"""Where circles do not wait for each other: when each was merged, how old its turns were, how often it was heard."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import fmean

from secure_fl.report.charts import Bar, bar_chart
from secure_fl.report.document import figure, section
from secure_fl.report.drawing import FRAMES, Frame, Scale, axis_title, round_axis, svg
from secure_fl.report.text import DASH, duration, escape, fit
from secure_fl.results.record import CircleRound, StudyRecord
from secure_fl.rounds import RoundKind

_ROW = 18  # pixels of a circle's line
_MOST_AGES = 40  # bars; older turns are counted in the last one


def turns_section(record: StudyRecord) -> str:
    """Nothing for a study whose circles go round by round."""
    merged = [
        (entry.number, circle) for entry in record.rounds if entry.kind is RoundKind.TRAIN for circle in entry.circles
    ]
    merged = [(version, circle) for version, circle in merged if circle.turn is not None]
    if not merged:
        return ""
    names = sorted({circle.members for _, circle in merged})
    place = {members: index for index, members in enumerate(names, 1)}
    timeline = "".join(_timeline(frame, merged, place) for frame in FRAMES)
    ages = "".join(_ages(frame, [circle for _, circle in merged]) for frame in FRAMES)
    charts = figure("Which circle made which version", timeline) + figure("How many versions old turns were", ages)
    return section(
        "Turns of circles",
        "A circle trains from the newest version when it is free, and is merged when its last site has uploaded.",
        f'<div class="charts">{charts}</div>{_table(merged, place)}',
    )


def _timeline(frame: Frame, merged: list[tuple[int, CircleRound]], place: dict[tuple[str, ...], int]) -> str:
    """A line per circle: from the version that a turn began from to the one that it made."""
    frame = replace(frame, height=frame.top + frame.bottom + _ROW * (len(place) + 1))
    last = max(version for version, _ in merged)
    across = Scale(low=0, high=last, start=frame.left + 6, end=frame.width - frame.right)
    body = round_axis(frame, across, 0, last) + axis_title(frame, across, "version")
    for members, index in place.items():
        y = frame.top + _ROW * index
        body += f'<text class="tick end" x="{frame.left - 8}" y="{y + 4}">{index}</text>'
        for version, circle in merged:
            if circle.members == members:
                words = f"version {version}: turn {circle.turn} of circle {index}, begun from version {circle.base}"
                begun = across(circle.base if circle.base is not None else version)
                body += (
                    f'<g class="line own"><title>{escape(words)}</title>'
                    f'<path d="M{begun:.1f} {y}L{across(version):.1f} {y}"/>'
                    f'<circle cx="{across(version):.1f}" cy="{y}" r="3.2"/></g>'
                )
    return svg(frame, f"{len(merged)} turns of {len(place)} circles made {last} versions.", body)


def _ages(frame: Frame, circles: list[CircleRound]) -> str:
    tally = Counter(min(circle.staleness or 0, _MOST_AGES) for circle in circles)
    bars = [
        Bar(
            tip=f"{tally[age]} turns were {age}{' or more' * (age == _MOST_AGES)} versions old",
            tick=str(age),
            above=tally[age],
        )
        for age in range(max(tally) + 1)
    ]
    label = f"Turns were 0 to {max(tally)} versions old when they were merged."
    return bar_chart(frame, bars, text=lambda value: f"{value:g}", label=label, across="versions old")


def _table(merged: list[tuple[int, CircleRound]], place: dict[tuple[str, ...], int]) -> str:
    rows = []
    for members, index in place.items():
        mine = [circle for _, circle in merged if circle.members == members]
        ages = [circle.staleness or 0 for circle in mine]
        seconds = [circle.seconds for circle in mine if circle.seconds is not None]
        rows.append(
            f'<tr><th scope="row">{index}</th><td class="words">{escape(fit(", ".join(members), 60))}</td>'
            f"<td>{len(mine)}</td><td>{len(mine) / len(merged):.0%}</td><td>{fmean(ages):.1f}</td><td>{max(ages)}</td>"
            f"<td>{duration(fmean(seconds)) if seconds else DASH}</td></tr>"
        )
    heads = ("Circle", "Sites", "Turns merged", "Of all turns", "Mean age", "Oldest", "Mean time of a turn")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return (
        '<div class="scroll" role="region" aria-label="Turns of each circle" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
