"""Where sites are combined for one another: how many were served in each round, and who asked for whom how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from secure_fl.report.charts import Bar, bar_chart
from secure_fl.report.document import figure, section
from secure_fl.report.drawing import FRAMES, Frame, name_room, svg
from secure_fl.report.text import escape, fit
from secure_fl.results.record import StudyRecord
from secure_fl.results.traces import Traces
from secure_fl.rounds import RoundKind

Rows = Mapping[str, Mapping[int, Traces]]  # by site and round: the integer weights it asked for

_FAINTEST = 0.12


def selection_section(record: StudyRecord, rows: Rows) -> str:
    """Nothing for a study without combinations."""
    asked = {site: _counts(rounds) for site, rounds in rows.items()}
    if record.combinations_possible is None and not any(asked.values()):
        return ""
    lead = (
        "A combination opens at one site only. A site keeps its own model where it chose fewer peers than the minimum,"
        " or where the release guard refuses what it asked for."
    )
    charts = _served_chart(record)
    if any(asked.values()):
        rounds = max(len(rounds) for rounds in rows.values())
        drawn = "".join(_matrix(frame, asked, rounds) for frame in FRAMES)
        charts += figure("Who asked for whom", drawn, f"<span>the darker the more often, out of {rounds} rounds</span>")
        lead += " Who asked for whom is shown because one person runs all the sites here; the coordinator sees it too."
    return section("Combinations", lead, f'<div class="charts">{charts}</div>')


def _counts(rounds: Mapping[int, Traces]) -> Counter[str]:
    return Counter(peer for traces in rounds.values() for peer, weight in traces.get("asked", {}).items() if weight > 0)


def _served_chart(record: StudyRecord) -> str:
    bars = []
    for entry in record.rounds:
        if entry.kind is RoundKind.TRAIN:
            kept = len(entry.cohort) - entry.combinations
            tip = f"round {entry.number}: {entry.combinations} sites combined, {kept} kept their own model"
            bars.append(Bar(tip=tip, tick=str(entry.number), above=entry.combinations, below=kept))
    if not any(bar.above + bar.below for bar in bars):
        return ""
    served, kept = round(sum(bar.above for bar in bars)), round(sum(bar.below for bar in bars))
    label = f"Sites per round: {served} times a combination was opened, {kept} times a site kept its own model."
    drawn = "".join(bar_chart(frame, bars, text=lambda value: f"{value:g}", label=label) for frame in FRAMES)
    key = (
        f'<span><i class="box"></i>combined, {served} in all</span>'
        f'<span><i class="box below"></i>kept their own model, {kept} in all</span>'
    )
    return figure("Sites per round", drawn, key)


def _matrix(frame: Frame, asked: Mapping[str, Counter[str]], rounds: int) -> str:
    """A square per pair: the row's site asked for the column's. Columns are in the order of the rows."""
    sites = sorted({*asked, *(peer for counts in asked.values() for peer in counts)})
    left = name_room(frame, sites) - 14
    side = min(34.0, (frame.width - left - frame.right) / len(sites))
    frame = replace(frame, height=round(frame.top + side * len(sites) + 8))
    body = "".join(
        _row(frame, sites, index, left, side, asked.get(site, Counter()), rounds) for index, site in enumerate(sites)
    )
    pairs = [(count, site, peer) for site, counts in asked.items() for peer, count in counts.items() if peer != site]
    label = "Who asked for whom"
    if pairs:
        count, site, peer = max(pairs)
        label += f": most often {site} for {peer}, in {count} of {rounds} rounds"
    return svg(frame, f"{label}.", body)


def _row(
    frame: Frame, sites: Sequence[str], index: int, left: float, side: float, counts: Counter[str], rounds: int
) -> str:
    site, top = sites[index], frame.top + index * side
    cells = "".join(
        f'<rect class="{"down" if peer == site else "up"}" x="{left + column * side:.1f}" y="{top:.1f}"'
        f' width="{side - 1:.1f}" height="{side - 1:.1f}"'
        f' fill-opacity="{_FAINTEST + (1 - _FAINTEST) * counts[peer] / rounds if counts[peer] else 0.04:.2f}">'
        f"<title>{escape(f'{site} asked for {peer} in {counts[peer]} of {rounds} rounds')}</title></rect>"
        for column, peer in enumerate(sites)
    )
    name = escape(fit(site, frame.columns))
    return f'<text class="tick end" x="{left - 8:.1f}" y="{top + side / 2 + 4:.1f}">{name}</text>{cells}'
