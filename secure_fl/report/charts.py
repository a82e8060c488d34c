"""Line and bar charts as inline SVG, drawn here so that the page runs no script.

Colours come from the page's style sheet by class, which is what lets one drawing serve light and dark.
Each chart is drawn once per `Frame`: scaling a wide drawing down to a phone would shrink its text too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from secure_fl.report.text import escape, fit, size

COLOURS = 12
MOST_LABELS = 24  # beyond this, names beside the lines would no longer be readable
_LABEL_STEP = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The drawing area of one chart, in pixels, and how much text fits beside it."""

    css: str
    width: int
    height: int
    left: int = 46
    top: int = 14
    bottom: int = 42
    name_columns: int = 20
    ticks: int = 12

    @property
    def right(self) -> int:
        """Room for the names at the line ends."""
        return 28 + round(6.8 * self.name_columns)


WIDE = Frame(css="wide", width=920, height=360)
NARROW = Frame(css="narrow", width=340, height=330, left=38, name_columns=10, ticks=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line: a value per completed round, None where nothing was measured or shared."""

    name: str
    points: tuple[tuple[int, float | None], ...]

    @property
    def known(self) -> list[tuple[int, float]]:
        """The measured points."""
        return [(at, value) for at, value in self.points if value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The traffic of one round."""

    label: str
    tick: str
    up: int
    down: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A linear map from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value; the middle where all values are one."""
        if self.high == self.low:
            return (self.start + self.end) / 2
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def nice_step(span: float, most: int) -> float:
    """The smallest of 1, 2, 5 × 10ⁿ that divides `span` into at most `most` parts."""
    if not span > 0:
        return 1.0
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= raw * (1 - 1e-9))


def line_chart(
    frame: Frame,
    series: Sequence[Series],
    mean: Series,
    *,
    text: Callable[[float, int], str],
    ceiling: float | None,
    label: str,
) -> str:
    """Thin lines for the sites, a bold one for their mean, names at the line ends.

    `text` writes a value with so many decimals, `ceiling` is the largest value the measure can take.
    At least one point must be known.
    """
    values = [value for line in (*series, mean) for _, value in line.known]
    rounds = [at for line in (*series, mean) for at, _ in line.points]
    named = series if len(series) <= MOST_LABELS else ()
    longest = max((len(line.name) for line in (*named, mean)), default=0)
    frame = replace(frame, name_columns=min(frame.name_columns, longest))
    height = max(frame.height, round(_LABEL_STEP * (len(named) + 1)) + frame.top + frame.bottom + 10)
    low, high, step = _domain(values, ceiling)
    across = Scale(low=min(rounds), high=max(rounds), start=frame.left + 6, end=frame.width - frame.right)
    up = Scale(low=low, high=high, start=height - frame.bottom, end=frame.top)
    body = _value_axis(frame, up, step, lambda value: text(value, _decimals(step, ceiling)))
    body += _round_axis(frame, across, height, min(rounds), max(rounds))
    for index, line in enumerate(series):
        body += _line(line, across, up, f"s{index % COLOURS}" + (" alt" if index >= COLOURS else ""), text)
    body += _line(mean, across, up, "mean", text)
    body += _end_labels(frame, named, mean, across, up)
    return _svg(frame, height, label, body)


def _domain(values: Sequence[float], ceiling: float | None) -> tuple[float, float, float]:
    """Axis limits on tick marks around the values, never below 0 or above what the measure can reach."""
    low, high = min(values), max(values)
    pad = max((high - low) * 0.05, abs(high) * 0.01, 1e-9 if ceiling is None else 0.01 * ceiling)
    low, high = max(low - pad, min(low, 0.0)), high + pad
    if ceiling is not None:
        high = min(high, max(ceiling, *values))
    step = nice_step(high - low, 6)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step


def _decimals(step: float, ceiling: float | None) -> int:
    scaled = step * 100 if ceiling is not None else step
    return max(0, -math.floor(math.log10(scaled) + 1e-9))


def _value_axis(frame: Frame, up: Scale, step: float, text: Callable[[float], str]) -> str:
    parts = []
    for index in range(round((up.high - up.low) / step) + 1):
        value = up.low + index * step
        y = up(value)
        parts.append(
            f'<line class="rule" x1="{frame.left}" x2="{frame.width - frame.right + 6}"'
            f' y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{frame.left - 8}" y="{y + 4:.1f}" text-anchor="end">'
            f"{escape(text(value))}</text>"
        )
    return "".join(parts)


def _round_axis(frame: Frame, across: Scale, height: int, first: int, last: int) -> str:
    y = height - frame.bottom + 18
    step = max(1, round(nice_step(last - first, frame.ticks)))
    ticks = [at for at in range(first, last + 1) if at % step == 0 or at == last]
    if len(ticks) > 1 and ticks[-1] - ticks[-2] < 0.6 * step:
        del ticks[-2]  # the last round matters more than its round-numbered neighbour
    marks = "".join(f'<text class="tick mid" x="{across(at):.1f}" y="{y}">{at}</text>' for at in ticks)
    middle = (across.start + across.end) / 2
    title = "after round (0 = initial model)"
    return f'{marks}<text class="axis mid" x="{middle:.1f}" y="{height - 6}">{title}</text>'


def _line(line: Series, across: Scale, up: Scale, css: str, text: Callable[[float, int], str]) -> str:
    """A path that breaks where nothing is known: a gap is not a straight line between its neighbours."""
    known = line.known
    if not known:
        return ""
    path: list[str] = []
    dots: list[str] = []
    run: list[str] = []
    for at, value in (*line.points, (0, None)):
        if value is not None:
            run.append(f"{across(at):.1f} {up(value):.1f}")
            continue
        if len(run) == 1:
            x, y = run[0].split()
            dots.append(f'<circle class="dot" cx="{x}" cy="{y}" r="{4 if css == "mean" else 3}"/>')
        elif run:
            path.append("M" + "L".join(run))
        run = []
    title = f"{line.name}: {text(known[-1][1], 2)} after round {known[-1][0]}"
    drawn = f'<path d="{"".join(path)}"/>' if path else ""
    return f'<g class="line {css}"><title>{escape(title)}</title>{drawn}{"".join(dots)}</g>'


def _end_labels(frame: Frame, series: Sequence[Series], mean: Series, across: Scale, up: Scale) -> str:
    """Names beside the last points, moved apart so that none covers another, each tied to its line."""
    wanted = [
        (up(line.known[-1][1]), across(line.known[-1][0]), line.name, f"s{index % COLOURS}")
        for index, line in enumerate(series)
        if line.known
    ]
    if mean.known:
        wanted.append((up(mean.known[-1][1]), across(mean.known[-1][0]), mean.name, "mean"))
    wanted.sort(key=lambda item: (item[0], item[3] == "mean"))
    places = spread([y for y, *_ in wanted], _LABEL_STEP, up.end + 4, up.start - 2)
    x = frame.width - frame.right + 22
    parts = []
    for place, (y, end, name, css) in zip(places, wanted, strict=True):
        parts.append(
            f'<path class="leader {css}" d="M{end + 3:.1f} {y:.1f}L{x - 5} {place:.1f}"/>'
            f'<text class="name {css}" x="{x}" y="{place + 4:.1f}"><title>{escape(name)}</title>'
            f"{escape(fit(name, frame.name_columns))}</text>"
        )
    return "".join(parts)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move sorted positions apart to at least `gap`, inside [low, high] as far as they fit.

    Positions that collide form a block around their common centre, so that a crowd moves as little as it can.
    """
    blocks: list[tuple[float, int]] = []  # first position, members
    for y in wanted:
        start, members = min(max(y, low), high), 1
        while blocks and blocks[-1][0] + blocks[-1][1] * gap > start:
            before, size_before = blocks.pop()
            # The centre each side wants, weighted by its members, gives the first position of the union.
            shifted = start - size_before * gap
            start = (before * size_before + shifted * members) / (size_before + members)
            members += size_before
            start = max(low, min(start, high - (members - 1) * gap))
        blocks.append((start, members))
    return [start + index * gap for start, members in blocks for index in range(members)]


def bar_chart(frame: Frame, bars: Sequence[Bar], *, label: str) -> str:
    """Bytes per round: up above the line, down below it, on one scale. Some byte must have moved."""
    height = frame.height - 70
    most_up, most_down = max(bar.up for bar in bars), max(bar.down for bar in bars)
    step = nice_step(most_up + most_down, 8)
    left, right = frame.left + 16, frame.width - 8
    y = Scale(low=-most_down, high=most_up, start=height - frame.bottom, end=frame.top)
    parts = []
    for index in range(-int(most_down / step), int(most_up / step) + 1):
        at = y(index * step)
        parts.append(
            f'<line class="{"zero" if index == 0 else "rule"}" x1="{left}" x2="{right}"'
            f' y1="{at:.1f}" y2="{at:.1f}"/><text class="tick" x="{left - 8}" y="{at + 4:.1f}"'
            f' text-anchor="end">{"0" if index == 0 else size(abs(index) * step)}</text>'
        )
    slot = (right - left) / len(bars)
    thick = slot if slot < 4 else min(0.72 * slot, 36.0)  # hairline gaps would only flicker
    every = max(1, round(nice_step(len(bars), frame.ticks + 4)))
    for index, bar in enumerate(bars):
        middle = left + (index + 0.5) * slot
        x = f'x="{middle - thick / 2:.2f}" width="{thick:.2f}"'
        tip = f"{bar.label}: {size(bar.up)} up, {size(bar.down)} down"
        parts.append(
            f"<g><title>{escape(tip)}</title>"
            f'<rect class="up" {x} y="{y(bar.up):.1f}" height="{max(y(0) - y(bar.up) - 0.5, 0):.1f}"/>'
            f'<rect class="down" {x} y="{y(0) + 0.5:.1f}" height="{max(y(-bar.down) - y(0) - 0.5, 0):.1f}"/>'
            "</g>"
        )
        last = index == len(bars) - 1
        if last or ((index + 1) % every == 0 and (len(bars) - 1 - index) * slot > 30):
            parts.append(
                f'<text class="tick mid" x="{middle:.1f}" y="{height - frame.bottom + 18}">{escape(bar.tick)}</text>'
            )
    parts.append(f'<text class="axis mid" x="{(left + right) / 2:.1f}" y="{height - 6}">round</text>')
    return _svg(frame, height, label, "".join(parts))


def _svg(frame: Frame, height: int, label: str, body: str) -> str:
    return (
        f'<svg class="chart {frame.css}" role="img" aria-label="{escape(label)}"'
        f' viewBox="0 0 {frame.width} {height}" width="{frame.width}" height="{height}">{body}</svg>'
    )
