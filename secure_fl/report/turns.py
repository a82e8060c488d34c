"""Where circles do not wait for each other: who uploaded when, how old turns were, what it cost, who was heard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from secure_fl.report.against import Curve, Row, Span, against, in_units, timeline
from secure_fl.report.charts import Bar, bar_chart
from secure_fl.report.document import figure, section
from secure_fl.report.drawing import FRAMES, Frame, Scale, axis_title, round_axis, svg
from secure_fl.report.tables import data_table
from secure_fl.report.text import DASH, count, duration, error_text, escape, fit, percent, size
from secure_fl.results.record import CircleRound, RoundRecord, StudyRecord
from secure_fl.results.turns import block_bytes, circle_turns, measured_version, merged_turns, site_shares
from secure_fl.rounds import RoundKind

_ROW = 18  # pixels of a circle's line
_MOST_AGES = 40  # bars; older turns are counted in the last one
_MOST_SITES = 32  # rows of a timeline; with more of them, only circles have one
_MOST_BLOCKS = 60  # bars

_Merged = Sequence[tuple[RoundRecord, CircleRound]]
_Places = dict[tuple[str, ...], int]  # the number of each circle on this page


def turns_section(record: StudyRecord, *, regression: bool = False) -> str:
    """Nothing for a study whose circles go round by round."""
    merged = merged_turns(record)
    if not merged:
        return ""
    place = {circle.members: index for index, circle in enumerate(circle_turns(record), 1)}
    drawn = [
        figure("Uploads and flushes", _timeline(merged, place)),
        figure("Which circle made which version", "".join(_versions(frame, merged, place) for frame in FRAMES)),
        figure("How many versions old turns were", "".join(_ages(frame, [t for _, t in merged]) for frame in FRAMES)),
        *_against(record, place, regression=regression),
        _block_figure(record),
    ]
    charts = "".join(each for each in drawn if each)
    note = (
        "A circle trains from the newest version when it is free, and is merged when its last site has uploaded."
        " A point of accuracy or error is what the sites of one circle measured on the version that they began from."
    )
    title = "Turns of circles"
    if all(len(members) == 1 for members in place):
        title = "Sites at their own pace"
        note = (
            "Each circle here is one site. It trains from the newest version when it is free, and its work enters the"
            " first version that is made after it is done."
        )
    tables = _circle_table(record, place) + _site_table(record, place) + _block_table(record)
    return section(title, note, f'<div class="charts">{charts}</div>{tables}')


# --- when -------------------------------------------------------------------------------------------------


def _timeline(merged: _Merged, place: _Places) -> str:
    """A line per circle, whose marks are flushes, and below it one per site, whose dots are uploads."""
    began = [turn.began for _, turn in merged if turn.began is not None]
    if not began:
        return '<p class="empty">The record has no times.</p>'
    zero = min(began)
    rows: list[Row] = []
    few = sum(map(len, place)) <= _MOST_SITES
    for members, index in place.items():
        mine = [(entry, turn) for entry, turn in merged if turn.members == members]
        rows.append(Row(name=f"circle {index}", spans=_flushes(mine, index, zero), strong=True))
        if few:
            rows += [Row(name=site, spans=_uploads(mine, site, zero)) for site in members]
    label = f"{len(merged)} turns of {len(place)} circles: when each began, when sites uploaded, when it was merged."
    return "".join(timeline(frame, rows, label=label) for frame in FRAMES)


def _flushes(mine: _Merged, index: int, zero: float) -> tuple[Span, ...]:
    return tuple(
        Span(
            start=max(0.0, turn.began - zero),
            end=max(0.0, turn.began - zero, entry.committed - zero),  # A clock may have been set back.
            tip=f"turn {turn.turn} of circle {index}: version {entry.number} after {duration(entry.committed - zero)}",
        )
        for entry, turn in mine
        if turn.began is not None and entry.committed is not None
    )


def _uploads(mine: _Merged, site: str, zero: float) -> tuple[Span, ...]:
    spans = []
    for entry, turn in mine:
        came = next((node.uploaded for node in entry.nodes if node.name == site), None)
        if turn.began is not None and came is not None:
            start = max(0.0, turn.began - zero)
            tip = f"{site} uploaded turn {turn.turn} after {duration(came - zero)}"
            spans.append(Span(start=start, end=max(start, came - zero), tip=tip))
    return tuple(spans)


def _versions(frame: Frame, merged: _Merged, place: _Places) -> str:
    """A line per circle: from the version that a turn began from to the one that it made."""
    frame = replace(frame, height=frame.top + frame.bottom + _ROW * (len(place) + 1))
    last = max(entry.number for entry, _ in merged)
    across = Scale(low=0, high=last, start=frame.left + 6, end=frame.width - frame.right)
    body = round_axis(frame, across, 0, last) + axis_title(frame, across, "version")
    for members, index in place.items():
        y = frame.top + _ROW * index
        body += f'<text class="tick end" x="{frame.left - 8}" y="{y + 4}">{index}</text>'
        for entry, turn in merged:
            if turn.members == members:
                words = f"version {entry.number}: turn {turn.turn} of circle {index}, begun from version {turn.base}"
                begun = across(turn.base if turn.base is not None else entry.number)
                body += (
                    f'<g class="line own"><title>{escape(words)}</title>'
                    f'<path d="M{begun:.1f} {y}L{across(entry.number):.1f} {y}"/>'
                    f'<circle cx="{across(entry.number):.1f}" cy="{y}" r="3.2"/></g>'
                )
    return svg(frame, f"{len(merged)} turns of {len(place)} circles made {last} versions.", body)


def _aged(turns: int, age: int) -> str:
    """So many turns were so many versions old."""
    were = "turn was" if turns == 1 else "turns were"
    more, versions = " or more" * (age == _MOST_AGES), "version" if age == 1 else "versions"
    return f"{turns} {were} {age}{more} {versions} old"


def _ages(frame: Frame, circles: list[CircleRound]) -> str:
    tally = Counter(min(circle.staleness or 0, _MOST_AGES) for circle in circles)
    bars = [
        Bar(
            tip=_aged(tally[age], age),
            tick=str(age),
            above=tally[age],
        )
        for age in range(max(tally) + 1)
    ]
    label = f"Turns were 0 to {max(tally)} versions old when they were merged."
    return bar_chart(frame, bars, text=lambda value: f"{value:g}", label=label, across="versions old")


# --- what it cost -----------------------------------------------------------------------------------------


def _against(record: StudyRecord, place: _Places, *, regression: bool) -> list[str]:
    """The measure against what was sent until the measured version was made, and against when it was made."""
    training = [entry for entry in record.rounds if entry.kind is RoundKind.TRAIN]
    sent = [0.0, *accumulate(float(entry.bytes_up) for entry in training)]
    began = [turn.began for _, turn in merged_turns(record) if turn.began is not None]
    when = [0.0, *(max(0.0, (entry.committed or 0.0) - min(began)) for entry in training)] if began else []
    title, text, ceiling = ("Error (MSE)", error_text, None) if regression else ("Accuracy", percent, 1.0)
    figures = []
    for what, along in (("bytes sent", sent), ("time", when)):
        curves = _curves(record, place, along, regression=regression)
        if not curves or not max(at for curve in curves for at, *_ in curve.points) > 0:
            continue
        unit, name = in_units(max(along))
        drawn = "".join(
            against(
                frame,
                curves,
                across="sent by all sites" if what == "bytes sent" else "since the first turn began",
                written=size if what == "bytes sent" else lambda at, u=unit, n=name: f"{at / u:.3g} {n}",  # type: ignore[misc]
                text=text,
                ceiling=ceiling,
                label=f"{title} against {what}: lines of {len(curves)} circles.",
            )
            for frame in FRAMES
        )
        figures.append(figure(f"{title} against {what}", drawn))
    return figures


def _curves(record: StudyRecord, place: _Places, along: Sequence[float], *, regression: bool) -> list[Curve]:
    found: dict[str, list[tuple[int, float]]] = {}
    for entry in record.rounds:
        name, value = _measured(entry, place, regression=regression)
        if value is not None and measured_version(entry) < len(along):
            found.setdefault(name, []).append((measured_version(entry), value))
    text = error_text if regression else percent
    return [
        Curve(
            name=name,
            points=tuple(
                (along[version], value, f"{name}: {text(value, 2)} with version {version}")
                for version, value in sorted(points)
            ),
        )
        for name, points in sorted(found.items())
    ]


def _measured(entry: RoundRecord, place: _Places, *, regression: bool) -> tuple[str, float | None]:
    """Whose measurement a version has."""
    value = entry.mean_mse if regression else entry.mean_accuracy
    if entry.kind is RoundKind.EVALUATE:
        return "all sites", value
    indices = sorted(place[turn.members] for turn in entry.circles if turn.opened and turn.members in place)
    return (f"circle {indices[0]}" if len(indices) == 1 else "several"), value


def _block_figure(record: StudyRecord) -> str:
    sent = block_bytes(record)
    if not any(sent.values()) or len(sent) > _MOST_BLOCKS:
        return ""
    bars = [
        Bar(tip=f"{name}: {size(bytes_)}", tick=str(place), above=bytes_)
        for place, (name, bytes_) in enumerate(sent.items(), 1)
    ]
    label = f"Bytes sent of each block; all together {size(sum(sent.values()))}."
    drawn = "".join(bar_chart(frame, bars, text=size, label=label, across="block") for frame in FRAMES)
    return figure("Bytes sent of each block", drawn)


def _block_table(record: StudyRecord) -> str:
    sent = block_bytes(record)
    total = sum(sent.values())
    if not total:
        return ""
    merged = merged_turns(record)
    rows = []
    for place, (name, bytes_) in enumerate(sent.items(), 1):
        turns = sum(not turn.asked or name in turn.asked for _, turn in merged)
        rows.append(
            f'<th scope="row">{place}</th><td class="words">{escape(fit(name, 60))}</td>'
            f"<td>{count(record.blocks[name])}</td><td>{turns} of {len(merged)}</td>"
            f"<td>{size(bytes_)}</td><td>{bytes_ / total:.0%}</td>"
        )
    heads = ("No.", "Block", "Parameters", "Turns that sent it", "Bytes sent", "Of all")
    note = (
        '<p class="note">Bytes are those of each turn as they were counted, divided among the blocks that it sent by'
        " their parameters.</p>"
    )
    return note + data_table("Bytes of each block", heads, rows, words=(1,))


# --- who was heard ----------------------------------------------------------------------------------------


def _circle_table(record: StudyRecord, place: _Places) -> str:
    rows = []
    for circle in circle_turns(record):
        took = DASH if circle.seconds is None else duration(circle.seconds)
        rows.append(
            f'<th scope="row">{place[circle.members]}</th>'
            f'<td class="words">{escape(fit(", ".join(circle.members), 60))}</td>'
            f"<td>{circle.turns}</td><td>{circle.dropped}</td><td>{circle.share:.0%}</td>"
            f"<td>{DASH if circle.mean_age is None else f'{circle.mean_age:.1f}'}</td>"
            f"<td>{DASH if circle.oldest is None else circle.oldest}</td><td>{took}</td>"
        )
    heads = (
        "Circle",
        "Sites",
        "Turns merged",
        "Dropped",
        "Of all updates",
        "Mean age",
        "Oldest",
        "Mean time of a turn",
    )
    return data_table("Turns of each circle", heads, rows, words=(1,))


def _site_table(record: StudyRecord, place: _Places) -> str:
    """How much of what was merged is each site's, beside what it would be if all were heard alike."""
    shares = site_shares(record)
    if not shares:
        return ""
    circles = {site: index for members, index in place.items() for site in members}
    merged = merged_turns(record)
    rows = []
    for site, share in shares.items():
        turns = sum(site in turn.members for _, turn in merged)
        rows.append(
            f'<th scope="row">{escape(site)}</th><td>{circles.get(site, DASH)}</td>'
            f"<td>{turns}</td><td>{share:.1%}</td><td>{share * len(shares):.2f} ×</td>"
        )
    heads = ("Site", "Circle", "Turns merged", "Of all updates", "Beside an even share")
    return data_table("How much each site was heard", heads, rows)
