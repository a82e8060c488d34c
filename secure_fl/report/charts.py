"""Line and bar charts as inline SVG, drawn here so that the page runs no script.

Colours come from the page's style sheet by class, which is what lets one drawing serve light and dark.
Each chart is drawn once per `Frame`: scaling a wide drawing down to a phone would shrink its text too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from secure_fl.report.text import escape, fit, width

_LABEL_STEP = 15.0
_MOST_DOTS = 25  # beyond this, dots would hide the line they sit on
_NAME_COLUMNS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The drawing area of one chart, in pixels."""

    css: str
    width: int
    height: int = 264
    left: int = 52
    right: int = 12
    top: int = 12
    bottom: int = 42
    ticks: int = 8


FRAMES = (Frame(css="wide", width=456), Frame(css="narrow", width=326, ticks=6))


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
    """What one round cost: above the line, below it, and in words."""

    tip: str
    tick: str
    above: float
    below: float = 0.0
    marked: bool = False


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


# --- lines ------------------------------------------------------------------------------------------------


def line_chart(
    frame: Frame,
    sites: Sequence[Series],
    mean: Series,
    *,
    text: Callable[[float, int], str],
    ceiling: float | None,
    label: str,
) -> str:
    """Thin lines for the sites, a bold one for their mean; the mean and the two extreme sites are named.

    `text` writes a value with so many decimals, `ceiling` is the largest value the measure can take.
    At least one point must be known.
    """
    values = [value for line in (*sites, mean) for _, value in line.known]
    rounds = [at for line in (*sites, mean) for at, _ in line.points]
    named = _extremes(sites) + ([mean] if mean.known else [])
    right = frame.width - 26 - 7.4 * max(min(width(line.name), _NAME_COLUMNS) for line in named)
    low, high, step = _domain(values, ceiling)
    across = Scale(low=min(rounds), high=max(rounds), start=frame.left + 6, end=right)
    up = Scale(low=low, high=high, start=frame.height - frame.bottom, end=frame.top)
    decimals = _decimals(step * 100 if ceiling is not None else step)
    body = "".join(
        _rule(frame, up(low + index * step), text(low + index * step, decimals), right + 6)
        for index in range(round((high - low) / step) + 1)
    )
    body += _round_axis(frame, across, min(rounds), max(rounds))
    body += "".join(_line(line, across, up, "site", text) for line in sites)
    body += _line(mean, across, up, "mean", text)
    return _svg(frame, label, body + _names(named, mean, across, up))


def _extremes(sites: Sequence[Series]) -> list[Series]:
    """The sites that end highest and lowest: those a study lead would ask about."""
    known = sorted((line for line in sites if line.known), key=lambda line: line.known[-1][1])
    return list({id(line): line for line in (*known[:1], *known[-1:])}.values())


def _domain(values: Sequence[float], ceiling: float | None) -> tuple[float, float, float]:
    """Axis limits on tick marks around the values, never below 0 or above what the measure can reach."""
    low, high = min(values), max(values)
    pad = max((high - low) * 0.05, abs(high) * 0.01, 1e-9 if ceiling is None else 0.01 * ceiling)
    low, high = max(low - pad, min(low, 0.0)), high + pad
    if ceiling is not None:
        high = min(high, max(ceiling, *values))
    step = nice_step(high - low, 6)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step


def _decimals(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9))


def _round_axis(frame: Frame, across: Scale, first: int, last: int) -> str:
    y = frame.height - frame.bottom + 18
    step = max(1, round(nice_step(last - first, frame.ticks)))
    ticks = [at for at in range(first, last + 1) if at % step == 0 or at == last]
    if len(ticks) > 1 and ticks[-1] - ticks[-2] < 0.6 * step:
        del ticks[-2]  # the last round matters more than its round-numbered neighbour
    marks = "".join(f'<text class="tick mid" x="{across(at):.1f}" y="{y}">{at}</text>' for at in ticks)
    return marks + _axis_title(frame, across, "after round (0 = initial model)")


def _line(line: Series, across: Scale, up: Scale, css: str, text: Callable[[float, int], str]) -> str:
    """A path that breaks where nothing is known: a gap is not a straight line between its neighbours."""
    runs: list[list[tuple[int, float]]] = [[]]
    for at, value in line.points:
        if value is not None:
            runs[-1].append((at, value))
        elif runs[-1]:
            runs.append([])
    path = "".join(
        "M" + "L".join(f"{across(at):.1f} {up(value):.1f}" for at, value in run) for run in runs if len(run) > 1
    )
    all_dots = css == "mean" and len(line.points) <= _MOST_DOTS
    dots = "".join(
        f'<circle cx="{across(at):.1f}" cy="{up(value):.1f}" r="{3.2 if css == "mean" else 2.4}">'
        f"<title>{escape(f'{line.name}: {text(value, 2)} after round {at}')}</title></circle>"
        for run in runs
        for at, value in run
        if all_dots or len(run) == 1
    )
    if not path and not dots:
        return ""
    last, value = line.known[-1]
    title = escape(f"{line.name}: {text(value, 2)} after round {last}")
    drawn = f'<path d="{path}"/>' if path else ""
    return f'<g class="line {css}"><title>{title}</title>{drawn}{dots}</g>'


def _names(lines: Sequence[Series], mean: Series, across: Scale, up: Scale) -> str:
    """Names beside the last points, moved apart so that none covers another, each tied to its line."""
    wanted = sorted(((up(line.known[-1][1]), line) for line in lines), key=lambda item: item[0])
    places = spread([y for y, _ in wanted], _LABEL_STEP, up.end + 4, up.start - 2)
    x = across.end + 22
    return "".join(
        f'<path class="leader" d="M{across(line.known[-1][0]) + 4:.1f} {y:.1f}L{x - 4:.1f} {place:.1f}"/>'
        f'<text class="name{" mean" if line is mean else ""}" x="{x:.1f}" y="{place + 4:.1f}">'
        f"<title>{escape(line.name)}</title>{escape(fit(line.name, _NAME_COLUMNS))}</text>"
        for place, (y, line) in zip(places, wanted, strict=True)
    )


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move sorted positions apart to at least `gap`, inside [low, high] as far as they fit."""
    placed: list[float] = []
    for y in wanted:
        placed.append(max(y, placed[-1] + gap if placed else low))
    ceiling = high
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - gap
    return placed


def sparkline(line: Series, mean: Series, *, low: float, high: float, text: Callable[[float, int], str]) -> str:
    """One site's line over the mean of all, without axes, on a scale that all sites share."""
    rounds = [at for at, _ in line.points]
    across = Scale(low=min(rounds), high=max(rounds), start=3, end=117)
    up = Scale(low=low, high=high, start=25, end=3)
    body = _line(mean, across, up, "behind", text) + _line(line, across, up, "own", text)
    return f'<svg class="spark" aria-hidden="true" viewBox="0 0 120 28" width="120" height="28">{body}</svg>'


# --- bars -------------------------------------------------------------------------------------------------


def bar_chart(frame: Frame, bars: Sequence[Bar], *, text: Callable[[float], str], label: str) -> str:
    """One bar per round, up from the line and down from it on one scale. Some bar must not be empty."""
    above, below = max(bar.above for bar in bars), max(bar.below for bar in bars)
    step = nice_step(above + below, 6)
    left, right = frame.left + 6, frame.width - frame.right
    y = Scale(low=-below, high=above, start=frame.height - frame.bottom, end=frame.top)
    parts = [
        _rule(frame, y(index * step), text(abs(index) * step) if index else "0", right, css="rule" if index else "zero")
        for index in range(-int(below / step), int(above / step) + 1)
    ]
    slot = (right - left) / len(bars)
    thick = slot if slot < 4 else min(0.72 * slot, 32.0)  # hairline gaps would only flicker
    every = max(1, round(nice_step(len(bars), frame.ticks)))
    for index, bar in enumerate(bars):
        middle = left + (index + 0.5) * slot
        parts.append(f"<g><title>{escape(bar.tip)}</title>{_rectangles(bar, middle, thick, y)}</g>")
        last = index == len(bars) - 1
        if last or ((index + 1) % every == 0 and (len(bars) - 1 - index) * slot > 34):
            parts.append(
                f'<text class="tick mid" x="{middle:.1f}" y="{frame.height - frame.bottom + 18}">'
                f"{escape(bar.tick)}</text>"
            )
    parts.append(_axis_title(frame, Scale(low=0, high=1, start=left, end=right), "round"))
    return _svg(frame, label, "".join(parts))


def _rectangles(bar: Bar, middle: float, thick: float, y: Scale) -> str:
    x = f'x="{middle - thick / 2:.2f}" width="{thick:.2f}"'
    css, zero = "again" if bar.marked else "up", y(0)
    up = f'<rect class="{css}" {x} y="{y(bar.above):.2f}" height="{zero - y(bar.above):.2f}"/>'
    return up + f'<rect class="down" {x} y="{zero:.2f}" height="{y(-bar.below) - zero:.2f}"/>' * (bar.below > 0)


# --- shared -----------------------------------------------------------------------------------------------


def _rule(frame: Frame, y: float, text: str, right: float, *, css: str = "rule") -> str:
    """A horizontal line and its value."""
    return (
        f'<line class="{css}" x1="{frame.left}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick end" x="{frame.left - 8}" y="{y + 4:.1f}">{escape(text)}</text>'
    )


def _axis_title(frame: Frame, across: Scale, title: str) -> str:
    middle = (across.start + across.end) / 2
    return f'<text class="tick mid" x="{middle:.1f}" y="{frame.height - 6}">{title}</text>'


def _svg(frame: Frame, label: str, body: str) -> str:
    return (
        f'<svg class="chart {frame.css}" role="img" aria-label="{escape(label)}"'
        f' viewBox="0 0 {frame.width} {frame.height}" width="{frame.width}" height="{frame.height}">{body}</svg>'
    )
