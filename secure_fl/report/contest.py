"""Charts of strategies beside each other: over the rounds, across the sites, and against what was sent."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from secure_fl.report.drawing import (
    Axis,
    Frame,
    Label,
    Scale,
    Series,
    Text,
    axis_title,
    labels,
    line,
    linear_axis,
    log_axis,
    name_room,
    room_for,
    round_axis,
    rules,
    svg,
)
from secure_fl.report.text import decimal, error_text, escape, fit, percent, size

_COLOURS, _DASHES = 8, 4
_FAR_APART = 20.0  # from this ratio on, a linear scale shows only the largest
_ROW = 30
_BOLD = 8.2  # pixels of a letter


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What is compared: its name, how it is written, the most it can be, and whether it may be drawn by logarithms."""

    name: str
    text: Text
    ceiling: float | None = None
    log: bool = False

    def axis(self, values: Sequence[float], start: float, end: float) -> Axis:
        """An axis around these values, logarithmic where it may be and they are far apart."""
        positive = [value for value in values if value > 0]
        if self.log and positive and max(positive) > _FAR_APART * min(positive):
            return log_axis(positive, start, end, text=decimal)
        return linear_axis(values, start, end, text=self.text, ceiling=self.ceiling)


ACCURACY = Measure(name="accuracy", text=percent, ceiling=1.0)
ERROR = Measure(name="MSE", text=error_text, log=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One line of the comparison. `curve` has round, mean, and how far down and up its band goes."""

    name: str
    colour: int
    dash: int = 0
    curve: tuple[tuple[int, float, float, float], ...] = ()
    sites: tuple[tuple[str, float], ...] = ()  # at the end, every site under every seed
    value: float = 0.0  # at the end, with its standard deviation over seeds
    spread: float = 0.0
    bytes_up: float | None = None  # by one site in the whole run

    @property
    def css(self) -> str:
        """Its colour, and how its line is broken; more than eight colours cannot be told apart."""
        dash = (self.dash + self.colour // _COLOURS) % _DASHES
        return f"s{self.colour % _COLOURS}" + (f" d{dash}" if dash else "")


def round_chart(frame: Frame, contenders: Sequence[Contender], measure: Measure) -> str:
    """Each one's mean after each round, and its band. Some curve must not be empty."""
    shown = [one for one in contenders if one.curve]
    frame = replace(frame, height=room_for(frame, len(shown)))
    rounds = [at for one in shown for at, *_ in one.curve]
    means = [mean for one in shown for _, mean, *_ in one.curve]
    right = frame.width - name_room(frame, [one.name for one in shown], letter=_BOLD)
    across = Scale(low=min(rounds), high=max(rounds), start=frame.left + 6, end=right)
    edges = [edge for one in shown for *_, low, high in one.curve for edge in (low, high)]
    if measure.log:
        edges = [edge for edge in edges if edge > min(means) / 2]  # A band may reach to zero; no logarithm follows.
    axis = measure.axis([*means, *edges], *_heights(frame))
    up = axis.scale
    body = rules(frame, axis, right + 6) + round_axis(frame, across, min(rounds), max(rounds))
    start = " (0 = initial model)" if min(rounds) == 0 else ""
    body += axis_title(frame, across, f"{measure.name} after round{start}")
    body += "".join(_band(one, across, up) for one in shown)
    for one in shown:
        series = Series(name=one.name, points=tuple((at, mean) for at, mean, *_ in one.curve))
        body += line(series, across, up, f"many {one.css}", measure.text)
    ends = ((one, *one.curve[-1][:2]) for one in shown)
    beside = [Label(name=one.name, x=across(at), y=up(mean), css=f"series {one.css}") for one, at, mean in ends]
    label = f"{measure.name} after each round. At the end: {_told(shown, measure)}."
    return svg(frame, label, body + labels(frame, beside, right + 22, up))


def site_chart(frame: Frame, contenders: Sequence[Contender], measure: Measure) -> str:
    """A row for each: every site under every seed, the middle half of them, and their mean."""
    shown = [one for one in contenders if one.sites]
    left = name_room(frame, [one.name for one in shown], letter=_BOLD) - 8
    frame = replace(frame, height=frame.top + frame.bottom + _ROW * len(shown), left=round(left))
    bottom = frame.height - frame.bottom
    axis = measure.axis([value for one in shown for _, value in one.sites], frame.left + 8, frame.width - 24)
    across = axis.scale
    body = "".join(
        f'<line class="rule" x1="{across(value):.1f}" x2="{across(value):.1f}" y1="{frame.top}" y2="{bottom}"/>'
        f'<text class="tick mid" x="{across(value):.1f}" y="{bottom + 18}">{escape(text)}</text>'
        for value, text in axis.ticks
    )
    for index, one in enumerate(shown):
        body += _row(frame, one, frame.top + (index + 0.5) * _ROW, across, measure)
    body += axis_title(frame, across, f"{measure.name} of each site at the end")
    label = f"{measure.name} of each site at the end. Means: {_told(shown, measure)}."
    return svg(frame, label, body)


def byte_chart(frame: Frame, contenders: Sequence[Contender], measure: Measure) -> str:
    """What a site sent in all, and how good the models were in the end; the bar is a standard deviation over seeds."""
    shown = [(one, one.bytes_up) for one in contenders if one.bytes_up is not None]
    frame = replace(frame, height=room_for(frame, len(shown)))
    right = frame.width - name_room(frame, [one.name for one, _ in shown], letter=_BOLD)
    sent = [amount for _, amount in shown]
    if min(sent) > 0 and max(sent) > _FAR_APART * min(sent):
        along = log_axis(sent, frame.left + 14, right, text=size)
    else:
        along = linear_axis([0.0, *sent], frame.left + 14, right, text=lambda value, _: size(value), ceiling=None)
    values = [one.value + sign * one.spread for one, _ in shown for sign in (-1, 0, 1)]
    axis = measure.axis([value for value in values if 0 <= value <= (measure.ceiling or value)], *_heights(frame))
    across, up, y = along.scale, axis.scale, frame.height - frame.bottom + 18
    body = rules(frame, axis, right + 6)
    every = -(-len(along.ticks) // max(2, round((right - frame.left) / 70)))
    body += "".join(
        f'<text class="tick mid" x="{across(value):.1f}" y="{y}">{escape(text)}</text>'
        for value, text in along.ticks[::every]
    )
    for one, amount in shown:
        x = across(amount)
        tip = f"{one.name}: {measure.text(one.value, 2)}, {size(amount)} sent by a site"
        bar = f'x1="{x:.1f}" x2="{x:.1f}" y1="{_within(up, one.value - one.spread):.1f}"'
        body += (
            f'<g class="line {one.css}"><title>{escape(tip)}</title>'
            f'<line class="error" {bar} y2="{_within(up, one.value + one.spread):.1f}"/>'
            f'<circle cx="{x:.1f}" cy="{up(one.value):.1f}" r="5"/></g>'
        )
    body += axis_title(frame, across, f"sent by one site in all; upwards: {measure.name}")
    beside = [Label(name=one.name, x=across(at) + 4, y=up(one.value), css=f"series {one.css}") for one, at in shown]
    told = ", ".join(f"{one.name} {measure.text(one.value, 2)} for {size(at)}" for one, at in shown)
    return svg(
        frame, f"{measure.name} against bytes sent by one site: {told}.", body + labels(frame, beside, right + 22, up)
    )


def _heights(frame: Frame) -> tuple[float, float]:
    return frame.height - frame.bottom, frame.top


def _within(scale: Scale, value: float) -> float:
    return scale(min(max(value, scale.low), scale.high))


def _band(one: Contender, across: Scale, up: Scale) -> str:
    if all(low == high for *_, low, high in one.curve):
        return ""
    above = [f"{across(at):.1f},{_within(up, high):.1f}" for at, _, _, high in one.curve]
    below = [f"{across(at):.1f},{_within(up, low):.1f}" for at, _, low, _ in reversed(one.curve)]
    return f'<polygon class="band {one.css}" points="{" ".join((*above, *below))}"/>'


def _row(frame: Frame, one: Contender, y: float, across: Scale, measure: Measure) -> str:
    values = [value for _, value in one.sites]
    name = (
        f'<text class="name series end {one.css}" x="{frame.left - 8}" y="{y + 4:.1f}">'
        f"<title>{escape(one.name)}</title>{escape(fit(one.name, frame.columns))}</text>"
    )
    box = ""
    if len(values) > 1:
        low, _, high = (across(value) for value in statistics.quantiles(values, n=4, method="inclusive"))
        box = f'<rect class="quartiles" x="{low:.1f}" y="{y - 10:.1f}" width="{high - low:.1f}" height="20" rx="3"/>'
    dots = "".join(
        # Sites that do equally well lie side by side, in the same place in every drawing.
        f'<circle cx="{across(value):.1f}" cy="{y + 12 * ((0.618 * index) % 1 - 0.5):.1f}" r="2.8">'
        f"<title>{escape(f'{one.name}, {site}: {measure.text(value, 2)}')}</title></circle>"
        for index, (site, value) in enumerate(one.sites)
    )
    x = f"{across(statistics.fmean(values)):.1f}"
    mean = f'<line class="middle" x1="{x}" x2="{x}" y1="{y - 11:.1f}" y2="{y + 11:.1f}"/>'
    return f'{name}<g class="site-dot {one.css}">{box}{dots}{mean}</g>'


def _told(shown: Sequence[Contender], measure: Measure) -> str:
    return ", ".join(f"{one.name} {measure.text(one.value, 2)}" for one in shown)
